"""Who a client is, in a few words. Whatever it calls itself, it is short and keeps to its line."""

from exporter.model.incident import Tenant
from exporter.model.observation import GpuUuid
from exporter.model.workload import Workload, WorkloadKind
from exporter.parse.printable import printable

_LONGEST_NAME = 32
_SHORT_UUID = 12
"""As much of a GPU's UUID as tells it from the others of a node: `GPU-1efa3f60`."""

_SHORT_ID = 12
"""As much of a container's ID as Docker shows."""


def called(tenant: Tenant) -> str:
    """A client in a few words: `PID 600 (train.py of alice, job 42)`."""
    command, user = short_name(tenant.command), short_name(tenant.user)
    who = f"{command} of {user}" if command and user else command or user
    told = ", ".join(each for each in (who, _whose(tenant)) if each)
    return f"{pid_text(tenant.pid)} ({told})" if told else pid_text(tenant.pid)


def _whose(tenant: Tenant) -> str:
    """Its workload, but for a user, in a few words; empty where there is none."""
    match tenant.workload:
        case None | Workload(kind=WorkloadKind.USER):
            return ""
        case Workload(kind=WorkloadKind.SLURM_JOB, name=name):
            return f"job {short_name(name)}"
        case Workload(kind=WorkloadKind.POD, name=name):
            return f"pod {short_name(tenant.pod or name)}"
        case Workload(kind=WorkloadKind.CONTAINER, name=name):
            return f"container {short_name(name)[:_SHORT_ID]}"
        case Workload(name=name):
            return short_name(name)


def short_gpu(gpu: GpuUuid) -> str:
    """As much of a GPU's UUID as tells it from others."""
    return printable(gpu)[:_SHORT_UUID]


def pid_text(pid: int) -> str:
    """A PID; a negative number stands for a PID of another namespace, which cannot be told here."""
    return f"PID {pid}" if pid > 0 else "a PID not known here"


def short_name(text: str | None) -> str:
    """A name, shown safely and cut short; empty where there is none."""
    name = printable(text or "")
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
