import pytest
import torch
from torch import nn

from diagnose.kernels.distributed.bucket_tuning import BucketChoice, BucketTrial, _candidates, _chosen


def trials(**times):
    return [BucketTrial(float(size.strip("mb")), ms, 0.1, None) for size, ms in times.items()]


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ({"mb5": 10.0, "mb25": 12.0, "mb50": 11.0}, 5),
        ({"mb5": 10.0, "mb25": 10.1, "mb50": 11.0}, 25),
        ({"mb5": 10.0, "mb10": 10.1}, 5),
    ],
)
def test_the_fastest_but_the_default_where_nothing_is_two_percent_faster(times, expected):
    assert _chosen(trials(**times)) == expected


def test_candidates_end_with_everything_in_one_bucket():
    with torch.device("meta"):
        model = nn.Linear(4096, 1024, bias=False)  # 16 MB
    assert _candidates(model) == [1, 5, 10, pytest.approx(16.16)]
    assert _candidates(nn.Linear(2, 2)) == [pytest.approx(1.01)]


def test_the_choice_shows_what_was_measured():
    choice = BucketChoice(5.0, (BucketTrial(5.0, 10.0, 0.1, 0.5), BucketTrial(25.0, 12.0, 0.2, None)))
    assert str(choice).splitlines() == [
        "      5 MB      10.00 ms ± 0.10   50% hidden  ← chosen",
        "     25 MB      12.00 ms ± 0.20",
    ]
