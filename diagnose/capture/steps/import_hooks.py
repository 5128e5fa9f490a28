"""Calls back right after a module was imported, so that nothing is imported before the script asks for it.

A script may set environment variables that torch reads while it is imported (OMP_NUM_THREADS,
PYTORCH_ALLOC_CONF, TORCH_LOGS); importing torch ahead of the script would defeat them.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["when_imported"]


def when_imported(name: str, then: Callable[[], None]) -> Callable[[], None]:
    """Call ``then`` once ``name`` has been imported, at once if it already is; return what forgets the request."""
    if name in sys.modules:
        then()
        return lambda: None
    watcher = _Watcher(name, then)
    sys.meta_path.insert(0, watcher)
    return watcher.forget


class _Watcher(MetaPathFinder):
    """Finds one module as the other finders would and wraps its loader."""

    def __init__(self, name: str, then: Callable[[], None]) -> None:
        self.name = name
        self.then = then
        self.searching = False

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,
        target: ModuleType | None = None,
    ) -> ModuleSpec | None:
        """Return the module's own spec with a loader that calls back; None for every other module."""
        if fullname != self.name or self.searching:
            return None
        self.searching = True
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self.searching = False
        if spec is not None and spec.loader is not None:
            spec.loader = _CallingLoader(spec.loader, self)
        return spec

    def forget(self) -> None:
        """Stop watching."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


class _CallingLoader(Loader):
    """Loads like the loader it wraps and calls back afterwards; leaves no trace of itself in the module."""

    def __init__(self, loader: Any, watcher: _Watcher) -> None:  # loaders share no useful type
        self.loader = loader
        self.watcher = watcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self.loader, name)

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Return what the wrapped loader creates."""
        created: ModuleType | None = self.loader.create_module(spec)
        return created

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module, put its own loader back and call back."""
        module.__loader__ = self.loader
        if module.__spec__ is not None:
            module.__spec__.loader = self.loader
        self.loader.exec_module(module)
        self.watcher.forget()
        self.watcher.then()
