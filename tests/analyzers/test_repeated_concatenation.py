"""repeated-concatenation: kernels of cat take a fifth of the busy time. Times in µs."""

import pytest

from diagnose.analyzers import repeated_concatenation

CAT = "void at::native::(anonymous namespace)::CatArrayBatchedCopy<at::native::OpaqueType<2u>, unsigned int, 4>"


def joining(recording, took, name=CAT):
    r = recording()
    r.step(1, 0, 1000)
    r.kernel(name, 0, took, launched=(-20, -15))
    r.kernel("gemm", took, 1000, launched=(-5, -2))
    return r


def test_what_it_costs(recording):
    finding = joining(recording, 300).find("repeated-concatenation")
    assert (finding.lost_ns, finding.count) == (pytest.approx(300_000), 1)
    assert [p.id for p in joining(recording, 300).prescribe("repeated-concatenation")] == ["preallocate"]


@pytest.mark.parametrize(("took", "fires"), [(199, False), (201, True)])
def test_a_fifth_of_the_busy_time(recording, took, fires):
    assert (joining(recording, took).find("repeated-concatenation") is not None) == fires


def test_other_copies_do_not_count(recording):
    assert joining(recording, 300, "direct_copy_kernel_cuda").find("repeated-concatenation") is None


def growing_on_a_cpu(recording, shapes="[[[4000, 64], [16, 64]], []]", took=300):
    r = recording(devices=())
    for step in range(2):
        at = 1000 * step
        r.step(step + 1, at, at + 1000)
        r.op("aten::cat", at + 100, at + 100 + took, shapes=shapes)
        r.op("aten::mm", at + 500, at + 1000, shapes="[[8, 8], [8, 8]]")
    return r


def test_without_a_device_it_is_the_tensor_that_is_there_already(recording):
    r = growing_on_a_cpu(recording)
    finding = r.find("repeated-concatenation")
    assert (finding.lost_ns, finding.title) == (300_000, repeated_concatenation.TITLE)
    assert finding.evidence[-1] == "The largest has 4000 × 64 elements, 16 × 64 are put to them."
    (p,) = r.prescribe("repeated-concatenation")
    assert (p.id, "% capacity" in p.after) == ("preallocate", True)


def test_keys_that_grow_along_another_dimension_are_no_rows(recording):
    r = growing_on_a_cpu(recording, "[[[2, 8, 100, 64], [2, 8, 1, 64]], []]")
    (p,) = r.prescribe("repeated-concatenation")
    assert "max_length" in p.after


@pytest.mark.parametrize(
    ("shapes", "took"),
    [
        ("[[[64, 64], [64, 64]], []]", 300),  # parts of one size
        ("[[[4000, 64]], []]", 300),  # one alone
        ("[[[0, 64], [0, 64]], []]", 300),  # empty ones
        ("[[[4000, 64], [16, 64]], []]", 49),  # less than 5 % of the step
    ],
)
def test_without_a_device_what_is_none_of_it(recording, shapes, took):
    assert growing_on_a_cpu(recording, shapes, took).find("repeated-concatenation") is None
