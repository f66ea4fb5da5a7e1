"""Recordings: observations on disk, as JSON Lines, with masked names if wanted.

A mask replaces names of users, workloads, machines and GPUs by other letters, the same everywhere.

Each word that is not one of `WORDS` is replaced, letter by letter. The replacement depends on a random key and on the
letters before it, so that equal words stay equal and a shortened name stays the beginning of the whole one. Case and
length stay. Numbers stay, PIDs, UIDs, times and numbers of jobs among them. All hexadecimal digits of identifiers of
GPUs, pods and containers are replaced.
"""

import contextlib
import gzip
import io
import json
import re
import reprlib
import sys
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import field
from functools import lru_cache
from string import ascii_lowercase, ascii_uppercase
from typing import Any, Literal, TextIO, cast

from exporter.config.settings import Config
from exporter.errors import FULL, RecordingError
from exporter.model import observation as kinds
from exporter.model.daemon import Daemon, DaemonRuntime, Declaration
from exporter.model.identity import ConnectionHolders
from exporter.model.kernels import KernelReading
from exporter.model.launches import WorkReading
from exporter.model.node import Node
from exporter.model.observation import GpuReading, Observation
from exporter.model.sharing import GpuUse
from exporter.model.values import build, frozen, made_of, plain
from exporter.parse.units import SHARED_UNITS

WORDS = """
    accept accepting access action active again agent all allocating allowed already anonymous applications are
    associated assuming at atomic attributes backoff be been belonging besteffort between bin binary board burstable
    bus bytes cannot cgroup changed channel chunk chunks ci claim client clients closed cmd com command compression
    condor connect connected connecting connection container containerd context contexts control copyright corporation
    count cpuset create created creating credentials cri crio csv cuda current daemon default deleted destroy device
    devices did directory dis disabled disconnected display docker dockerd down driver due ecs ecstasks en enabled esr
    encountered engine enough env error esc exception execute exists exit exited exiting expected failed fallen fatal
    fault faulted fe files find finish following for force format found free from gcc get gpc gpcclient gpu gpus gr
    graphics groups handling has have hsce htcondor hub hubclient id ids imp in inactive include information
    initialization initializing installed insufficient intr invalid io is issued job jobid jobs kill killed kubelet
    kubepods level lib libpod limit linux list local log lsf lspart lxc maws max maximum mem memory microk mig mmu most
    mount mps ms name named namespace nerdctl new no nobody nomad not notified ns number nvidia nvrm of off on only oom
    open ordinal other out parent partition payload pbdma pbs pbspro pci pde pending percentage phys pid pinned pipe
    pod prefetch priority priv privilege privileges process progress ps pte push qnx query quit reached read ready rece
    receive received recevie recovery refusing region remainder reply request requesting reserve reserved reset rke ro
    root run scontroller scope segment send serial server servers service session set sge share shared shell shm shut
    shutdown shutting slice slot sluid slurm slurmstepd sm sms snap socket start started starter starting startup
    status stdout step stepmgr sticky strong succeeded supported swap sworker system systemd task teardown terminate
    termination the there this thread threads timeout tmp to torn torque total trigging try type ui uid unable
    unallocated unix unknown used user using usr uuid valid var version vgpu violation virt visible volta waiting was
    unrecognized warp weak will with worker write xid yes
"""
"""Words that identify nothing: those of the texts of MPS, of the kernel and of cgroups that the exporter reads."""

_PUBLIC_FIELDS = frozenset(
    (
        *("recording", "source", "driver", "driver_version", "cuda_version", "compute_capability", "compute_mode"),
        *("state", "load", "active", "sub", "result", "restart", "wait_channel"),
        *("by", "kind", "code", "reason", "profile"),
    )
)
"""Fields with words of systemd, of the kernel, of NVML, or of the exporter itself."""

HEXADECIMAL = "0123456789abcdef"
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_HEX = r"(?=[0-9]*[a-f])[0-9a-f]{12,}"
_SLURM_JOB = r"(?-i:\bs[0-9A-HJKMNP-TV-Z]{13}\b)"
_FLUX_JOB = r"\bshell-[0-9]+-f[0-9a-z]+(?=\.service)"
_PCI_ADDRESS = r"\b(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-9])?\b"
_TOKEN = re.compile(
    rf"(?P<public>{_SLURM_JOB}|{_FLUX_JOB}|0x[0-9a-f]+(?:_[0-9a-f]{{8}})?|\\x[0-9a-f]{{2}}|{_PCI_ADDRESS})"
    rf"|(?P<gpu>(?:GPU|MIG)-)(?P<part>[0-9a-f][0-9a-f-]*)|(?P<id>{_UUID}|{_HEX})"
    rf"|(?P<word>(?:(?!{_UUID}|{_HEX})[^\W\d_])+)",
    re.IGNORECASE,
)


