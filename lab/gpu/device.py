"""The GPU as nvidia-smi reports it: a source that is independent of the exporter."""

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """Identity of the GPU in labels and figures."""

    uuid: str
    name: str
    driver: str


def devices() -> list[Device]:
    """Return the GPUs of this node by their numbers."""
    return [Device(*row) for row in _query("--query-gpu=uuid,name,driver_version")]


def the_device() -> Device:
    """Return the only GPU of this node. With several GPUs, the tests would not know which one a client uses."""
    (device,) = devices()
    return device


def memory_mib_by_pid() -> dict[int, int]:
    """Return MiB by PID of all processes with a CUDA context, the MPS server included."""
    return {int(pid): int(mib) for pid, mib in _query("--query-compute-apps=pid,used_memory")}


def _query(what: str) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    reply = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return [[cell.strip() for cell in line.split(",")] for line in reply.stdout.splitlines() if line.strip()]
