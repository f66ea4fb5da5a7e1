"""Lets one process of this exporter at a time ask a daemon: the service, `status`, `record`.

A daemon refuses whoever comes while it is being asked. The lock is a file in the runtime directory; where that cannot
be written, or somebody holds the lock for too long, one goes without: the daemon's refusal is no harm, only a delay.
"""

import contextlib
import fcntl
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.clock import Clock
from exporter.sources.directory import Identity

RETRY_SECONDS = 0.02
LOCKS = 64
"""How many lock files there can be, however many pipe directories come and go. Two that share one wait for each other,
as for anybody else."""


class SessionLock:
    """The right to ask a daemon, which is known by the identity of its pipe directory."""

    def __init__(
        self, directory: Path, clock: Clock, *, deadline: float = 1.0, sleep: Callable[[float], None] = time.sleep
    ) -> None:
        """`deadline` is how long to wait for others, in seconds."""
        self._directory = directory
        self._clock = clock
        self._deadline = deadline
        self._sleep = sleep

    @contextlib.contextmanager
    def held(self, identity: Identity | None) -> Iterator[bool]:
        """Hold the lock, if it can be had in time; says whether."""
        descriptor = None if identity is None else self._open(identity)
        try:
            yield descriptor is not None and self._acquire(descriptor)
        finally:
            if descriptor is not None:
                os.close(descriptor)

    def _open(self, identity: Identity) -> int | None:
        device, inode = identity
        file = self._directory / f"session-{(device + inode) % LOCKS}.lock"
        with contextlib.suppress(OSError):
            return os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        return None

    def _acquire(self, descriptor: int) -> bool:
        ends = self._clock.monotonic() + self._deadline
        while True:
            with contextlib.suppress(OSError):
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            if self._clock.monotonic() >= ends:
                return False
            self._sleep(RETRY_SECONDS)
