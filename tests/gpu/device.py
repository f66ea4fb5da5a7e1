"""The GPU, as nvidia-smi tells of it: a second opinion that owes nothing to the program under test."""

import subprocess
from dataclasses import dataclass


@dataclass(frozen=True)
class Device:
    """What labels and figures name it by."""

    uuid: str
    name: str
    driver: str


def the_device() -> Device:
    """The one GPU of this node; with more of them, clients and counts would not be known to be on the same one."""
    (row,) = _query("--query-gpu=uuid,name,driver_version")
    return Device(*row)


def memory_mib_by_pid() -> dict[int, int]:
    """Every process with a CUDA context, the MPS server among them."""
    return {int(pid): int(mib) for pid, mib in _query("--query-compute-apps=pid,used_memory")}


def _query(what: str) -> list[list[str]]:
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    reply = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    return [[cell.strip() for cell in line.split(",")] for line in reply.stdout.splitlines() if line.strip()]
