"""How the preflight speaks of processes, paths and GPUs. Whatever they are called, it keeps to its line."""

import json
import shlex

from exporter.doctor.facts import DaemonFacts, ProcessFacts
from exporter.model.daemon import Daemon
from exporter.model.gpu import Gpu
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.telling.short import process_text, short_gpu, short_name

AS_ROOT = ("sudo cuda-mps-exporter doctor",)
ATTRIBUTION_AS_ROOT = ("sudo cuda-mps-exporter doctor --attribution=bpf",)
"""What the service was told by its unit, a command in a shell has to be told, too."""
TAKES_UP_ITS_UNIT = "systemctl daemon-reload && systemctl restart cuda-mps-exporter"

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins: whoever mends need have no clone at hand."""


def who(process: ProcessFacts) -> str:
    """A process in a few words: `PID 5120 (python3 of carol)`."""
    user = process.user or ("" if process.uid is None else f"UID {process.uid}")
    return process_text(process.pid, process.command, user)


def daemon_text(daemon: DaemonFacts) -> str:
    """A daemon that runs, and as which process: `/run/nvidia-mps: PID 441 (nvidia-cuda-mps-control of root)`."""
    return f"{shown(daemon.name)}: {who(daemon.process)}"


def shown(text: str) -> str:
    """Text that somebody else chose, such as a path or a problem."""
    return printable(text, LONGEST_PROBLEM)


def quoted(text: str) -> str:
    """The same as a word of a command, which a shell takes for one word whatever it is."""
    return shlex.quote(shown(text))


def keyed(key: str, text: str) -> str:
    """A key of the configuration file, with such a text."""
    return f"{key} = {json.dumps(shown(text), ensure_ascii=False)}"


def gpu_name(gpu: Gpu) -> str:
    """A GPU: `GPU 0 (GPU-1efa3f60, NVIDIA H200)`."""
    told = ", ".join(each for each in (short_gpu(gpu.reading.gpu), short_name(gpu.reading.name)) if each)
    return f"GPU ({told})" if gpu.reading.index is None else f"GPU {gpu.reading.index} ({told})"


def start_of(daemon: Daemon) -> str:
    """What starts a daemon, as a command: its unit, or NVIDIA's program."""
    if daemon.named_unit is not None:
        return f"systemctl start {quoted(daemon.named_unit)}"
    return f"CUDA_MPS_PIPE_DIRECTORY={quoted(daemon.pipe_directory)} nvidia-cuda-mps-control -d"


def with_everybodys_tmp(unit: str) -> str:
    """What gives a unit the /tmp that all others have."""
    return f"systemctl edit {quoted(unit)}  # [Service] PrivateTmp=no"
