"""The store that the script's ranks share, lent to the process that waits for the script.

The script's process has torch and the store; the process that started it has the analysis. Once the capture is written,
the script's process serves requests over a socket: put bytes under a key, get them. Nothing else crosses it.
"""

from __future__ import annotations

import contextlib
import socket
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import msgspec

from diagnose.capture.steps.replacing import Undo, replace_function

__all__ = ["MAX_VALUE_BYTES", "KeptStore", "StoreGone", "StoreLink", "serve_store"]

MAX_VALUE_BYTES: Final = 7 << 20  # torch's TCPStore takes 8 MiB at a time
MAX_MESSAGE_BYTES: Final = MAX_VALUE_BYTES + (1 << 16)
SLICE_S = 1.0  # of a wait for a key: in between signals are handled
MIN_WAIT_S = 0.01  # less than a millisecond means no limit to torch
_HEAD_BYTES = 4


class StoreGone(Exception):  # an event of the run, and no error of anybody
    """The store, or the process that lends it, is no longer there."""


class _Request(msgspec.Struct, array_like=True):
    key: str
    data: bytes | None = None  # None: get
    wait_s: float = 0.0


class _Reply(msgspec.Struct, array_like=True):
    data: bytes | None = None
    fault: str = ""


class _Offer(msgspec.Struct, array_like=True):
    folder: str
    run_id: str


class KeptStore:
    """Keeps the store of the default process group when the script leaves the group."""

    def __init__(self) -> None:
        self._store: Any = None
        self._undo: list[Undo] = []

    def install(self) -> None:
        """Watch for the end of the group; torch has just been imported."""
        import torch.distributed

        if not torch.distributed.is_available():
            return
        for module in (torch.distributed, torch.distributed.distributed_c10d):
            self._undo.append(replace_function(module, "destroy_process_group", self._before_destroy))
            self._undo.append(replace_function(module, "init_process_group", self._before_init))

    def remove(self) -> None:
        """Watch no longer, and keep the store of a group that is still there."""
        while self._undo:
            self._undo.pop()()
        self.keep()

    def keep(self) -> None:
        """Keep the store of the group, where there is one."""
        module = sys.modules.get("torch.distributed")
        if module is None or not module.is_available() or not module.is_initialized():
            return
        with contextlib.suppress(RuntimeError, ValueError, AttributeError):
            self._store = module.distributed_c10d._get_default_store()

    @property
    def store(self) -> Any:
        """Return what was kept, None where the script had no group."""
        return self._store

    def _before_destroy(self, destroy: Callable[..., Any]) -> Callable[..., object]:
        def destroyed(*args: Any, **kwargs: Any) -> object:
            self.keep()
            return destroy(*args, **kwargs)

        return destroyed

    def _before_init(self, join: Callable[..., Any]) -> Callable[..., object]:
        def joined(*args: Any, **kwargs: Any) -> object:
            self._store = None  # a new group may need the port of the old one
            return join(*args, **kwargs)

        return joined


def serve_store(store: Any, descriptor: int, folder: Path, run_id: str) -> None:
    """Offer the store over an open socket, and serve it until the other side closes it."""
    with socket.socket(fileno=descriptor) as link, contextlib.suppress(OSError, KeyboardInterrupt):
        _send(link, _Offer(str(folder), run_id))
        while (message := _receive(link)) is not None:
            _send(link, _answer(store, msgspec.msgpack.decode(message, type=_Request)))


def _answer(store: Any, request: _Request) -> _Reply:
    try:
        if request.data is not None:
            store.set(request.key, request.data)
            return _Reply()
        return _Reply(_wait_for(store, request.key, request.wait_s))
    except Exception as error:  # torch has a type for each backend's faults, and they changed from release to release
        return _Reply(fault=f"{type(error).__name__}: {error}"[:300])


def _wait_for(store: Any, key: str, wait_s: float) -> bytes | None:
    """Return what is stored under a key, None where it does not come in time."""
    end = time.monotonic() + wait_s
    while not store.check([key]):  # raises where the store is gone; a wait that ends in vain looks the same
        left = end - time.monotonic()
        if left <= 0:
            return None
        with contextlib.suppress(RuntimeError):
            store.wait([key], timedelta(seconds=min(max(left, MIN_WAIT_S), SLICE_S)))
    data = bytes(store.get(key))
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError("the value is too large")
    return data


class StoreLink:
    """The other side: the store as the process sees it that waits for the script."""

    def __init__(self, link: socket.socket) -> None:
        self._link = link
        self.folder = Path()  # the capture of this process
        self.run_id = ""

    def accept(self) -> bool:
        """Return whether the store is offered; the script's process has begun to send, or has ended."""
        with contextlib.suppress(OSError):
            message = _receive(self._link)
            if message is not None:
                offer = msgspec.msgpack.decode(message, type=_Offer)
                self.folder, self.run_id = Path(offer.folder), offer.run_id
                return True
        return False

    def put(self, key: str, data: bytes) -> None:
        """Store bytes for the other ranks; what is larger than ``MAX_VALUE_BYTES`` is not for it.

        Raises:
            StoreGone: the store is no longer there.
        """
        self._ask(_Request(f"diagnose/{self.run_id}/{key}", data))

    def get(self, key: str, wait_s: float) -> bytes | None:
        """Return what a rank has stored, None where it does not come in time.

        Raises:
            StoreGone: the store is no longer there.
        """
        return self._ask(_Request(f"diagnose/{self.run_id}/{key}", wait_s=wait_s)).data

    def _ask(self, request: _Request) -> _Reply:
        try:
            _send(self._link, request)
            message = _receive(self._link)
        except OSError as error:
            raise StoreGone(str(error)) from error
        if message is None:
            raise StoreGone("the script's process has ended")
        reply = msgspec.msgpack.decode(message, type=_Reply)
        if reply.fault:
            raise StoreGone(reply.fault)
        return reply


def _send(link: socket.socket, message: msgspec.Struct) -> None:
    data = msgspec.msgpack.encode(message)
    link.sendall(len(data).to_bytes(_HEAD_BYTES, "big") + data)


def _receive(link: socket.socket) -> bytes | None:
    """Return the next message, None where the other side has closed the socket."""
    head = _exactly(link, _HEAD_BYTES)
    size = int.from_bytes(head, "big")
    if len(head) < _HEAD_BYTES or size > MAX_MESSAGE_BYTES:
        return None
    data = _exactly(link, size)
    return data if len(data) == size else None


def _exactly(link: socket.socket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = link.recv(size - len(data))
        if not part:
            break
        data += part
    return bytes(data)
