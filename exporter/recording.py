"""Recordings: observations on disk, as JSON Lines."""

import contextlib
import gzip
import io
import json
import reprlib
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, TextIO, cast

from exporter import recording_format1
from exporter.errors import FULL, RecordingError
from exporter.model.daemon import Daemon, DaemonRuntime, Declaration
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.node import Node
from exporter.model.observation import (
    ActionDone,
    ControlReply,
    ControlSocket,
    DaemonFound,
    DaemonProcess,
    GpuEvent,
    GpuReading,
    KernelRecord,
    LogFile,
    LogGap,
    LogLine,
    LogUnrecognized,
    Observation,
    PodFound,
    ProcessExit,
    ProcessReading,
    ProcessState,
    Resumed,
    SessionHolder,
    SourceReading,
    UnitState,
)
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY
from exporter.serialization import build, plain


@contextlib.contextmanager
def opened(path: str, mode: Literal["r", "w"]) -> Iterator[TextIO]:
    """A recording's file, packed if it is named so; `-` is standard input or output.

    RecordingError where it cannot be read or written, also while it is open. That standard output takes no more is not
    its fault.
    """
    try:
        with _file(path, mode) as file:
            yield file
    except BrokenPipeError:
        raise
    except (OSError, EOFError, zlib.error) as error:
        writes_to_stdout = mode == "r" or path == "-"
        if writes_to_stdout and isinstance(error, OSError) and error.errno in FULL:
            raise
        raise RecordingError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _file(path: str, mode: Literal["r", "w"]) -> contextlib.AbstractContextManager[TextIO]:
    if path != "-":
        return cast("TextIO", (gzip.open if path.endswith(".gz") else open)(path, f"{mode}t", errors="replace"))
    if mode == "r" and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return contextlib.nullcontext(sys.stdin if mode == "r" else sys.stdout)


FORMAT = 2
"""The format that is written. A file without a header is read as FORMAT 1."""

LONGEST_LINE = 1 << 24
"""Characters of the longest line that is read.

A control daemon's reply is the longest: 1 MiB on each of stdout and stderr (`collectors/child.py`).
Each byte can become 6 characters of JSON."""

