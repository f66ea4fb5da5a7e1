"""Which of NVIDIA's MPS programs a process runs, as far as /proc shows it."""

from enum import StrEnum

PREFIX = "nvidia-cuda-mps"
"""The kernel keeps no more than these 15 characters of both programs' names (measured, R580)."""


class MpsProgram(StrEnum):
    """A program of MPS."""

    CONTROL = "nvidia-cuda-mps-control"
    SERVER = "nvidia-cuda-mps-server"


def mps_program(executable: str | None, command: str | None) -> MpsProgram | None:
    """Return the program of MPS that a process runs; None if it runs another program.

    The executable's name decides where it is one of NVIDIA's. A process can choose its command, the name with argv[0].
    """
    names = (name.rpartition("/")[2] for name in (executable, command) if name)
    name = next((name for name in names if name.startswith(PREFIX)), None)
    if name is None:
        return None
    return MpsProgram.SERVER if name.removesuffix(" (deleted)").endswith("-server") else MpsProgram.CONTROL
