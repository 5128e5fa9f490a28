"""Which tasks are nodes of CUDA graphs, what their kernels compute, and which of them update parameters."""

import pytest

from diagnose.analyzers.common.fusable import functor
from diagnose.tables.op_launches import graph_nodes, graphed_updates

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
ADD, DIVIDE = POINTWISE + "CUDAFunctor_add<float>, ...>", POINTWISE + "addcdiv_cuda_kernel(...)::lambda, ...>"
OF_LISTS = "void at::native::multi_tensor_apply_kernel<..., at::native::PointwiseOpListFunctor<float, 4, 3, 0>, ...>"
FUSED = "void at::native::multi_tensor_apply_kernel<..., FusedAdamMathFunctor<float, 4, ADAM_MODE, false>>"


@pytest.mark.parametrize(
    ("kernel", "computes"),
    [
        (ADD, "add"),
        (
            POINTWISE + "BinaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float> >, ...>",
            "Mul",
        ),
        (POINTWISE + "GeluCUDAKernelImpl(at::TensorIteratorBase&)::gelu_kernel_cuda", "gelu"),
        (DIVIDE, "addcdiv"),
        ("my_own", "my_own"),
    ],
)
def test_what_a_kernel_computes(kernel, computes):
    assert functor(kernel) == computes


def replaying(recording, names):
    """Return a graph of kernels of 10 µs, launched once, behind a kernel that is launched by itself."""
    r = recording()
    r.kernel(DIVIDE, 0, 10, launched=(-20, -15))
    nodes = [r.kernel(name, 10 + 10 * i, 20 + 10 * i) for i, name in enumerate(names)]
    r.runtime("cudaGraphLaunch", -10, -5, launches=nodes)
    return r.tables()


def test_nodes_are_what_the_launch_of_a_graph_carries(recording):
    assert graph_nodes(replaying(recording, [ADD, ADD])).tolist() == [False, True, True]


def test_divisions_that_recur_are_those_of_an_adam(recording):
    t = replaying(recording, ["gemm", ADD, *[DIVIDE, ADD, ADD] * 8])
    # from the first division to the last; what comes before and behind may be of the backward
    assert graphed_updates(t).tolist() == [False] * 3 + [True] * 22 + [False] * 2


@pytest.mark.parametrize(
    "names",
    [
        [DIVIDE, ADD, ADD] * 7,  # too few
        [DIVIDE, *["gemm"] * 16] * 8,  # too far apart
        [FUSED] * 8,
    ],
)
def test_what_is_no_adam(recording, names):
    assert not graphed_updates(replaying(recording, names)).any()


def test_kernels_for_lists_of_tensors_are_known_by_theirs(recording):
    assert graphed_updates(replaying(recording, [OF_LISTS, "gemm", FUSED])).tolist() == [False, True, False, False]
