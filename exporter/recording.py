"""Recordings: observations on disk, as JSON Lines."""

import contextlib
import gzip
import io
import json
import reprlib
import sys
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO, cast

from exporter.config.settings import Config
from exporter.errors import FULL, RecordingError
from exporter.masking import Mask
from exporter.model import observation as kinds
from exporter.model.daemon import Daemon, DaemonRuntime, Declaration
from exporter.model.identity import PodResourcesReading
from exporter.model.launches import GpuUse, WorkReading
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.model.values import build, plain

FORMAT = 2
"""The format that is written and read."""

MAX_LINE = 1 << 24
"""Characters of the longest line that is read.

A control daemon's reply is the longest: 1 MiB on each of stdout and stderr (`collectors/child.py`).
Each byte can become 6 characters of JSON."""

_KINDS: Mapping[str, type[Observation]] = {
    "control": kinds.ControlReply,
    "log": kinds.LogLine,
    "log_file": kinds.LogFile,
    "log_gap": kinds.LogGap,
    "log_unrecognized": kinds.LogUnrecognized,
    "daemon_found": kinds.DaemonFound,
    "nvml": GpuReading,
    "gpu_use": GpuUse,
    "work": WorkReading,
    "nvml_event": kinds.GpuEvent,
    "kernel": kinds.KernelRecord,
    "process": kinds.ProcessReading,
    "process_exit": kinds.ProcessExit,
    "pod_found": kinds.PodFound,
    "pod_resources": PodResourcesReading,
    "daemon_process": kinds.DaemonProcess,
    "source": kinds.SourceReading,
    "process_state": kinds.ProcessState,
    "control_socket": kinds.ControlSocket,
    "session_holder": kinds.SessionHolder,
    "unit": kinds.UnitState,
    "action_done": kinds.ActionDone,
    "resumed": kinds.Resumed,
    "paused": kinds.Paused,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedDaemon:
    """A configured daemon of the recorded node."""

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
    name: str = ""
    pci_bus_id: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The recorded node."""

    daemons: tuple[RecordedDaemon, ...] = ()
    gpus: tuple[RecordedGpu, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def node(self) -> Node:
        """Return the node before the first observation."""
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


def header_of(config: Config, gpus: tuple[RecordedGpu, ...] = (), driver: str | None = None) -> Header:
    """Return the header for the configured daemons."""
    daemons = tuple(
        RecordedDaemon(
            name=daemon.name,
            pipe_directory=str(daemon.pipe_directory),
            log_directory=str(daemon.log_directory),
            unit=daemon.unit,
            owner=daemon.owner,
        )
        for daemon in config.daemons
    )
    return Header(daemons=daemons, gpus=gpus, facts={} if driver is None else {"driver": driver})


@contextlib.contextmanager
def open_recording(path: str, mode: Literal["r", "x"]) -> Iterator[TextIO]:
    """Open a recording, which is compressed if its name ends in .gz; `-` is standard input or output.

    The mode `x` creates a new file. RecordingError if it cannot be opened, read or written. Errors of writing other
    output to stdout are not changed.
    """
    try:
        with _open(path, mode) as file:
            yield file
    except BrokenPipeError:
        raise
    except FileExistsError as error:
        raise RecordingError(f"{path} exists; record to another file") from error
    except (OSError, EOFError, zlib.error) as error:
        writes_to_stdout = mode == "r" or path == "-"
        if writes_to_stdout and isinstance(error, OSError) and error.errno in FULL:
            raise
        raise RecordingError(f"{path}: {getattr(error, 'strerror', None) or error}") from error


def _open(path: str, mode: Literal["r", "x"]) -> contextlib.AbstractContextManager[TextIO]:
    if path != "-":
        return cast("TextIO", (gzip.open if path.endswith(".gz") else open)(path, f"{mode}t", errors="replace"))
    if mode == "r" and isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(errors="replace")
    return contextlib.nullcontext(sys.stdin if mode == "r" else sys.stdout)


class Recording:
    """A recording that is read: first its header, then its observations one by one.

    RecordingError, with the file and the line, if it is not a recording. An incomplete last line ends it.
    """

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._lines = enumerate(self._read(), start=1)
        first = self._next()
        if first is None:
            raise self._error(1, "is missing or incomplete; record again")
        if "recording" not in first[1]:
            raise self._error(first[0], "is not a recording's header")
        self.header = self._header(first[1])

    def observations(self) -> Iterator[Observation]:
        """Yield the observations in the order of the file. Unknown kinds are skipped."""
        while (line := self._next()) is not None:
            number, values = line
            kind = _KINDS.get(str(values.get("source")))
            if kind is not None:
                yield self._observation(kind, number, values)

    def _read(self) -> Iterator[str]:
        """Yield the lines. A compressed file of 1.5 MB can contain a line of 1.5 GB, which would fill the memory."""
        number = 0
        while line := self._file.readline(MAX_LINE + 1):
            number += 1
            if len(line) > MAX_LINE:
                problem = f"is longer than {MAX_LINE} characters, so it is not an observation; remove the line,"
                raise self._error(number, f"{problem} or record again")
            yield line

    def _next(self) -> tuple[int, dict[str, Any]] | None:
        for number, text in self._lines:
            if not text.strip():
                continue
            try:
                value = json.loads(text)
            except (ValueError, RecursionError) as error:
                if text.endswith("\n"):
                    raise self._error(number, f"is not JSON: {error}") from error
                return None
            if not isinstance(value, dict):
                raise self._error(number, "is not a JSON object")
            return number, value
        return None

    def _header(self, values: dict[str, Any]) -> Header:
        if values["recording"] != FORMAT:
            raise self._error(
                1,
                f"has format {reprlib.repr(values['recording'])}; this version reads format {FORMAT}: read the file"
                " with the version that wrote it",
            )
        facts = {key: value for key, value in values.items() if isinstance(value, str)}
        try:
            daemons, gpus = values.get("daemons", []), values.get("gpus", [])
            return build(Header, {"daemons": daemons, "gpus": gpus, "facts": facts})
        except (TypeError, AttributeError, ValueError) as error:
            raise self._error(1, f"is a header with a missing or malformed part: {error!r}") from error

    def _observation(self, kind: type[Observation], number: int, values: dict[str, Any]) -> Observation:
        try:
            return build(kind, values)
        except ValueError as error:
            raise self._error(number, f"is a {values['source']} observation in which {error}") from error

    def _error(self, number: int, problem: str) -> RecordingError:
        return RecordingError(f"{getattr(self._file, 'name', 'recording')}: line {number} {problem}")


def write_header(file: TextIO, header: Header, mask: Mask | None = None) -> None:
    """Write the first line of a recording, with masked names if there is a `mask`."""
    values = {"recording": FORMAT, **header.facts, "daemons": plain(header.daemons), "gpus": plain(header.gpus)}
    file.write(json.dumps(values if mask is None else mask.values(values)) + "\n")


def write_observation(file: TextIO, observation: Observation, mask: Mask | None = None) -> None:
    """Write an observation, with masked names if there is a `mask`."""
    values = plain(observation)
    values = {"at": values.pop("at"), "source": _NAMES[type(observation)], **values}
    file.write(json.dumps(values if mask is None else mask.values(values)) + "\n")
