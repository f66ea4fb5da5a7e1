"""How the preflight speaks of processes, paths and GPUs. Whatever they are called, it keeps to its line."""

import json
import shlex

from exporter.doctor.facts import ProcessFacts
from exporter.model.gpu import Gpu
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.telling.short import short_gpu, short_name

UNITS = "/opt/cuda-mps-exporter/share/cuda-mps-exporter/systemd"
"""Where the guide's installation has units and drop-ins: whoever mends need have no clone at hand."""


def who(process: ProcessFacts) -> str:
    """A process in a few words: `PID 5120 (python3 of carol)`."""
    command = short_name(process.command)
    user = short_name(process.user) or ("" if process.uid is None else f"UID {process.uid}")
    told = f"{command} of {user}" if command and user else command or user
    return f"PID {process.pid} ({told})" if told else f"PID {process.pid}"


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
