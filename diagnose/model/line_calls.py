"""What a line of the script calls, as its text shows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from diagnose.model.diagnosis import Finding

SAVES_SHARDS = re.compile(r"\b(dcp|dist_cp|distributed\.checkpoint)\.save\(")
SAVES = re.compile(
    r"\btorch\.save\(|\bsave_(checkpoint|pretrained|state|model|file)\w*\(|\.save_checkpoint\(|" + SAVES_SHARDS.pattern
)
LOADS = re.compile(r"\btorch\.load\(|\.load_state_dict\(|\.from_pretrained\(|\bload_(checkpoint|file)\w*\(")
SHARDS = re.compile(r"\b(fully_shard|FSDP|FullyShardedDataParallel)\(")
MEETS = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|all_to_all|broadcast|barrier|gather|scatter|reduce|recv|irecv)"
    r"(_into_tensor|_object|_object_list|_list|_tensor|_single|_coalesced)?\("
    r"|\bwait_for_everyone\("
)
"""What waits for other ranks."""


def calls(finding: Finding, pattern: re.Pattern[str]) -> bool:
    """Return whether the finding's line is such a call; of a finding of the whole run, or a line that calls it."""
    places = finding.where[:1] if finding.share is None else finding.where[:3]
    return any(pattern.search(place.code or "") for place in places)
