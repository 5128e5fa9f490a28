"""Device tasks that CUDA graphs launch. One call launches them all: no operator around it is theirs."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from diagnose.model.arrays import Mask
from diagnose.model.events import Kind
from diagnose.model.intervals import among, distinct
from diagnose.tables import Tables, shared_table
from diagnose.tables.names import FUSED, GRAPH_LAUNCH, matching
from diagnose.text.patterns import lazy_pattern

__all__ = ["functor", "graph_nodes", "graphed_updates"]

# Adam and its relatives divide by the root of a moment, by addcdiv: once for each tensor, or for each list of tensors.
_ADAM = lazy_pattern(r"addcdiv")
_ADAM_OF_LISTS = lazy_pattern(r"multi_tensor_apply.*PointwiseOp\w*Functor")
_POINTWISE = lazy_pattern(r"at::native::.*elementwise")
_OF_LISTS = lazy_pattern(r"multi_tensor_apply")
MIN_UPDATES = 8  # tensors in one launch: a loss may divide once or twice
MAX_BETWEEN = 16  # nodes from one tensor's division to the next: AdamW makes 8 to 14 kernels for each
# What a kernel of torch's computes, as its name has it: CUDAFunctor_add, MulFunctor, gelu_kernel_cuda, addcmul_kernel.
_FUNCTOR = lazy_pattern(
    r"CUDAFunctor(?:OnSelf|OnOther)?_(\w+?)\b|\b(\w+?)(?:Functor|OpListFunctor)\b"
    r"|\b(\w+?)_(?:kernel_impl|kernel_cuda|cuda_kernel|kernel)\b"
)
_WRAPPERS = lazy_pattern(
    r"^(Binary|B?Unary|AUnary|BUnary|gpu|\w*elementwise|\w*multi_tensor_apply|gpu_kernel_impl\w*|launch\w*)$"
)


@shared_table
def graph_nodes(t: Tables) -> Mask:
    """Return which tasks of the window a launch of a graph carries."""
    of_graph = np.zeros(len(t.trace.events) + 1, bool)  # the last place takes the -1 of tasks without a launch
    of_graph[matching(t.trace, (Kind.RUNTIME,), GRAPH_LAUNCH)] = True
    found: Mask = of_graph[t.tasks.launch]
    return found


@shared_table
def graphed_updates(t: Tables) -> Mask:
    """Return which nodes of graphs update parameters as an Adam does that is not fused.

    A replay of a graph has no mark of the optimizer's step. Its kernels are known by their divisions, which recur
    within a few nodes, and by torch's other pointwise kernels between one and the next; or as kernels for lists.
    """
    found = np.zeros(len(t.tasks.row), bool)
    nodes = np.flatnonzero(graph_nodes(t))
    if not len(nodes):
        return found
    divides, fused = t.tasks_matching(_ADAM, nodes), t.tasks_matching(FUSED, nodes)
    pointwise = t.tasks_matching(_POINTWISE, nodes)
    of_lists, divides_lists = (t.tasks_matching(p, nodes) & ~fused for p in (_OF_LISTS, _ADAM_OF_LISTS))
    launch = t.tasks.launch[nodes]
    for each in distinct(launch[divides & pointwise]).tolist():
        mine = np.flatnonzero(launch == each)
        at = np.flatnonzero((divides & pointwise)[mine])
        near = np.zeros(len(mine), bool)
        for before, after in zip(at[:-1].tolist(), at[1:].tolist(), strict=True):
            near[before : after + 1] |= after - before <= MAX_BETWEEN
        if len(at) >= MIN_UPDATES:
            found[nodes[mine[near & pointwise[mine]]]] = True
    found[nodes[of_lists & among(launch, distinct(launch[divides_lists]))]] = True
    return found


@lru_cache(maxsize=4096)  # all launches of a graph have the same kernels
def functor(kernel: str) -> str:
    """Return what a pointwise kernel of torch's computes ("add", "Mul", "gelu"), the begin of its name if unknown."""
    for match in _FUNCTOR.finditer(kernel):
        name = next(part for part in match.groups() if part)
        if not _WRAPPERS.match(name):
            return name
    return kernel[:40]
