"""The wait for a batch is a symptom: what names a waste inside of loading claims its time before."""

from diagnose.analyzers import HOST_RULES, META, RULES


def test_what_the_data_flow_shows_of_loading_is_claimed_before_the_wait_for_it():
    order = [rule.META.id for rule in HOST_RULES]
    of_values = "dead-work", "constant-work", "computed-again", "growing-work", "equal-rows"
    assert max(map(order.index, of_values)) < order.index("data-stall") < order.index("python-stall")
    assert order.index("slow-fft-length") < order.index("data-stall")


def test_on_a_device_dead_work_comes_before_the_wait_too():
    order = [rule.META.id for rule in RULES if rule.META.kind == "idle"]
    assert order.index("dead-work") < order.index("data-stall")
    assert {each.id for each in META.values() if each.is_symptom} >= {"data-stall", "python-stall", "periodic-stall"}
