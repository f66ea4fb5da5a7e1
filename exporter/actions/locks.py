"""A lock for each daemon: one exporter at a time acts for it."""

import contextlib
import fcntl
import hashlib
import os
import stat
import threading
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from exporter.model.watchdog import BlockReason

RETRY_SECONDS = 1.0  # how soon the exporter takes over the lock of another one that has ended
FIRST_SECONDS = 2.0  # how long a start waits for the first attempt
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
        """Take the lock, or check that its file, without which it locks nothing, exists. Return why it is not held."""
        if self._descriptor is not None and self._is_present(self._descriptor):
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
            if self._is_present(descriptor):
                self._descriptor = descriptor
                return None
            os.close(descriptor)
        return BlockReason.NO_LOCK

    def release(self) -> None:
        """Release the lock and remove its file."""
        if self._descriptor is not None and self._is_present(self._descriptor):
            with contextlib.suppress(OSError):
                self._path.unlink()
        self._close()

    def _open(self) -> int:
        directory = self._path.parent
        directory.mkdir(mode=0o755, exist_ok=True)
        owner = directory.stat()
        if owner.st_uid == os.geteuid() and not owner.st_mode & stat.S_ISVTX and directory.is_mount():
            # The kubelet lets all users write to an emptyDir volume, which only the exporter's container has.
            directory.chmod(owner.st_mode & ~_WRITABLE_BY_OTHERS)
            owner = directory.stat()
        if owner.st_mode & _WRITABLE_BY_OTHERS:
            raise PermissionError(f"{directory} is writable by other users")
        descriptor = os.open(self._path, _FLAGS, 0o600)
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise PermissionError(f"{self._path} is not a regular file")
            if os.geteuid() == 0:
                # The service's own user must be able to take the lock after root.
                os.fchown(descriptor, owner.st_uid, owner.st_gid)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor

    def _is_present(self, descriptor: int) -> bool:
        try:
            return os.path.samestat(self._path.lstat(), os.fstat(descriptor))
        except OSError:
            return False

    def _close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _take(files: Sequence[LockFile]) -> BlockReason | None:
    """Take the lock of one daemon: no other exporter has it in any directory, and this one has it in one."""
    found = [file.take() for file in files]
    if BlockReason.ANOTHER_EXPORTER in found:
        for file in files:
            file.release()
        return BlockReason.ANOTHER_EXPORTER
    return None if None in found else BlockReason.NO_LOCK


class ActLocks:
    """The locks of the daemons for which this exporter acts. A thread takes them, because a disk may hang."""

    def __init__(self, directories: Iterable[Path], *, retry: float = RETRY_SECONDS) -> None:
        """Exporters that have one of the `directories` in common exclude each other."""
        self._directories = sorted(set(directories))
        self._retry = retry
        self._wanted: Mapping[str, str] = {}
        self._locks: dict[str, tuple[str, list[LockFile]]] = {}
        """By daemon, its pipe directory, and the lock's file in each directory."""
        self._changed = threading.Condition()
        self._closed = False
        self._tried: Mapping[str, str] = {}
        self._thread = threading.Thread(target=self._run, name="act-locks", daemon=True)
        self.found: Locks = {}
        """By daemon, why this exporter does not hold the lock; None if it does. Replaced as a whole."""

    def open(self, wanted: Mapping[str, str]) -> None:
        """Start to take these locks, and wait a moment for the first attempt. `wanted` is as in `want`."""
        self._wanted = wanted
        self._thread.start()
        with self._changed:
            self._changed.wait_for(lambda: self._tried == wanted, timeout=FIRST_SECONDS)

    def want(self, wanted: Mapping[str, str]) -> None:
        """Set the pipe directories of the daemons for which locks are wanted, by name."""
        if wanted != self._wanted:
            with self._changed:
                self._wanted = wanted
                self._changed.notify_all()

    def close(self) -> None:
        """Release all locks."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(FIRST_SECONDS)

    def _run(self) -> None:
        while True:
            with self._changed:
                wanted, closed = self._wanted, self._closed
            kept = {} if closed else wanted
            for name in [name for name, (pipe, _) in self._locks.items() if kept.get(name) != pipe]:
                for file in self._locks.pop(name)[1]:
                    file.release()
            for name, pipe in kept.items():
                if name not in self._locks:
                    key = hashlib.sha256(os.fsencode(os.path.realpath(pipe))).hexdigest()[:16]
                    self._locks[name] = pipe, [LockFile(path / f"act-{key}.lock") for path in self._directories]
            found = {name: _take(files) for name, (_, files) in self._locks.items()}
            if found != self.found:
                self.found = found
            with self._changed:
                self._tried = wanted
                self._changed.notify_all()
                if closed:
                    return
                self._changed.wait_for(lambda: self._closed or self._wanted != self._tried, timeout=self._retry)
