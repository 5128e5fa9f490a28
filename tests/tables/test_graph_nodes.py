"""Which tasks are nodes of CUDA graphs, and what their kernels compute."""

import pytest

from diagnose.analyzers.common.fusable import functor
from diagnose.tables.op_launches import graph_nodes

POINTWISE = "void at::native::vectorized_elementwise_kernel<4, at::native::"
ADD, DIVIDE = POINTWISE + "CUDAFunctor_add<float>, ...>", POINTWISE + "addcdiv_cuda_kernel(...)::lambda, ...>"


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
