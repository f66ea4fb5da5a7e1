"""Names and amounts in a few characters. Whatever somebody calls itself, it is short and keeps to its line."""

from collections.abc import Sequence

from exporter.model.observation import GpuUuid
from exporter.model.workload import Workload, WorkloadKind
from exporter.parse.printable import printable

_LONGEST_NAME = 32
_SHORT_UUID = 12
"""As much of a GPU's UUID as tells it from the others of a node: `GPU-1efa3f60`."""

_SHORT_ID = 12
"""As much of a container's ID as Docker shows."""

_MEBIBYTE = 1 << 20


def cut(text: str, longest: int) -> str:
    """A text; where it is longer than that, what is left out is shown."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def short_name(text: str | None) -> str:
    """A name, shown safely and cut short; empty where there is none."""
    return cut(printable(text or ""), _LONGEST_NAME)


def short_gpu(gpu: GpuUuid) -> str:
    """As much of a GPU's UUID as tells it from others."""
    return printable(gpu)[:_SHORT_UUID]


def short_owner(workload: Workload | None, pod: str | None) -> str:
    """An owner, with the pod's name where there is one; empty where it is a user, who is named otherwise."""
    match workload:
        case None | Workload(kind=WorkloadKind.USER):
            return ""
        case Workload(kind=WorkloadKind.SLURM_JOB, name=name):
            return f"job {short_name(name)}"
        case Workload(kind=WorkloadKind.POD, name=name):
            return f"pod {short_name(pod or name)}"
        case Workload(kind=WorkloadKind.CONTAINER, name=name):
            return f"container {short_name(name)[:_SHORT_ID]}"
        case Workload(name=name):
            return short_name(name)


def pid_text(pid: int) -> str:
    """A PID; a negative number stands for a PID of another namespace, which cannot be told here."""
    return f"PID {pid}" if pid > 0 else "a PID not known here"


def mebibytes(used_bytes: int) -> str:
    """An amount of memory."""
    return f"{used_bytes // _MEBIBYTE} MiB"


def counted(count: int, one: str, many: str = "") -> str:
    """How many of something: `1 client`, `2 clients`; `many` where an s is not enough."""
    return f"{count} {one if count == 1 else many or f'{one}s'}"


def listed(names: Sequence[str]) -> str:
    """Several names as one speaks of them: `0, 1 and 2`."""
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def process_text(pid: int, command: str | None, user: str | None, owner: str = "") -> str:
    """A process in a few words: `PID 600 (train.py of alice, job 42)`."""
    named = " of ".join(each for each in (short_name(command), short_name(user)) if each)
    told = ", ".join(each for each in (named, owner) if each)
    return f"{pid_text(pid)} ({told})" if told else pid_text(pid)
