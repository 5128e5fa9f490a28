"""The process that samples this one from outside: started, asked and ended so that a script does not notice it."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import platform
import socket
import subprocess
import sys
import sysconfig
import threading
import weakref
from pathlib import Path

from diagnose.capture.frames.layout import addresses
from diagnose.capture.frames.messages import Message, receive, send

__all__ = ["LostError", "SamplerProcess"]

PATIENCE_S = 10.0  # for an answer, which takes a millisecond, and the start of Python, which takes 50
PR_SET_PTRACER = 0x59616D61  # linux/prctl.h: who may read this process's memory where that is restricted (Yama)
CODE = (
    "import sys; sys.path.append(sys.argv[1]); from frames.main import main; main(int(sys.argv[2]), int(sys.argv[3]))"
)
SHELL = '"$@" </dev/null >/dev/null 2>&1 &'  # the shell ends at once, so that the process is no child of the script's
KEPT = ("LD_LIBRARY_PATH", "PATH")  # of the environment: our own mark would let the process be ended with the script's


class LostError(Exception):
    """The process cannot sample, and why."""


class SamplerProcess:
    """A process that reads the frames of this one; ``failure`` is why there is none."""

    def __init__(self) -> None:
        self.failure = _unfit()
        self._channel: socket.socket | None = None
        self._inode = self._pid = 0
        self._asking = self._attached = self._is_tracer = False

    def start(self) -> None:
        """Start it, without waiting until it is ready; no effect where it runs or failed."""
        if self._channel is not None or self.failure:
            return
        own, lent = socket.socketpair()
        try:
            folder, number = Path(__file__).resolve().parents[1], lent.fileno()
            python = [sys.executable, "-I", "-S", *(["-B"] if sys.dont_write_bytecode else [])]
            command = ["/bin/sh", "-c", SHELL, "sh", *python, "-c", CODE, str(folder), str(number), str(os.getpid())]
            kept = {name: os.environ[name] for name in KEPT if name in os.environ}
            shell = subprocess.Popen(command, pass_fds=(number,), start_new_session=True, env=kept)
            shell.wait()
        except OSError as error:
            own.close()
            self.failure = f"It could not be started: {error.strerror}."
            return
        finally:
            lent.close()
        own.settimeout(PATIENCE_S)
        self._channel, self._inode = own, os.fstat(own.fileno()).st_ino
        _RUNNING.add(self)

    def attach(self, libraries: tuple[str, ...]) -> bool:
        """Return whether it sees a line of this thread that is known; ``libraries`` begin the files of no user code."""
        if self._attached or self.failure:
            return self._attached and not self.failure
        try:
            self.start()
            self._await_ready()
            seen = self._probe(libraries)
        except LostError:
            return False
        if seen[0] != "attached":
            self._fail(str(seen[1]))
        self._attached = not self.failure
        return self._attached

    def _await_ready(self) -> None:
        ready = self._receive()
        if ready[0] != "ready":
            raise self._fail(str(ready[1]))
        self._pid = int(ready[1])

    def _probe(self, libraries: tuple[str, ...]) -> Message:
        """Ask what it sees of this thread, which waits for the answer meanwhile."""
        code = _await_answer.__code__
        known = code.co_filename, max(line for *_, line in code.co_lines() if line is not None), code.co_name
        question = ("attach", tuple(addresses()), libraries, threading.get_ident(), known)
        seen = self.ask(*question)
        if seen == ("failed", os.strerror(errno.EPERM)):
            self._is_tracer = True
            _allow(self._pid)
            seen = self.ask(*question)
        return seen

    def ask(self, *message: object) -> Message:
        """Return the answer to a message.

        Raises:
            LostError: there is none. None will be asked for again.
        """
        if self.failure:
            raise LostError(self.failure)
        channel = self._own_channel()
        if self._asking:  # an exception, such as KeyboardInterrupt, came before the answer
            raise self._fail("It was interrupted.")
        self._asking = True
        try:
            send(channel, message)
            _await_answer(channel)
        except OSError as error:
            raise self._fail(f"It does not answer: {error}.") from error
        answer = self._receive()
        self._asking = False
        return answer

    def close(self) -> None:
        """End it."""
        if self._channel is None:
            return
        if self._is_open():
            self._channel.close()
        else:  # the number belongs to a file of the script's by now
            self._channel.detach()
        self._channel, self._attached = None, False
        self.failure = self.failure or "It was ended."
        if self._is_tracer:
            _allow(0)

    def forget(self) -> None:
        """Leave it to the process that this one was forked from."""
        if self._channel is not None and self._is_open():
            self._channel.close()
        self._channel, self.failure = None, "It samples another process."

    def _own_channel(self) -> socket.socket:
        if self._channel is None:
            raise self._fail("It was not started.")
        if not self._is_open():
            raise self._fail("The script closed its socket.")
        return self._channel

    def _is_open(self) -> bool:
        """Return whether the socket's number is still the socket's: a script may close all files that it finds open."""
        try:
            return self._channel is not None and os.fstat(self._channel.fileno()).st_ino == self._inode
        except OSError:
            return False

    def _receive(self) -> Message:
        try:
            answer = receive(self._own_channel())
        except OSError as error:
            raise self._fail(f"It does not answer: {error}.") from error
        if answer is None:
            raise self._fail("It has ended.")
        return answer

    def _fail(self, reason: str) -> LostError:
        """End it for good, and return what is to be raised."""
        self.failure = reason
        self.close()
        return LostError(reason)


def _await_answer(channel: socket.socket) -> None:
    channel.recv(1, socket.MSG_PEEK)


def _unfit() -> str:
    """Return why there can be no such process on this system, "" where there can."""
    if sys.platform != "linux" or sys.maxsize < 2**32 or sys.byteorder != "little":
        return "Memory of processes is read on Linux with 64 bits only."
    if platform.python_implementation() != "CPython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
        return "This interpreter's frames are not known."
    if not sys.executable or not Path(__file__).exists():
        return "There is no Python to run it, or diagnose is in an archive."
    return ""


def _allow(pid: int) -> None:
    """Let a process read this one's memory; none with 0."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(PR_SET_PTRACER, ctypes.c_ulong(pid), 0, 0, 0)


_RUNNING: weakref.WeakSet[SamplerProcess] = weakref.WeakSet()


def _forget_in_forked() -> None:
    for process in list(_RUNNING):
        process.forget()
    _RUNNING.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_in_forked)
