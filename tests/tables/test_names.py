"""Which events a name or a pattern stands for."""

import re

import pytest

from diagnose.model.events import Kind
from diagnose.tables import kernel_classes, names
from diagnose.tables.names import COLLECTIVE, EXPERT_EXCHANGE, AnyCase, matching, names_of, rows_of


@pytest.fixture
def r(recording):
    r = recording(devices=())
    r.op("Copy", 0, 10)
    r.annotation("copy", 10, 20)
    r.op("Copy", 20, 30)
    return r


def test_rows_are_those_of_the_kinds_and_of_the_pattern_alone(r):
    assert rows_of(r.trace, Kind.OP).tolist() == [0, 2]
    assert matching(r.trace, (Kind.OP,), re.compile("opy")).tolist() == [0, 2]
    assert matching(r.trace, (Kind.OP, Kind.ANNOTATION), re.compile("opy")).tolist() == [0, 1, 2]
    assert matching(r.trace, (Kind.OP,), re.compile("^copy")).tolist() == []
    assert matching(r.trace, (Kind.OP,), AnyCase("^copy")).tolist() == [0, 2]
    assert matching(r.trace, (Kind.KERNEL,), re.compile("opy")).tolist() == []


class Counting:
    """A pattern that keeps what it was asked."""

    pattern, flags = ".", 0

    def __init__(self) -> None:
        self.searched = []

    def search(self, name):
        self.searched.append(name)
        return re.search("opy", name)


def test_a_name_is_searched_once_and_where_an_event_of_the_kinds_has_it(r):
    pattern = Counting()
    assert matching(r.trace, (Kind.OP,), pattern).tolist() == [0, 2]
    assert pattern.searched == ["Copy"]
    assert matching(r.trace, (Kind.OP, Kind.ANNOTATION), pattern).tolist() == [0, 1, 2]
    assert sorted(pattern.searched[1:]) == ["Copy", "copy"]


def test_names_are_those_of_the_kinds(r):
    found = {kind: [r.trace.names[name] for name in names_of(r.trace, kind)] for kind in (Kind.OP, Kind.ANNOTATION)}
    assert found == {Kind.OP: ["Copy"], Kind.ANNOTATION: ["copy"]}


def test_patterns_that_ignore_case_have_no_capital_letter_which_none_would_match():
    of_modules = [*vars(names).values(), *(pattern for _, pattern in kernel_classes._BY_NAME)]
    patterns = [p._pattern.pattern for p in of_modules if isinstance(p, AnyCase)]
    assert len(patterns) > 15
    assert not [p for p in patterns if re.search("[A-Z]", re.sub(r"\\.", "", p))]


@pytest.mark.parametrize(
    ("name", "is_collective", "is_exchange"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclKernelComm*)", True, False),
        ("ncclInitKernel", False, False),
        ("void vllm::cross_device_reduce_1stage<float, 2>(int)", True, False),
        ("two_shot_all_reduce_kernel", True, False),
        ("triton_poi_fused_all_gather_kernel_3", False, False),
        ("my_All_Gather_Kernel", True, False),
        ("gemm_all_to_all", False, False),
        ("void Internode::dispatch<4>(int)", True, True),
        ("moe_all_to_all", True, True),
        ("softmax_combine", False, False),
    ],
)
def test_collectives(name, is_collective, is_exchange):
    assert (COLLECTIVE.search(name) is not None) is is_collective
    assert (EXPERT_EXCHANGE.search(name) is not None) is is_exchange


def test_what_ignores_case_is_found_in_any_case():
    pattern = AnyCase("radix_?sort|direct_copy")
    assert pattern.search("void RadixSort<4>")
    assert pattern.search("DIRECT_COPY_KERNEL")
    assert not pattern.search("radix_direct")