class Mask:
    """Replaces names by a random `key`. With the same key, equal texts become equal ones."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._words = frozenset((*WORDS.split(), *re.findall("[a-z]+", SHARED_UNITS)))
        self._letters: Callable[[str, str], Mapping[str, str]] = lru_cache(maxsize=1 << 16)(self._permutation)

    def text(self, text: str) -> str:
        """Return a text with all names replaced."""
        return _TOKEN.sub(self._replace, text)

    def values(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the JSON values of an observation or a header with all names replaced."""
        # The name of a GPU is its model, that of a collector its own.
        has_public_name = "gpu" in values or "uuid" in values or values.get("source") == "source"
        public = _PUBLIC_FIELDS | {"name"} if has_public_name else _PUBLIC_FIELDS
        masked = {}
        for key, value in values.items():
            if key == "labels":  # Its keys are names too.
                masked[key] = self._value({self.text(name): each for name, each in value.items()})
            else:
                masked[key] = value if key in public and isinstance(value, str) else self._value(value)
        return masked

    def _value(self, value: Any) -> Any:
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return self.values(value)
        return [self._value(each) for each in value] if isinstance(value, list | tuple) else value

    def _replace(self, found: "re.Match[str]") -> str:
        if found["public"]:
            return found[0]
        if found["word"]:
            word = found[0]
            known = len(word) == 1 or word.casefold() in self._words
            return word if known else self._substituted(word)
        digits = (found["part"] or found["id"]).lower()
        return (found["gpu"] or "") + self._substituted(digits, hexadecimal=True)

    def _substituted(self, word: str, *, hexadecimal: bool = False) -> str:
        """Replace each character that has an alphabet, by those before it. Separators stay, and do not count."""
        before, replaced = "", []
        for each in word:
            alphabet = ascii_uppercase if each in ascii_uppercase else ascii_lowercase
            if hexadecimal:
                alphabet = HEXADECIMAL if each in HEXADECIMAL else ""
            replaced.append(self._letters(before, alphabet).get(each, alphabet[:1]) if alphabet else each)
            before += each if alphabet else ""
        return "".join(replaced)

    def _permutation(self, before: str, alphabet: str) -> Mapping[str, str]:
        from hashlib import blake2b

        def rank(letter: str) -> bytes:
            return blake2b(f"{alphabet}{before}\0{letter}".encode(errors="surrogateescape"), key=self._key).digest()

        return dict(zip(alphabet, sorted(alphabet, key=rank), strict=True))


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
    "kernels": KernelReading,
    "nvml_event": kinds.GpuEvent,
    "kernel": kinds.KernelRecord,
    "process": kinds.ProcessReading,
    "process_exit": kinds.ProcessExit,
    "connection_holders": ConnectionHolders,
    "address_ranges": kinds.AddressRanges,
    "pod_found": kinds.PodFound,
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


@frozen
class RecordedDaemon:
    """A configured daemon of the recorded node."""

    pipe_directory: str
    log_directory: str
    name: str
    expected: bool = True
    unit: str | None = None
    clients_limit: int | None = None
    owner: int | None = None


@frozen
class RecordedGpu:
    """A GPU of the recorded node."""

    index: int
    uuid: str
    name: str = ""
    pci_bus_id: str | None = None


@frozen
class Header:
    """The recorded node."""

    daemons: tuple[RecordedDaemon, ...] = ()
    gpus: tuple[RecordedGpu, ...] = ()
    facts: Mapping[str, str] = field(default_factory=dict)

    def node(self) -> Node:
        """Return the node before the first observation."""
        return Node(
            daemons={
                each.name: made_of(
                    Daemon, each, declared=made_of(Declaration, each), runtime=DaemonRuntime(unit=each.unit)
                )
                for each in self.daemons
            }
        )


def header_of(config: Config, gpus: tuple[RecordedGpu, ...] = (), driver: str | None = None) -> Header:
    """Return the header for the configured daemons."""
    daemons = tuple(
        made_of(RecordedDaemon, each, pipe_directory=str(each.pipe_directory), log_directory=str(each.log_directory))
        for each in config.daemons
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
