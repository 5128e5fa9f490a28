"""What the ranks of a run send each other when their captures are written: one of them answers for all."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from diagnose.capture.process.rank_processes import StoreGone, StoreLink
from diagnose.errors import DiagnoseError, is_debugging
from diagnose.model.files import printable, reason
from diagnose.text.progress import Progress

if TYPE_CHECKING:
    from diagnose.pipeline.exchange import Received

__all__ = ["Exchange"]


class Exchange:
    """One rank's part in it; ``received`` is what the rank that answers has got, None elsewhere and without a store."""

    def __init__(self, rank: int, ranks: Collection[int], progress: Progress) -> None:
        self.received: Received | None = None
        self.is_cut = False  # the store went before all had come
        self._rank, self._ranks, self._progress = rank, sorted(ranks), progress

    def run(self, store: StoreLink) -> None:
        """Send this rank's summary, or collect those of all ranks. What fails here costs the exchange alone."""
        try:
            self._exchange(store)
        except Exception as error:
            if is_debugging():
                raise
            self._progress.report(
                f"The summaries of the ranks could not be exchanged ({type(error).__name__}: {error})."
            )

    def _exchange(self, store: StoreLink) -> None:
        from diagnose.pipeline.exchange import gather, own_files, take_part, write_received

        messages = _Messages(store)
        try:
            files = own_files(store.folder, self._rank)
            if self._rank != self._ranks[0]:
                take_part(files, self._rank, messages)
                return
            with self._progress.phase(f"collecting the summaries of {len(self._ranks)} ranks"):
                self.received = gather(files, self._rank, self._ranks, messages)
            if messages.is_gone:
                self.is_cut, self.received = True, replace(self.received, absent={})  # their captures may still come
            write_received(store.folder, self.received)
        except DiagnoseError as error:
            self._progress.report(str(error))
        except OSError as error:
            self._progress.report(
                f"What other ranks sent could not be kept in {printable(store.folder)}: {reason(error)}"
            )


class _Messages:
    """The ranks' store; once it is gone nothing comes any more."""

    def __init__(self, store: StoreLink) -> None:
        self._store, self.is_gone = store, False

    def put(self, key: str, data: bytes) -> None:
        """Store bytes for the other ranks."""
        if not self.is_gone:
            try:
                self._store.put(key, data)
            except StoreGone:
                self.is_gone = True

    def get(self, key: str, wait_s: float) -> bytes | None:
        """Return what a rank has stored, None where it does not come."""
        if not self.is_gone:
            try:
                return self._store.get(key, wait_s)
            except StoreGone:
                self.is_gone = True
        return None
