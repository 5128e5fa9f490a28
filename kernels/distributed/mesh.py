"""Groups ranks by their links: NVLink, PCIe, hosts.

What it cures
    `exposed-communication` of collectives that cross between hosts more often than they need to: tensor parallelism
    spread over hosts, or one flat ring where two levels would do.

When it does not help
    One host, whose ranks are all linked alike; and hosts with different numbers of ranks, which no mesh can hold. NCCL
    detects links by itself for its own collectives: a mesh is for what is arranged by hand.

Cost
    One exchange of host names, with ``by="links"`` one of NVML's answers, and process groups for each dimension of the
    mesh, once.

Numerics
    None by itself.

Example::

    from diagnose.kernels.distributed.mesh import build_mesh, hosts, two_levels

    log(hosts())  # [[0, 1]]: the ranks of each host
    mesh = build_mesh("cpu", {"replicate": 1, "shard": 2})  # the last dimension has the fastest links
    group = mesh["shard"].get_group()
    near = two_levels("cpu", by="links")  # on one host: groups of GPUs × the GPUs of a group that NVLink joins
"""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from diagnose.kernels.distributed._topology import link_groups, link_levels

__all__ = ["build_mesh", "hosts", "linked_ranks", "two_levels"]

INSIDE_A_HOST = frozenset({"tensor"})
"""Dimensions that exchange activations in every layer, forward and backward: not to be spread over hosts."""


def hosts(host: str | None = None) -> list[list[int]]:
    """Return the ranks of each host, by the names that ranks give; all ranks call it.

    ``host`` is what this rank calls its host: its name by default, and ``GROUP_RANK`` where torchrun set it, since
    containers may share names.

    Raises:
        RuntimeError: there is no process group.
    """
    _check_started()
    mine = host or f"{socket.gethostname()}/{os.environ.get('GROUP_RANK', '')}"
    names: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(names, mine)
    return [[rank for rank, name in enumerate(names) if name == other] for other in dict.fromkeys(names)]


def build_mesh(device_type: str, sizes: Mapping[str, int], *, host: str | None = None) -> DeviceMesh:
    """Return a mesh with these dimensions, outermost first; one size may be -1, for all ranks that are left.

    A dimension called ``tensor`` must be the last, and lie within a host.

    Raises:
        RuntimeError: there is no process group.
        ValueError: the sizes do not multiply to the number of ranks, or ``tensor`` reaches over hosts.
    """
    _check_started()
    shape = _filled(sizes, dist.get_world_size())
    inner = INSIDE_A_HOST & set(shape)
    if inner:
        if list(shape)[-1] not in inner:
            raise ValueError(f"The dimension 'tensor' must come last, on the fastest links, not as in {list(shape)}.")
        _check_inside(shape["tensor"], hosts(host))
    return init_device_mesh(device_type, tuple(shape.values()), mesh_dim_names=tuple(shape))


def linked_ranks(*, host: str | None = None, uuid: str | None = None, nvml: Any = None) -> list[list[int]]:
    """Return the ranks of each group with the fastest links between them; all ranks call it.

    On several hosts those of each host: no link within one is as slow as the network. On one host those whose GPUs
    NVLink joins, else those below one PCIe bridge or socket where others lie beyond it; all ranks where the links are
    alike, where groups would differ in size, and where NVML has no answer. Each rank's GPU is torch's current device,
    or that of ``uuid``; call ``torch.cuda.set_device`` first. ``nvml`` is the module that is asked (pynvml).

    Raises:
        RuntimeError: there is no process group.
    """
    by_host = hosts(host)
    if len(by_host) > 1:
        return by_host
    uuids: list[str] = [""] * dist.get_world_size()
    dist.all_gather_object(uuids, uuid if uuid is not None else _current_uuid())
    answer: list[Any] = [None]
    if dist.get_rank() == 0:  # one rank decides: drivers could answer differently in containers
        answer = [_groups(uuids, nvml)]
    dist.broadcast_object_list(answer)
    found: list[list[int]] = answer[0]
    return found


def two_levels(device_type: str, *, by: Literal["host", "links"] = "host", host: str | None = None) -> DeviceMesh:
    """Return a mesh of hosts × ranks of a host, for hierarchical reduction and for hybrid sharding.

    With ``by="links"`` the ranks of a single host are arranged as ``linked_ranks`` groups them. Hybrid sharding over
    such a mesh keeps a copy of the model in each group.

    Raises:
        RuntimeError: there is no process group.
        ValueError: hosts have different numbers of ranks, or their ranks do not follow each other.
    """
    if by not in ("host", "links"):
        raise ValueError(f"two_levels arranges by 'host' or by 'links', not by {by!r}.")
    found = hosts(host)
    size = len(found[0])
    if by == "links" and len(found) == 1:
        groups = linked_ranks(host=host) if device_type == "cuda" else found
        return DeviceMesh(device_type, groups, mesh_dim_names=("replicate", "shard"))
    if any(ranks != list(range(i * size, (i + 1) * size)) for i, ranks in enumerate(found)):
        raise ValueError(
            f"A mesh needs hosts of equally many ranks in a row, not {found}; start as many ranks on each host."
        )
    return init_device_mesh(device_type, (len(found), size), mesh_dim_names=("replicate", "shard"))


def _current_uuid() -> str:
    """Return the UUID of this rank's GPU, "" without one."""
    if not torch.cuda.is_available():
        return ""
    return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))


def _groups(uuids: list[str], nvml: Any) -> list[list[int]]:
    """Return the groups of a host's ranks; one where GPUs are not known, or ranks share them."""
    if "" in uuids or len(set(uuids)) < len(uuids):
        return [list(range(len(uuids)))]
    try:
        if nvml is None:
            import pynvml

            nvml = pynvml
        nvml.nvmlInit()
    except Exception:  # NVML errors derive from Exception; no driver is an answer
        return [list(range(len(uuids)))]
    try:
        return link_groups(link_levels(nvml, uuids))
    finally:
        nvml.nvmlShutdown()


def _filled(sizes: Mapping[str, int], world: int) -> dict[str, int]:
    known = math.prod(size for size in sizes.values() if size != -1)
    open_ = [name for name, size in sizes.items() if size == -1]
    if len(open_) > 1 or any(size < 1 and size != -1 for size in sizes.values()) or not sizes:
        raise ValueError(f"A mesh needs sizes of one or more, and one of -1 at most, not {dict(sizes)}.")
    shape = {name: world // known if size == -1 else size for name, size in sizes.items()}
    if math.prod(shape.values()) != world:
        raise ValueError(f"The mesh {shape} has {math.prod(shape.values())} places, and there are {world} ranks.")
    return shape


def _check_inside(size: int, by_host: list[list[int]]) -> None:
    place = {rank: number for number, ranks in enumerate(by_host) for rank in ranks}
    for first in range(0, len(place), size):
        if len({place[rank] for rank in range(first, first + size)}) > 1:
            raise ValueError(
                f"The dimension 'tensor' of {size} ranks would reach over hosts, which have {len(by_host[0])} ranks "
                "each; choose a size that divides that, and shard or replicate between hosts."
            )


def _check_started() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError("There is no process group; start with torchrun and call dist.init_process_group first.")
