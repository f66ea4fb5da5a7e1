"""Notifications of writes to open files (inotify(7))."""

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

_OVERFLOW = -1
"""The watch of an event that says that others were lost (IN_Q_OVERFLOW)."""

GATHER_SECONDS = 0.02
"""How long to wait for what is written with the first of it, however many files are written to."""

Changed = Callable[[], object]


class FileChanges:
    """Calls back, from one thread for all, soon after a watched file was written to or truncated.

    That thread never touches a watched file, so one whose file system hangs delays no other. If there is no inotify,
    nothing can be watched.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = threading.Event()
        # A pipe, since a service manager's filter of system calls may refuse eventfd2(2).
        self._woken, self._wake = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._watches: dict[int, dict[Changed, bool]] = {}
        """By watch, whom to call, and whether a call was made. Several may watch one file, which has one watch."""

    def watch(self, descriptor: int, changed: Changed) -> int | None:
        """Watch an open file; return what `forget` takes, None where it cannot be watched.

        This may hang as the file system does. What was written before it returns may not be told.
        """
        if self._inotify < 0 or self._closing.is_set():
            return None
        # By its descriptor, so that no other file can take its place before it is watched. It may hang, so the lock
        # is not held.
        watch: int = self._libc.inotify_add_watch(self._inotify, f"/proc/self/fd/{descriptor}".encode(), IN_MODIFY)
        if watch < 0:
            return None
        with self._lock:
            if not self._listens():
                return None
            self._watches.setdefault(watch, {})[changed] = False
        return watch

    def was_told(self, watch: int, changed: Changed) -> bool:
        """Whether a change of this file was told of since the last call. Of some file systems, none is."""
        with self._lock:
            callers = self._watches.get(watch, {})
            told = callers.get(changed, False)
            if told:
                callers[changed] = False
            return told

    def forget(self, watch: int, changed: Changed) -> None:
        """Call back no longer for this file."""
        with self._lock:
            callers = self._watches.get(watch, {})
            callers.pop(changed, None)
            if not callers and self._watches.pop(watch, None) is not None and not self._closing.is_set():
                self._libc.inotify_rm_watch(self._inotify, watch)

    def close(self) -> None:
        """Watch nothing any more."""
        with self._lock:
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
            for changed in self._callers(self._written()):
                changed()

    def _written(self) -> set[int]:
        """The watches of the files that were written to. What was written after this is told by the next event."""
        written: set[int] = set()
        with contextlib.suppress(BlockingIOError):
            while events := os.read(self._inotify, _EVENT.size << 12):
                written.update(watch for watch, *_ in _EVENT.iter_unpack(events))
        return written

    def _callers(self, written: set[int]) -> set[Changed]:
        with self._lock:
            told = self._watches.keys() if _OVERFLOW in written else written & self._watches.keys()
            for watch in told:
                self._watches[watch] = dict.fromkeys(self._watches[watch], True)
            return {changed for watch in told for changed in self._watches[watch]}