_KINDS: Mapping[str, type[Observation]] = {
    "control": ControlReply,
    "log": LogLine,
    "log_file": LogFile,
    "log_gap": LogGap,
    "log_unrecognized": LogUnrecognized,
    "daemon_found": DaemonFound,
    "nvml": GpuReading,
    "gpu_use": GpuUse,
    "work": WorkReading,
    "nvml_event": GpuEvent,
    "kernel": KernelRecord,
    "process": ProcessReading,
    "process_exit": ProcessExit,
    "pod_found": PodFound,
    "daemon_process": DaemonProcess,
    "source": SourceReading,
    "process_state": ProcessState,
    "control_socket": ControlSocket,
    "session_holder": SessionHolder,
    "unit": UnitState,
    "action_done": ActionDone,
    "resumed": Resumed,
}
_OF_A_DAEMON = {
    kind for kind in _KINDS.values() for part in fields(kind) if part.name == "daemon" and part.default is MISSING
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDaemon:
    """A daemon that the recording watched."""

    pipe_directory: str
    log_directory: str
    name: str
    expected: bool = True
    unit: str | None = None
    clients_limit: int | None = None
    owner: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedGpu:
    """A GPU of the recorded node."""

    index: int
    uuid: str
    name: str
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What the recorded node was; `daemons[0]` is the one of which observations speak that name none."""

    daemons: tuple[RecordedDaemon, ...] = ()
    gpus: tuple[RecordedGpu, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def node(self) -> Node:
        """The node before the first observation."""
        return Node(
            daemons={
                each.name: Daemon(
                    name=each.name,
                    pipe_directory=each.pipe_directory,
                    log_directory=each.log_directory,
                    declared=Declaration(
                        expected=each.expected, unit=each.unit, clients_limit=each.clients_limit, owner=each.owner
                    ),
                    runtime=DaemonRuntime(unit=each.unit),
                )
                for each in self.daemons
            }
        )


_DEFAULT_DAEMON = RecordedDaemon(
    name=DEFAULT_PIPE_DIRECTORY,
    pipe_directory=DEFAULT_PIPE_DIRECTORY,
    log_directory=DEFAULT_LOG_DIRECTORY,
)


class Recording:
    """A recording being read: the header at once, then observations as they are asked for.

    Raises RecordingError, with the file and line, for what is no recording. A last line that was cut short ends it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines = enumerate(self._read(), start=1)
        self._first: tuple[int, dict[str, Any]] | None = self._next()
        self._format = 1
        self.header = Header(daemons=(_DEFAULT_DAEMON,))
        if self._first is not None and "recording" in self._first[1]:
            self.header = self._header(self._first[1])
            self._first = None
        elif self._first is not None and "source" not in self._first[1]:
            raise self._unreadable(self._first[0], "is neither a recording's header nor an observation")

    def observations(self) -> Iterator[Observation]:
        """The observations, in the order in which they were written."""
        line = self._first or self._next()
        while line is not None:
            number, values = line
            if self._format == 1:
                values = recording_format1.observation(values)
            kind = _KINDS.get(str(values.get("source")))
            if kind is not None:
                yield self._observation(kind, number, values)
            line = self._next()

    def _read(self) -> Iterator[str]:
        """Yield the lines. A packed file of 1.5 MB can hold a line of 1.5 GB, which would take twice as much memory."""
        number = 0
        while line := self._file.readline(LONGEST_LINE + 1):
            number += 1
            if len(line) > LONGEST_LINE:
                raise self._unreadable(
                    number,
                    f"is longer than {LONGEST_LINE} characters, so it is not an observation; remove the line,"
                    " or record again",
                )
            yield line

    def _next(self) -> tuple[int, dict[str, Any]] | None:
        for number, text in self._lines:
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                if text.endswith("\n"):
                    raise self._unreadable(number, f"is not JSON: {error}") from error
                return None
            if not isinstance(value, dict):
                raise self._unreadable(number, "is not a JSON object")
            return number, value
        return None

    def _header(self, values: dict[str, Any]) -> Header:
        self._format = values["recording"]
        if self._format not in (1, FORMAT):
            raise self._unreadable(
                1,
                f"says format {reprlib.repr(self._format)}; this version reads formats 1 to {FORMAT}: read the file"
                " with the version that wrote it, or with a later one",
            )
        if self._format == 1:
            values = recording_format1.header(values)
        try:
            return _read_header(values)
        except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
            raise self._unreadable(1, f"is a header with a missing or malformed part: {error!r}") from error

    def _observation(self, kind: type[Observation], number: int, values: dict[str, Any]) -> Observation:
        if kind is GpuReading:
            gpu = next((gpu for gpu in self.header.gpus if gpu.uuid == values.get("gpu")), None)
            values = {"index": gpu.index, "name": gpu.name, "pci_bus_id": gpu.pci_bus_id, **values} if gpu else values
        if kind in _OF_A_DAEMON:
            values.setdefault("daemon", (*self.header.daemons, _DEFAULT_DAEMON)[0].name)
        try:
            built = build(kind, values)
        except ValueError as error:
            raise self._unreadable(number, f"is a {values['source']} observation in which {error}") from error
        return built

    def _unreadable(self, number: int, problem: str) -> RecordingError:
        return RecordingError(f"{getattr(self._file, 'name', 'recording')}: line {number} {problem}")


def _read_header(values: dict[str, Any]) -> Header:
    only = {
        "pipe_directory": values.get("pipe_directory", _DEFAULT_DAEMON.pipe_directory),
        "log_directory": values.get("log_directory", _DEFAULT_DAEMON.log_directory),
    }
    described = values.get("daemons", [only])
    return Header(
        daemons=tuple(
            RecordedDaemon(
                pipe_directory=str(each["pipe_directory"]),
                log_directory=str(each["log_directory"]),
                name=str(each.get("name", each["pipe_directory"])),
                expected=bool(each.get("expected", True)),
                unit=str(each["unit"]) if each.get("unit") else None,
                clients_limit=int(each["clients_limit"]) if each.get("clients_limit") else None,
            )
            for each in described
        ),
        gpus=tuple(
            RecordedGpu(
                index=int(each["index"]),
                uuid=str(each["uuid"]),
                name=str(each.get("name", "")),
                pci_bus_id=str(each["pci_bus_id"]) if each.get("pci_bus_id") else None,
            )
            for each in values.get("gpus", ())
        ),
        facts={key: value for key, value in values.items() if isinstance(value, str)},
    )


def write_header(file: TextIO, header: Header) -> None:
    """Begin a recording."""
    line = {
        "recording": FORMAT,
        **header.facts,
        "daemons": plain(header.daemons),
        "gpus": plain(header.gpus),
    }
    file.write(json.dumps(line) + "\n")


def write_observation(file: TextIO, seen: Observation) -> None:
    """Add an observation to a recording."""
    known = plain(seen)
    file.write(json.dumps({"at": known.pop("at"), "source": _NAMES[type(seen)], **known}) + "\n")
