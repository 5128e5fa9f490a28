"""Which source tells the steps."""

from diagnose.capture.steps.step_source import SourceChoice


def test_better_sources_take_over_and_lesser_ones_do_not():
    choice = SourceChoice("auto")
    for source, chosen in (
        ("forward", "forward"),
        ("dataloader", "dataloader"),
        ("forward", "dataloader"),
        ("optimizer", "optimizer"),
        ("dataloader", "optimizer"),
        ("marker", "marker"),
        ("optimizer", "marker"),
    ):
        choice.on_event(source, gradients=True)
        assert choice.chosen == chosen


def test_batches_wait_for_the_optimizer():
    choice = SourceChoice("auto")
    choice.optimizer_exists = True
    for _ in range(64):  # gathering gradients over 64 batches
        assert not choice.on_event("dataloader", gradients=True)
    assert choice.on_event("optimizer", gradients=True)


def test_an_optimizer_that_never_steps_is_given_up():
    for gradients, patience in ((True, 256), (False, 1024)):
        choice = SourceChoice("auto")
        choice.optimizer_exists = True
        heard = [choice.on_event("dataloader", gradients=gradients) for _ in range(patience + 1)]
        assert heard.index(True) == patience


def test_the_user_decides():
    choice = SourceChoice("forward")
    choice.on_event("optimizer", gradients=True)
    assert choice.chosen is None
    assert choice.on_event("forward", gradients=True)
