"""Problems of collectors as codes. `report/problem_text.py` has the English texts."""

import errno
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice

MOST_JOINED = 32
"""How many problems of one collection are reported. A user can cause any number, for example with daemons."""


class ProblemCode(StrEnum):
    """Why a collection failed. Each code has its own remedy."""

    PAUSED = "paused"
    DRIVER_WITHDRAWN = "driver_withdrawn"
    """An operator has paused the exporter: the driver is closed."""
    STILL_RUNNING = "still_running"
    NOT_TRIED = "not_tried"
    """A collection has passed its deadline (`seconds`) and has not ended."""
    TIMEOUT = "timeout"
    """A command or program (`subject`) gave no answer within `seconds`."""
    PERMISSION_DENIED = "permission_denied"
    NOT_FOUND = "not_found"
    NOT_READABLE = "not_readable"
    """Another error of the operating system than the two above; `subject` is the path or unit."""
    WRONG_FILE_TYPE = "wrong_file_type"
    COMMAND_NOT_STARTED = "command_not_started"
    COMMAND_FAILED = "command_failed"
    PROGRAM_MISSING = "program_missing"
    """NVIDIA's control program (`subject`) is not installed here."""
    SERVER_STOPPED = "server_stopped"
    """A control command (`subject`) was not sent: the server `pid` is stopped, so the daemon would hang."""
    LOG_BLOCKED = "log_blocked"
    """Commands that the daemon answered do not appear in its log."""
    LOG_TO_STDOUT = "log_to_stdout"
    """The daemon writes its log to a stdout that is neither stdout.log nor a journal: a pipe, or another file."""
    RECORDS_LOST = "records_lost"
    """The kernel overwrote records before they were read."""
    PROCESS_NOT_READABLE = "process_not_readable"
    """The exporter may not read the environment of the control daemon `pid`."""
    PROCESSES_NOT_READABLE = "processes_not_readable"
    """The exporter cannot know whether watched processes run, for example `pid`."""
    TOO_MANY_DAEMONS = "too_many_daemons"
    """Daemons of these owners (`detail`) are ignored: at most `limits` of one owner, and of all, are followed."""
    DIRECTORY_HANGS = "directory_hangs"
    """A directory that may be a pipe directory hangs."""
    DIRECTORY_SHARED = "directory_shared"
    """The pipe directory of the daemon `subject` is that of the daemon `detail`."""
    NOT_SUPPORTED = "not_supported"
    """The kernel or the GPUs lack `subject`."""
    DRIVER_NOT_LOADED = "driver_not_loaded"
    DRIVER_MISMATCH = "driver_mismatch"
    """The driver's libraries and its kernel module have different versions."""
    LIBRARY_MISSING = "library_missing"
    """NVML's library was not found."""
    CONTAINER_WITHOUT_GPUS = "container_without_gpus"
    """The node has GPUs, but the exporter's container has none of their device files."""
    DRIVER_NOT_OPEN = "driver_not_open"
    """The collector that opens the driver has not opened it."""
    DRIVER_HANGS = "driver_hangs"
    """A call into the driver has not returned."""
    DRIVER_ERROR = "driver_error"
    """Another error of NVML, for the GPU `subject` if that is set."""
    GPU_LOST = "gpu_lost"
    """The GPU `subject` does not respond, or works again only after a reset (`detail`)."""
    IMPLAUSIBLE = "implausible"
    """NVML returned a value of `subject` that cannot be true (`detail`)."""
    GPU_NOT_REPORTED = "gpu_not_reported"
    DUPLICATE_UUID = "duplicate_uuid"
    """NVML works, and does not list the GPU."""
    PROBES_REFUSED = "probes_refused"
    """The kernel refuses the BPF programs or the probes that count launches."""
    LIBRARY_NOT_WATCHED = "library_not_watched"
    """Launches through a libcuda are not counted."""
    PACKAGE_MISSING = "package_missing"
    """The optional Python package `subject` is not installed."""
    PACKAGE_CONFLICT = "package_conflict"
    """The Python package `subject` hides a module of the same name that the exporter needs."""
    CALL_FAILED = "call_failed"
    """A call of the kubelet's API (`subject`) failed, or another service listens there."""
    ANSWER_TOO_LARGE = "answer_too_large"
    """The answer to a call (`subject`) exceeds the limits of the collector."""
    UNEXPECTED_ERROR = "unexpected_error"
    """A collector raised an exception, which is a defect of the exporter."""
    UNSPECIFIED = "unspecified"
    """A code of a later version."""

    @classmethod
    def _missing_(cls, _value: object) -> "ProblemCode":
        """Read a code of a later version, so that its recordings can be read."""
        return cls.UNSPECIFIED


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why a collection has failed, in whole or in part."""

    code: ProblemCode
    subject: str = ""
    """What could not be read or run: a path, a program, a command, a unit, a daemon, a GPU's UUID or index."""
    detail: str = ""
    """Text from outside: an error of the operating system or of NVML, or what a program wrote to stderr."""
    pid: int | None = None
    seconds: float | None = None
    exit_code: int | None = None
    limits: tuple[int, ...] = ()
    others: tuple["Problem", ...] = ()
    """Further problems of the same collection; these have no `others`."""

    @property
    def each(self) -> tuple["Problem", ...]:
        """The first problem alone, then the others."""
        return (replace(self, others=()), *self.others)


LOG_BLOCKED = Problem(code=ProblemCode.LOG_BLOCKED)


def joined(problems: Iterable[Problem | None]) -> Problem | None:
    """Return these as one problem with `others`, each once, at most `MOST_JOINED`; None if there is none."""
    found = dict.fromkeys(each for problem in problems if problem is not None for each in problem.each)
    first, others = next(iter(found), None), tuple(islice(found, 1, MOST_JOINED))
    return None if first is None else replace(first, others=others)


def of_error(subject: object, error: OSError) -> Problem:
    """Return that a file could not be read, with the reason of the operating system.

    A collector raises EMEDIUMTYPE for a file that is not of the type that it reads.
    """
    code = {
        errno.EPERM: ProblemCode.PERMISSION_DENIED,
        errno.EACCES: ProblemCode.PERMISSION_DENIED,
        errno.ENOENT: ProblemCode.NOT_FOUND,
        errno.EMEDIUMTYPE: ProblemCode.WRONG_FILE_TYPE,
    }.get(error.errno or 0, ProblemCode.NOT_READABLE)
    detail = "" if code is ProblemCode.WRONG_FILE_TYPE else error.strerror or str(error)
    return Problem(code=code, subject=str(subject), detail=detail)


def not_started(program: str, error: Exception) -> Problem:
    """Return that a program could not be started."""
    detail = getattr(error, "strerror", None) or str(error)
    return Problem(code=ProblemCode.COMMAND_NOT_STARTED, subject=program, detail=detail)


def timed_out(program: str, seconds: float) -> Problem:
    """Return that a program or command gave no answer within so many seconds."""
    return Problem(code=ProblemCode.TIMEOUT, subject=program, seconds=seconds)


def command_failed(program: str, exit_code: int | None, output: str) -> Problem:
    """Return that a program ended with this exit code, after this output."""
    return Problem(code=ProblemCode.COMMAND_FAILED, subject=program, exit_code=exit_code, detail=output)
