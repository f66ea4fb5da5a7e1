"""Settings of the daemon from its environment, like in the real one."""

import json
import os
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import names, wording

ASKED_BY = "STANDIN_MPS_ASKED_BY"


@dataclass(frozen=True, slots=True)
class Settings:
    """Settings of a daemon at its start."""

    pipe_directory: Path
    log_directory: Path
    gpus: tuple[str, ...]
    max_clients: int
    server_leaves_seconds: float
    """Seconds from a server's `Exiting` to its end. The first query in between gets FAULT."""
    active_thread_percentage: float
    protocol: int
    driver: int
    """The branch of the driver in the words of which the daemon writes its logs."""
    several_users: bool
    partitions: tuple[tuple[str, ...], ...]
    """Static SM partitions: server, device, name, chunks, SMs, with remainder or not, status, ID (protocol 3)."""
    asked_by: tuple[int, int] | None
    """PID and start time of the process that may query, with its descendants. None: every process may."""

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] = os.environ, options: Collection[str] = ()) -> "Settings":
        """Return the settings in the real daemon's variables and options, and the variables with STANDIN_MPS_."""
        gpus = environment.get("STANDIN_MPS_GPUS", "GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b")
        return cls(
            pipe_directory=Path(names.pipe_directory(environment)),
            log_directory=Path(environment.get("CUDA_MPS_LOG_DIRECTORY", "/var/log/nvidia-mps")),
            gpus=tuple(gpu.strip() for gpu in gpus.split(",") if gpu.strip()),
            max_clients=int(environment.get("STANDIN_MPS_MAX_CLIENTS", "48")),
            server_leaves_seconds=float(environment.get("STANDIN_MPS_SERVER_LEAVES_SECONDS", "0.08")),
            active_thread_percentage=float(environment.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "100")),
            protocol=int(environment.get("CUDA_MPS_PROTOCOL_VERSION", "2")),
            driver=int(environment.get("STANDIN_MPS_DRIVER", str(wording.MEASURED))),
            several_users=not {"-multiuser-server", "-M", "-m", "--multiuser"}.isdisjoint(options),
            partitions=tuple(map(tuple, json.loads(environment.get("STANDIN_MPS_PARTITIONS", "[]")))),
            asked_by=_process(environment.get(ASKED_BY, "")),
        )


def _process(text: str) -> tuple[int, int] | None:
    pid, _, start_ticks = text.partition(":")
    return (int(pid), int(start_ticks)) if start_ticks else None
