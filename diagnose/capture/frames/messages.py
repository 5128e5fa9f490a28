"""Messages between the process that is sampled and the one that samples: tuples, each behind its length."""

from __future__ import annotations

import marshal
import socket
import struct
from typing import Any, TypeAlias

__all__ = ["Message", "receive", "send"]

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
