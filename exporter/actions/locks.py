"""A lock for each daemon: one exporter at a time acts for it."""

import contextlib
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Mapping
from pathlib import Path

from exporter.model.watchdog import BlockReason

RETRY_SECONDS = 1.0
"""How soon the lock of an exporter that has ended is taken over."""

FIRST_SECONDS = 2.0
"""How long a start waits for the first attempt."""

_ATTEMPTS = 3
_WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

Locks = Mapping[str, BlockReason | None]


class LockFile:
    """A lock in one directory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None

    def take(self) -> BlockReason | None:
        """Hold the lock; return what kept it from that. A file that was removed meanwhile is no lock any more."""
        if self._descriptor is not None and self._is_there(self._descriptor):
            return None
        self._close()
        for _ in range(_ATTEMPTS):
            try:
                descriptor = self._open()
            except OSError:
                return BlockReason.NO_LOCK
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                os.close(descriptor)
                return BlockReason.ANOTHER_EXPORTER if isinstance(error, BlockingIOError) else BlockReason.NO_LOCK
            if self._is_there(descriptor):
                self._descriptor = descriptor
                return None
            os.close(descriptor)
        return BlockReason.NO_LOCK

    def release(self) -> None:
        """Let another exporter have it."""
        if self._descriptor is not None and self._is_there(self._descriptor):
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._close()

    def _open(self) -> int:
        directory = self._path.parent
        directory.mkdir(mode=0o755, exist_ok=True)
        above = directory.stat()
        if above.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"{directory} can be written to by other users")
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PermissionError(f"{self._path} is no file")
            if os.geteuid() == 0:
                # The service's own user must be able to take the lock after root.
                os.fchown(descriptor, above.st_uid, above.st_gid)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _is_there(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(descriptor))
        except OSError:
            return False

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


class _Lock:
    """The lock of one daemon: in each directory where one can be had, and in one at least."""

    def __init__(self, directories: Iterable[Path], pipe_directory: str) -> None:
        self.pipe_directory = pipe_directory
        key = hashlib.sha256(os.fsencode(os.path.realpath(pipe_directory))).hexdigest()[:16]
        self._files = [LockFile(directory / f"act-{key}.lock") for directory in directories]

    def take(self) -> BlockReason | None:
        found = [each.take() for each in self._files]
        if BlockReason.ANOTHER_EXPORTER in found:
            self.release()
            return BlockReason.ANOTHER_EXPORTER
        return None if None in found else BlockReason.NO_LOCK

    def release(self) -> None:
        for each in self._files:
            each.release()


class ActLocks:
    """The locks of the daemons for which this exporter is to act, taken in a thread: a disk may hang."""

    def __init__(self, directories: Iterable[Path], *, retry: float = RETRY_SECONDS) -> None:
        """All exporters that look into one of the `directories` exclude each other."""
        self._directories = sorted(set(directories))
        self._retry = retry
        self._wanted: Mapping[str, str] = {}
        self._locks: dict[str, _Lock] = {}
        self._changed = threading.Condition()
        self._over = False
        self._tried: Mapping[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="act-locks", daemon=True)
        self.found: Locks = {}
        """By daemon, what keeps this exporter from acting, None: it holds the lock. Replaced as a whole."""

    def open(self, wanted: Mapping[str, str]) -> None:
        """Try to take these locks, and wait a moment until that was tried. `wanted` is as in `want`."""
        self._wanted = wanted
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._tried == wanted, timeout=FIRST_SECONDS)

    def want(self, wanted: Mapping[str, str]) -> None:
        """Say for which daemons a lock is wanted, by name, with the pipe directory of each."""
        if wanted != self._wanted:
            with self._changed:
                self._wanted = wanted
                self._changed.notify_all()

    def close(self) -> None:
        """Release all locks."""
        with self._changed:
            self._over = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(FIRST_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                wanted, over = self._wanted, self._over
            self._try({} if over else wanted)
            with self._changed:
                self._tried = wanted
                self._changed.notify_all()
                if over:
                    return
                self._changed.wait_for(lambda: self._over or self._wanted != self._tried, timeout=self._retry)

    def _try(self, wanted: Mapping[str, str]) -> None:
        for name in [name for name, lock in self._locks.items() if wanted.get(name) != lock.pipe_directory]:
            self._locks.pop(name).release()
        for name, pipe_directory in wanted.items():
            if name not in self._locks:
                self._locks[name] = _Lock(self._directories, pipe_directory)
        found = {name: lock.take() for name, lock in self._locks.items()}
        if found != self.found:
            self.found = found
