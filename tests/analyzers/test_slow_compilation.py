"""slow-compilation: how long compiling took before the steps."""

import pytest


@pytest.mark.parametrize(("took", "found"), [(19.9, False), (20.0, True)])
def test_long_compilations_are_named_without_a_cost_of_the_step(recording, took, found):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 900)
    r.with_info(compiled={"took_s": took, "backend_s": 15.0, "stages": {"Dynamo": 5, "Inductor": 15}})
    those = [f for f in r.diagnosis().findings if f.rule == "slow-compilation"]
    assert bool(those) is found
    for finding in those:
        assert finding.evidence == (
            "torch.compile took 20.0 s, 15.0 s of it to generate code.",
            "By stage: Dynamo 5.0 s, Inductor 15.0 s.",
        )
        assert finding.worth_ns == 0


def test_layers_and_the_cache_are_advised(recording):
    r = recording(devices=())
    r.step(1, 0, 1000)
    r.op("aten::mm", 0, 900)
    r.with_info(compiled={"took_s": 60.0})
    assert [p.id for p in r.prescribe("slow-compilation")] == ["compile-layers", "keep-compiled"]
