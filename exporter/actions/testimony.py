"""What is kept of a daemon before something is done to it, as files: what its logs, /proc, the kernel and we know.

All of it is bounded, and none of it is believed: the logs are where a user may have put something else.
"""

import json
import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from exporter.model.action import Action
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.plain import plain
from exporter.sources.directory import Directory, open_file
from exporter.sources.kernel import last_records
from exporter.sources.place import FILES, STDOUT, Place

LONGEST_TAIL = 256 << 10
LONGEST_NODE = 1 << 20
MOST_PROCESSES = 128
MOST_RECORDS = 200

_OF_A_PROCESS = ("stat", "status", "wchan", "stack")
"""None of these waits for a lock that the process may hold for ever, as its environment's would."""
_LONGEST_OF_A_PROCESS = 4096

File = tuple[str, bytes]


def testimony(action: Action, node: Node, place: Place, *, proc: Path, kmsg: Path | None) -> Iterator[File]:
    """The files, by name: those first that are soonest gone. Raises nothing for what cannot be read."""
    daemon = node.daemons.get(action.daemon)
    pids = [] if daemon is None else _pids(daemon)
    yield "processes.txt", b"".join(_of_process(proc, pid) for pid in pids[:MOST_PROCESSES])
    for name in (*FILES, STDOUT):
        tail = _tail(place.log, name)
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
