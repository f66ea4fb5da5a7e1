"""Names and paths that a client needs. The import is cheap."""

import os
from collections.abc import Mapping

CONTROL_NAME = "nvidia-cuda-mps-control"
SERVER_NAME = "nvidia-cuda-mps-server"
COMM = "nvidia-cuda-mps"
BINARY_VERSION = "13000"
GPU_NAME = "NVIDIA H200"


def pipe_directory(environment: Mapping[str, str] = os.environ) -> str:
    """Return the pipe directory."""
    return environment.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")


def pid_file(directory: str | os.PathLike[str]) -> str:
    """Return the path of the pid file in a pipe directory."""
    return os.path.join(directory, f"{CONTROL_NAME}.pid")


def take_comm() -> None:
    """Set the process name, of which the kernel has 15 characters."""
    with open("/proc/self/comm", "w") as comm:
        comm.write(COMM)
