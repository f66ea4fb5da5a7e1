"""Saves evidence files before an action."""

import json
import os
import re
import shutil
import stat
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

import structlog

from exporter.clock import Clock
from exporter.collectors.kernel_log import last_records
from exporter.collectors.pipe_dir import FILES, STDOUT, DaemonLocation, Directory, open_file
from exporter.model.action import Action
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.serialization import plain

LONGEST_TAIL = 256 << 10
LONGEST_NODE = 1 << 20
MOST_PROCESSES = 128
MOST_RECORDS = 200

_OF_A_PROCESS = ("stat", "status", "wchan", "stack")
"""None of these waits for a lock that the process may hold for ever, as its environment's would."""
_LONGEST_OF_A_PROCESS = 4096

File = tuple[str, bytes]


def snapshot(action: Action, node: Node, location: DaemonLocation, *, proc: Path, kmsg: Path | None) -> Iterator[File]:
    """The files, by name: those first that are soonest gone. Raises nothing for what cannot be read."""
    daemon = node.daemons.get(action.daemon)
    pids = [] if daemon is None else _pids(daemon)
    yield "processes.txt", b"".join(_of_process(proc, pid) for pid in pids[:MOST_PROCESSES])
    for name in (*FILES, STDOUT):
        tail = _tail(location.log, name)
        if tail is not None:
            yield name, tail
    yield "node.json", _known(action, node, pids)
    yield "kernel.txt", _kernel(node, kmsg)


def _pids(daemon: Daemon) -> list[int]:
    """The daemon, its servers and its clients, as far as they can be told here."""
    own = None if daemon.runtime.process is None else daemon.runtime.process.pid
    return [pid for pid in dict.fromkeys((own, *daemon.servers, *daemon.clients)) if pid is not None and pid > 0]


def _of_process(proc: Path, pid: int) -> bytes:
    return b"".join(_section(f"{pid}/{name}", _head(proc / str(pid) / name)) for name in _OF_A_PROCESS)


def _section(name: str, text: bytes | None) -> bytes:
    return b"" if text is None else b"== " + name.encode() + b" ==\n" + text.rstrip(b"\n") + b"\n"


def _head(path: Path) -> bytes | None:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_OF_A_PROCESS)
    except OSError:
        return None


def _tail(directory: Directory, name: str) -> bytes | None:
    """The end of a regular file; None where there is none, or it may not be read."""
    try:
        with directory.opened() as opened:
            descriptor = open_file(opened, name)
    except OSError:
        return None
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return None
        return os.pread(descriptor, LONGEST_TAIL, max(0, found.st_size - LONGEST_TAIL))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _known(action: Action, node: Node, pids: Iterable[int]) -> bytes:
    """What is remembered of the daemon, and why what is about to be done is done."""
    wanted = {*pids}
    known = {
        "action": plain(action),
        "daemon": plain(node.daemons.get(action.daemon)),
        "watch": plain(node.watches.get(action.daemon)),
        "incidents": [plain(each) for each in node.incidents.values() if each.daemon == action.daemon],
        "processes": [plain(each) for pid, each in node.processes.items() if pid in wanted],
        "states": [plain(each) for pid, each in node.states.items() if pid in wanted],
        "units": [plain(each) for each in node.units.values()],
    }
    return json.dumps(known, indent=1, default=_listed).encode()[:LONGEST_NODE]


def _listed(value: Any) -> object:
    """What JSON has no form for."""
    return sorted(value) if isinstance(value, frozenset) else repr(value)


def _kernel(node: Node, kmsg: Path | None) -> bytes:
    """What the driver said last in the kernel's log; where that may not be read, which Xids were told of."""
    try:
        if kmsg is not None:
            return "".join(f"{each}\n" for each in last_records(kmsg, MOST_RECORDS)).encode()
        problem = "it is not collected"
    except OSError as error:
        problem = error.strerror or str(error)
    told = sorted(node.xids.counts.items(), key=lambda each: each[1].last_at)[-MOST_RECORDS:]
    lines = (f"{count.last_at:.3f} Xid {xid} on {gpu or '?'}, {count.total} times\n" for (gpu, xid), count in told)
    return "".join((f"The kernel's log was not read ({problem}). Last told of:\n", *lines)).encode()


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

    def save(self, action: Action, node: Node, location: DaemonLocation) -> str | None:
        """Save what is known now, and say where; None where that failed, or takes too long. It is logged then."""
        path = self._directory / f"{_safe(action.daemon)}-{_stamp(self._clock.now())}"
        if not self._room.acquire(blocking=False):
            self._complain(action, path, Reason(ReasonCode.EVIDENCE_BUSY))
            return None
        saved: SimpleQueue[str | None] = SimpleQueue()
        thread = threading.Thread(
            target=self._save, args=(action, node, location, path, saved), name="evidence", daemon=True
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

    def _save(
        self, action: Action, node: Node, location: DaemonLocation, path: Path, saved: SimpleQueue[str | None]
    ) -> None:
        try:
            _write(path, snapshot(action, node, location, proc=self._proc, kmsg=self._kmsg))
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
