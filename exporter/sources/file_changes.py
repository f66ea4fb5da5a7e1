"""Tells when open files have been written to (inotify(7)), so that they need not be looked at many times a second."""

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable

IN_MODIFY = 0x2
_EVENT = struct.Struct("iIII")
"""Of an open file: the watch, what happened, and nothing more, as the event names no file in a directory."""

GATHER_SECONDS, PAUSE_SECONDS = 0.02, 0.08
"""How long to wait for what is written with the first of it, and then before the next call, however much is written."""


class FileChanges:
    """Calls `changed`, from a thread of its own, soon after a watched file was written to or truncated.

    Where there is no inotify, nothing can be watched.
    """

    def __init__(self, changed: Callable[[], object]) -> None:
        self._changed = changed
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = threading.Event()
        # A pipe, since a service manager's filter of system calls may refuse eventfd2(2).
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._told: set[int] = set()

    def watch(self, descriptor: int) -> int | None:
        """Watch an open file; return what `forget` takes, None where it cannot be watched."""
        if self._inotify < 0 or self._closing.is_set():
            return None
        # By its descriptor, so that no other file can take its place before it is watched.
        watch: int = self._libc.inotify_add_watch(self._inotify, f"/proc/self/fd/{descriptor}".encode(), IN_MODIFY)
        if watch < 0:
            return None
        if not self._listens():
            return None
        return watch

    def was_told(self, watch: int) -> bool:
        """Whether a change of this file was told of since the last call. Of some file systems, none is."""
        told = watch in self._told
        self._told.discard(watch)
        return told

    def forget(self, watch: int) -> None:
        """Watch a file no longer."""
        self._libc.inotify_rm_watch(self._inotify, watch)

    def close(self) -> None:
        """Watch nothing any more."""
        if self._closing.is_set():
            return
        self._closing.set()
        os.write(self._wake, b"\0")
        if self._thread is not None:
            self._thread.join()
        os.close(self._woken)
        os.close(self._wake)
        if self._inotify >= 0:
            os.close(self._inotify)

    def _listens(self) -> bool:
        """Whether there is a thread to listen; without one, files must be looked at as if nothing were watched."""
        if self._thread is None:
            thread = threading.Thread(target=self._run, name="log-changes", daemon=True)
            with contextlib.suppress(RuntimeError):
                thread.start()
                self._thread = thread
        return self._thread is not None

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        while not self._closing.is_set():
            poll.poll()
            self._closing.wait(GATHER_SECONDS)
            # What was written after this is told by the next event.
            with contextlib.suppress(BlockingIOError):
                self._told.update(watch for watch, *_ in _EVENT.iter_unpack(os.read(self._inotify, _EVENT.size << 12)))
            self._changed()
            self._closing.wait(PAUSE_SECONDS)
