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
"""An event of an open file: watch, mask, cookie, and length 0, because it names no file of a directory."""

_OVERFLOW = -1  # the watch of an event that reports lost events (IN_Q_OVERFLOW)
GATHER_SECONDS = 0.02  # wait after the first event, so that one call reports all writes of this time
Changed = Callable[[], object]


class FileChanges:
    """Calls back soon after a watched file was written or truncated, from one thread for all files.

    That thread never accesses a watched file, so a file system that hangs delays no other file. Without inotify,
    nothing can be watched.
    """

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify: int = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        self._closing = threading.Event()
        # A pipe, because the system call filter of a service manager may refuse eventfd2(2).
        self._wake_reader, self._wake_writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._watches: dict[int, dict[Changed, bool]] = {}
        """The callbacks of each watch, and whether each was called. Several followers of a file share its watch."""

    def watch(self, descriptor: int, changed: Changed) -> int | None:
        """Return the watch of a file for `forget`, or None. May hang; a write before this returns may go unreported."""
        if self._inotify < 0 or self._closing.is_set():
            return None
        # The path of the descriptor, so that no other file can take the place of this one. No lock is held, because
        # the call may hang.
        watch: int = self._libc.inotify_add_watch(self._inotify, f"/proc/self/fd/{descriptor}".encode(), IN_MODIFY)
        if watch < 0:
            return None
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="log-changes", daemon=True)
                try:
                    thread.start()
                except RuntimeError:
                    return None
                self._thread = thread
            self._watches.setdefault(watch, {})[changed] = False
        return watch

    def was_notified(self, watch: int, changed: Changed) -> bool:
        """Return whether `changed` was called since the last call of this. Some file systems never notify."""
        with self._lock:
            callbacks = self._watches.get(watch, {})
            notified = callbacks.get(changed, False)
            if notified:
                callbacks[changed] = False
            return notified

    def forget(self, watch: int, changed: Changed) -> None:
        """Stop the calls for this file."""
        with self._lock:
            callbacks = self._watches.get(watch, {})
            callbacks.pop(changed, None)
            if not callbacks and self._watches.pop(watch, None) is not None and not self._closing.is_set():
                self._libc.inotify_rm_watch(self._inotify, watch)

    def close(self) -> None:
        """Stop the thread and all watches."""
        with self._lock:
            if self._closing.is_set():
                return
            self._closing.set()
        os.write(self._wake_writer, b"\0")
        if self._thread is not None:
            self._thread.join()
        for descriptor in (self._wake_reader, self._wake_writer, self._inotify):
            if descriptor >= 0:
                os.close(descriptor)

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._inotify, select.POLLIN)
        poll.register(self._wake_reader, select.POLLIN)
        while not self._closing.is_set():
            poll.poll()
            self._closing.wait(GATHER_SECONDS)
            written: set[int] = set()
            with contextlib.suppress(BlockingIOError):
                while events := os.read(self._inotify, _EVENT.size << 12):
                    written.update(watch for watch, *_ in _EVENT.iter_unpack(events))
            with self._lock:
                watches = self._watches.keys() if _OVERFLOW in written else written & self._watches.keys()
                for watch in watches:
                    self._watches[watch] = dict.fromkeys(self._watches[watch], True)
                callbacks = {changed for watch in watches for changed in self._watches[watch]}
            for changed in callbacks:
                changed()
