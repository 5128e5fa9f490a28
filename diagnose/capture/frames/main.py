"""The process that samples: it does what it is asked over a socket, and ends with the process that asks."""

from __future__ import annotations

import ctypes
import marshal
import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import Any, TypeAlias

from .layout import Addresses, Layout, Memory, UnreadableError, find_layout
from .reader import FrameReader, Place
from .stretch import Order, Stretch

# Messages between the process that is sampled and the one that samples: tuples, each behind its length.

Message: TypeAlias = tuple[Any, ...]  # a word and what belongs to it; marshal, since both run the same Python

LENGTH = struct.Struct("I")


def send(channel: socket.socket, message: Message) -> None:
    """Send a message."""
    data = marshal.dumps(message)
    channel.sendall(LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket) -> Message | None:
    """Return the next message; None where the other end is closed."""
    head = _exactly(channel, LENGTH.size)
    data = _exactly(channel, *LENGTH.unpack(head)) if head else b""
    if not data:
        return None
    message: Message = marshal.loads(data)
    return message


def _exactly(channel: socket.socket, num: int) -> bytes:
    data = bytearray()
    while len(data) < num:
        piece = channel.recv(num - len(data))
        if not piece:
            return b""
        data += piece
    return bytes(data)


class Service:
    """Answers one process."""

    def __init__(self, pid: int, layout: Layout) -> None:
        self._layout, self._memory = layout, Memory(pid)
        self._reader: FrameReader | None = None
        self.stretch: Stretch | None = None

    def answer(self, message: Message) -> Message:
        """Do what a message asks for."""
        asked: dict[str, Callable[..., Message]] = {
            "attach": self._attach,
            "begin": self._begin,
            "take": self._take,
            "end": self._end,
        }
        try:
            return asked[message[0]](*message[1:])
        except (UnreadableError, OSError) as error:
            return ("failed", str(error))

    def _attach(self, process: tuple[int, ...], libraries: tuple[str, ...], ident: int, known: Place) -> Message:
        """Begin to serve, if the thread that asks is seen at the line at which it waits for the answer."""
        at = Addresses(*process)
        self._reader = FrameReader(self._memory, self._layout, at, libraries)
        # The thread that asks waits for the answer within microseconds, if it has a core.
        end = time.monotonic() + 2.0
        while (seen := self._reader.innermost(at.thread, ident).place) != known:  # not yet
            if time.monotonic() > end:
                self._reader = None
                return ("failed", f"It saw line {seen[1]} of {seen[2]} where line {known[1]} of {known[2]} ran.")
            time.sleep(0.001)
        return ("attached",)

    def _begin(self, *order: Any) -> Message:
        self._stop()
        if self._reader is None:
            return ("failed", "Nothing is attached.")
        self.stretch = Stretch(Order(*order), self._reader, self._memory.pid)
        return ("begun",)

    def _take(self) -> Message:
        """Return what was sampled since the last time."""
        return ("rows", *self.stretch.take()) if self.stretch is not None else ("failed", "Nothing is sampled.")

    def _end(self) -> Message:
        """Return what was sampled since the last time, and sample no more."""
        rows = self._take()
        self._stop()
        return rows

    def _stop(self) -> None:
        if self.stretch is not None:
            self.stretch.close()
        self.stretch = None


def main(descriptor: int, pid: int) -> None:
    """Serve a process over an open socket until it ends or closes its end."""
    os.chdir("/")  # not in a folder of the process that is sampled
    libc = ctypes.CDLL(None)
    libc.prctl(15, b"diagnose-frames", 0, 0, 0)  # PR_SET_NAME
    libc.prctl(29, ctypes.c_ulong(1), 0, 0, 0)  # PR_SET_TIMERSLACK, ns: timed waits end on time
    with socket.socket(fileno=os.dup(descriptor)) as channel:  # a low number, which select needs
        os.close(descriptor)
        try:
            service = Service(pid, find_layout(Memory(os.getpid())))
        except UnreadableError as error:
            send(channel, ("failed", str(error)))
            return
        send(channel, ("ready", os.getpid()))
        while _is_alive(pid):  # looked at each second: forked processes may hold its end open
            due = service.stretch.due_s if service.stretch is not None else None
            ready, _, _ = select.select([channel], [], [], 1.0 if due is None else min(due, 1.0))
            if ready:
                message = receive(channel)
                if message is None:
                    return
                send(channel, service.answer(message))
            if service.stretch is not None:
                service.stretch.look()


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
