"""What a row sums up."""

from diagnose.monitor.step_rows import percentile


def test_percentiles_lie_between():
    assert [percentile([1, 2, 3, 4, 5], p) for p in (0, 5, 50, 100)] == [1, 1.2, 3, 5]
    assert percentile([7], 95) == 7
