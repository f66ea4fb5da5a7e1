"""Saves what is known before anything is destroyed: a directory each time, the oldest of which go.

It stands between a crash and its restart: what is not saved in time is waited for no longer, and no failure of it
keeps anything from being done.
"""

import os
import re
import shutil
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from queue import Empty, SimpleQueue

import structlog

from exporter.actions.testimony import File, testimony
from exporter.clock import Clock
from exporter.model.action import Action
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.sources.place import Place

SAVE_SECONDS = 0.3
MOST_KEPT = 20
MOST_BYTES_KEPT = 64 << 20
MOST_AT_ONCE = 4
"""How many may be under way: those that a dead disk holds up do not pile up behind it."""

_LONGEST_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")


class Evidence:
    """The bundles of evidence in one directory, which nobody else writes to."""

    def __init__(
        self, directory: Path, *, proc: Path, kmsg: Path | None, clock: Clock, seconds: float = SAVE_SECONDS
    ) -> None:
        """`kmsg` is the kernel's log, where it is to be read; `seconds` is how long to wait for one bundle."""
        self._directory = directory
        self._proc = proc
        self._kmsg = kmsg
        self._clock = clock
        self._seconds = seconds
        self._room = threading.BoundedSemaphore(MOST_AT_ONCE)
        self._thinning = threading.Lock()
        self._log = structlog.get_logger()

    def save(self, action: Action, node: Node, place: Place) -> str | None:
        """Save what is known now, and say where; None where that failed, or takes too long. It is logged then."""
        path = self._directory / f"{_safe(action.daemon)}-{_stamp(self._clock.now())}"
        if not self._room.acquire(blocking=False):
            self._complain(action, path, Reason(ReasonCode.EVIDENCE_BUSY))
            return None
        saved: SimpleQueue[str | None] = SimpleQueue()
        thread = threading.Thread(
            target=self._save, args=(action, node, place, path, saved), name="evidence", daemon=True
        )
        try:
            thread.start()
            return saved.get(timeout=self._seconds)
        except RuntimeError as error:
            self._room.release()
            self._complain(action, path, Reason(ReasonCode.EVIDENCE_NOT_WRITTEN, text=str(error)))
        except Empty:
            self._complain(action, path, Reason(ReasonCode.EVIDENCE_TIMED_OUT, seconds=self._seconds))
        return None

    def _save(self, action: Action, node: Node, place: Place, path: Path, saved: SimpleQueue[str | None]) -> None:
        try:
            _write(path, testimony(action, node, place, proc=self._proc, kmsg=self._kmsg))
            saved.put(str(path))
            with self._thinning:
                _thin_out(self._directory)
        except Exception as error:  # noqa: BLE001 (whatever it is, what is to be done is done without evidence)
            self._complain(action, path, Reason(ReasonCode.EVIDENCE_NOT_WRITTEN, text=_said(error)))
            saved.put(None)
        finally:
            self._room.release()

    def _complain(self, action: Action, path: Path, problem: Reason) -> None:
        self._log.warning("evidence_not_saved", daemon=action.daemon, path=str(path), problem=problem.as_json())


def _said(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
    return f"{type(error).__name__}: {error}"


def _safe(daemon: str) -> str:
    """A daemon's name as part of a file's."""
    return _UNSAFE.sub("-", daemon).strip("-.")[:_LONGEST_NAME] or "daemon"


def _stamp(at: float) -> str:
    """A moment in UTC, to the millisecond."""
    milliseconds = round(at * 1000)
    whole = time.strftime("%Y%m%dT%H%M%S", time.gmtime(milliseconds // 1000))
    return f"{whole}.{milliseconds % 1000:03}Z"


def _write(path: Path, files: Iterable[File]) -> None:
    """For the owner alone. What cannot be written whole is not left half."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700)
    try:
        for name, content in files:
            descriptor = os.open(
                path / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600
            )
            with open(descriptor, "wb") as file:
                file.write(content)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _thin_out(directory: Path) -> None:
    """Remove the oldest, as long as there are too many, or they are too large together."""
    bundles = sorted(
        (each for each in directory.iterdir() if not each.is_symlink()), key=lambda each: each.stat().st_mtime_ns
    )
    sizes = {each: _size(each) for each in bundles}
    while len(bundles) > MOST_KEPT or (len(bundles) > 1 and sum(sizes[each] for each in bundles) > MOST_BYTES_KEPT):
        shutil.rmtree(bundles.pop(0), ignore_errors=True)


def _size(bundle: Path) -> int:
    return sum(each.lstat().st_size for each in bundle.iterdir()) if bundle.is_dir() else 0
