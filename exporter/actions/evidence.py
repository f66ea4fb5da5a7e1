"""Saves evidence files before an action."""

import contextlib
import json
import os
import re
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from queue import Empty, SimpleQueue

from exporter.clock import Clock
from exporter.collectors.kernel_log import last_records
from exporter.collectors.pipe_dir import FILES, STDOUT, DaemonLocation, end_of_file
from exporter.logger import logger
from exporter.model.action import Action
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import plain

SAVE_SECONDS = 0.3
MAX_LOG_BYTES = 256 << 10
MAX_NODE_BYTES = 1 << 20
MAX_PROCESSES = 128
MAX_RECORDS = 200
MAX_BUNDLES = 20
MAX_TOTAL_BYTES = 64 << 20
MAX_CONCURRENT = 4
"""How many bundles may be written at once. This bounds the threads that wait for a disk that hangs."""

_PROCESS_FILES = ("stat", "status", "wchan", "stack")
"""Reading these waits for no lock that the process may hold for ever, as reading its environment does."""
_MAX_PROCESS_BYTES = 4096

_MAX_NAME = 64
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")

File = tuple[str, bytes]


def snapshot(action: Action, node: Node, location: DaemonLocation, *, proc: Path, kmsg: Path | None) -> Iterator[File]:
    """Yield the files by name, the most short-lived data first. Files that cannot be read are omitted."""
    daemon = node.daemons.get(action.daemon)
    pids: list[int] = []
    if daemon is not None:
        found = dict.fromkeys((daemon.pid, *daemon.servers, *daemon.clients))
        pids = [pid for pid in found if pid is not None and pid > 0]
    text = b""
    for path in (proc / str(pid) / name for pid in pids[:MAX_PROCESSES] for name in _PROCESS_FILES):
        with contextlib.suppress(OSError), path.open("rb") as file:
            text += f"== {path.relative_to(proc)} ==\n".encode() + file.read(_MAX_PROCESS_BYTES).rstrip(b"\n") + b"\n"
    yield "processes.txt", text
    for name in dict.fromkeys((*location.logs, *FILES, STDOUT)):
        tail = None
        with contextlib.suppress(OSError), location.log.opened() as directory:
            tail = end_of_file(directory, name, MAX_LOG_BYTES)
        if tail is not None:
            yield name.replace("/", "_"), tail
    yield "node.json", _node_json(action, node, frozenset(pids))
    yield "kernel.txt", _kernel_text(node, kmsg)


def _node_json(action: Action, node: Node, pids: frozenset[int]) -> bytes:
    known = {
        "action": plain(action),
        "daemon": plain(node.daemons.get(action.daemon)),
        "watch": plain(node.watches.get(action.daemon)),
        "incidents": [plain(incident) for incident in node.incidents.values() if incident.daemon == action.daemon],
        "processes": [plain(each) for pid, each in node.processes.items() if pid in pids],
        "states": [plain(each) for pid, each in node.states.items() if pid in pids],
        "units": [plain(unit) for unit in node.units.values()],
    }
    text = json.dumps(
        known, indent=1, default=lambda value: sorted(value) if isinstance(value, frozenset) else repr(value)
    )
    return text.encode()[:MAX_NODE_BYTES]


def _kernel_text(node: Node, kmsg: Path | None) -> bytes:
    """Return the driver's last records in the kernel log; if it cannot be read, the reported Xids."""
    try:
        if kmsg is not None:
            return "".join(f"{record}\n" for record in last_records(kmsg, MAX_RECORDS)).encode()
        problem = "it is not collected"
    except OSError as error:
        problem = error.strerror or str(error)
    counts = sorted(node.xids.counts.items(), key=lambda each: each[1].last_at)[-MAX_RECORDS:]
    lines = (f"{count.last_at:.3f} Xid {xid} on {gpu or '?'}, {count.total} times\n" for (gpu, xid), count in counts)
    return "".join((f"The kernel log was not read ({problem}). Last reported Xids:\n", *lines)).encode()


class Evidence:
    """Bundles of evidence files in one directory, which no other program writes to."""

    def __init__(
        self, directory: Path, *, proc: Path, kmsg: Path | None, clock: Clock, seconds: float = SAVE_SECONDS
    ) -> None:
        """`kmsg` is the kernel log, None if it must not be read. `seconds` is how long `save` waits."""
        self._directory = directory
        self._proc = proc
        self._kmsg = kmsg
        self._clock = clock
        self._seconds = seconds
        self._slots = threading.BoundedSemaphore(MAX_CONCURRENT)
        self._pruning = threading.Lock()
        self._log = logger()

    def save(self, action: Action, node: Node, location: DaemonLocation) -> str | None:
        """Save a bundle and return its directory. Return None, and log it, if that fails or takes too long."""
        # The daemon's name, made safe, and the time in UTC to the millisecond.
        name = _UNSAFE.sub("-", action.daemon).strip("-.")[:_MAX_NAME] or "daemon"
        seconds, milliseconds = divmod(round(self._clock.now() * 1000), 1000)
        path = self._directory / f"{name}-{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{milliseconds:03}Z"
        if not self._slots.acquire(blocking=False):
            self._log_problem(action, path, Reason(ReasonCode.EVIDENCE_BUSY))
            return None
        saved: SimpleQueue[str | None] = SimpleQueue()
        thread = threading.Thread(
            target=self._save, args=(action, node, location, path, saved), name="evidence", daemon=True
        )
        try:
            thread.start()
            return saved.get(timeout=self._seconds)
        except RuntimeError as error:
            self._slots.release()
            problem = Reason(ReasonCode.EVIDENCE_NOT_WRITTEN, text=str(error))
        except Empty:
            problem = Reason(ReasonCode.EVIDENCE_TIMED_OUT, seconds=self._seconds)
        self._log_problem(action, path, problem)
        return None

    def _save(
        self, action: Action, node: Node, location: DaemonLocation, path: Path, saved: SimpleQueue[str | None]
    ) -> None:
        try:
            _write(path, snapshot(action, node, location, proc=self._proc, kmsg=self._kmsg))
            saved.put(str(path))
            with self._pruning:
                _prune(self._directory)
        except Exception as error:  # noqa: BLE001 (whatever fails, the action continues without evidence)
            text = f"{type(error).__name__}: {error}"
            if isinstance(error, OSError):
                text = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
            self._log_problem(action, path, Reason(ReasonCode.EVIDENCE_NOT_WRITTEN, text=text))
            saved.put(None)
        finally:
            self._slots.release()

    def _log_problem(self, action: Action, path: Path, problem: Reason) -> None:
        self._log.warning("evidence_not_saved", daemon=action.daemon, path=str(path), problem=problem.as_json())


def _write(path: Path, files: Iterable[File]) -> None:
    """Write the files, for the owner only. After an error, remove them."""
    path.parent.mkdir(mode=0o700, exist_ok=True)
    path.mkdir(mode=0o700)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        for name, content in files:
            with open(os.open(path / name, flags, 0o600), "wb") as file:
                file.write(content)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def _prune(directory: Path) -> None:
    """Remove the oldest bundles while there are too many, or while they are too large together."""
    paths = (path for path in directory.iterdir() if not path.is_symlink())
    bundles = sorted(paths, key=lambda path: path.stat().st_mtime_ns)
    sizes = [sum(file.lstat().st_size for file in path.iterdir()) if path.is_dir() else 0 for path in bundles]
    while len(bundles) > MAX_BUNDLES or (len(bundles) > 1 and sum(sizes) > MAX_TOTAL_BYTES):
        shutil.rmtree(bundles.pop(0), ignore_errors=True)
        del sizes[0]
