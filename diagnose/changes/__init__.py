"""One change, one file: its page is the file's docstring, its id is the file's name. Changes of one shape share one.

``CHANGE`` is all that is known of a change: what a prescription shows, what a replay does with it, how a trial makes it
in an unmodified script, and how it is written into one. A file of this folder is a change by having a CHANGE: nothing
else has to be registered. The files with several changes, each with its page, are the FAMILIES. Which rules prescribe a
change is a field of their META. Other packages add changes by entry points of the group "diagnose.changes"
(docs/plugins.md).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from types import ModuleType

from diagnose.changes.common.change import Change, Patch
from diagnose.model.limits import HOW_TRIED, TrialMethod
from diagnose.model.plugins import load_plugins

__all__ = ["CHANGES", "any_compiles", "edits_script", "group_of", "patch_of", "trial_method", "trial_words"]


FAMILIES: Mapping[str, tuple[str, ...]] = {
    "allocator": ("cache-device-memory", "keep-cached-memory", "expandable-segments", "round-allocations"),
    "compressed_gradients": (
        "compress-gradients", "eight-bit-gradients", "low-rank-gradients", "one-bit-gradients", "top-k-gradients",
        "hierarchical-exchange",
    ),
    "ddp_arguments": ("no-buffer-broadcast", "no-unused-search"),
    "dead_work": ("compute-in-branch", "skip-frozen", "skip-zero-term", "detach-inputs"),
    "fewer_bits": ("allow-tf32", "autocast"),
    "less_memory": (
        "eight-bit-optimizer", "offload-optimizer", "shard-optimizer", "offload-activations", "checkpoint-blocks",
    ),
    "keep_workers": ("keep-workers", "keep-iterator"),
    "optimizer_implementations": ("fused-optimizer", "foreach-optimizer"),
    "reorder_product": ("reorder-product", "compute-first"),
    "reuse_result": ("reuse-result", "one-backward"),
    "settings": ("cudnn-benchmark", "flush-subnormals", "one-thread"),
}  # fmt: skip
"""The files with several CHANGES, in this order."""


class _Changes(Mapping[str, Change]):
    """All changes by id; a file is imported when it is asked for, since the process of a trial needs few."""

    def __init__(self) -> None:
        names = (module.name for module in pkgutil.iter_modules(__path__) if not module.ispkg)
        self._homes = {name.replace("_", "-"): name for name in names if name not in FAMILIES}
        self._homes |= {name: family for family, members in FAMILIES.items() for name in members}
        own = frozenset(self._homes)
        self.plugins = load_plugins("diagnose.changes", "CHANGE", Change, own)
        self._ids = tuple(sorted((*own, *self.plugins.modules)))

    def __getitem__(self, name: str) -> Change:
        if name not in self._ids:
            raise KeyError(name)
        module = self._module(name)
        family = FAMILIES.get(self._homes.get(name, ""), ())
        found = module.CHANGES[family.index(name)] if family else module.CHANGE
        assert isinstance(found, Change), "a file of this folder holds a change"
        return found

    def page(self, name: str) -> str:
        """Return the page of a change: its own, else the docstring of its file."""
        return self[name].page or self._module(name).__doc__ or ""

    def _module(self, name: str) -> ModuleType:
        return self.plugins.modules.get(name) or import_module(f"{__name__}.{self._homes[name]}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)


CHANGES = _Changes()


def patch_of(name: str) -> Patch | None:
    """Return how a trial makes a change of which no diff applies; None if it is unknown, or made in its text alone."""
    change = CHANGES.get(name)
    return change.patch if change is not None else None


def group_of(name: str) -> str:
    """Return what a change changes that others change otherwise, "" where there is nothing such."""
    patch = patch_of(name)
    return patch.group if patch is not None else ""


def edits_script(name: str) -> bool:
    """Return whether a trial makes a change in the script's text: no patch does, and losses can be compared."""
    change = CHANGES.get(name)
    if change is None or change.patch is not None or not (change.edit or change.edits_expressions):
        return False
    return change.numerics.promise is not None


def trial_method(name: str) -> TrialMethod:
    """Return how a trial makes a change."""
    return "patch" if patch_of(name) is not None else "edited copy" if edits_script(name) else "by hand"


def trial_words(name: str) -> str:
    """Return how a trial makes a change, in a sentence."""
    patch, how = patch_of(name), HOW_TRIED[trial_method(name)]
    if patch is None:
        return f"{how}."
    by = ", by environment variables" if patch.environment else ""
    unless = " if its diff does not apply" if CHANGES[name].edit is not None else ""
    needs = "; needs a GPU" if patch.needs_gpu else ""
    takes = "; compiling may take minutes" if patch.compiles else ""
    return f"{how}{by}{unless}{needs}{takes}."


def any_compiles(ids: Iterable[str]) -> bool:
    """Return whether one of the changes compiles."""
    return any(patch.compiles for patch in map(patch_of, ids) if patch is not None)
