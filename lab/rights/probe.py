"""Try every source once, as the present user, and print the results as JSON.

Its only argument is JSON. It imports no other module: an ordinary user gets it on stdin, and need
not be able to read its directory.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

MIB = 2**20
DEADLINE = 10
PROC_FILES = ("stat", "status", "comm", "cmdline", "cgroup", "environ")

Processes = dict[str, int]
Try = tuple[str, str, Callable[[], str]]


def main() -> None:
    look = json.loads(sys.argv[1])
    rows = [
        _row(*attempt)
        for attempt in (
            *_nvml(look["on_gpu"]),
            *_control(look["server"]),
            *_files(look["files"]),
            *_proc(look["processes"]),
        )
    ]
    sys.stdout.write(json.dumps(rows) + "\n")


def _row(source: str, of: str, attempt: Callable[[], str]) -> dict[str, Any]:
    try:
        return {"source": source, "of": of, "works": True, "detail": attempt()}
    except OSError as problem:
        return {"source": source, "of": of, "works": False, "detail": problem.strerror or str(problem)}
    except Exception as problem:
        return {"source": source, "of": of, "works": False, "detail": f"{type(problem).__name__}: {problem}"}


def _nvml(processes: Processes) -> Iterator[Try]:
    yield "NVML init", "", lambda: f"driver {_initialised().nvmlSystemGetDriverVersion()}"
    for source, call in (
        ("NVML compute process list", "nvmlDeviceGetComputeRunningProcesses"),
        ("NVML MPS process list", "nvmlDeviceGetMPSComputeRunningProcesses"),
    ):
        for name, pid in processes.items():
            yield source, name, partial(_memory, partial(_of_first_gpu, call), pid)
    for source, call in (
        ("NVML process utilisation", "nvmlDeviceGetProcessUtilization"),
        ("NVML processes utilisation info", "nvmlDeviceGetProcessesUtilizationInfo"),
    ):
        yield source, "", partial(_utilisation, partial(_of_first_gpu, call, 0), processes)


def _initialised() -> Any:
    """Return nvidia-ml-py. If it is missing, that is a result, too. It has no types."""
    nvml = importlib.import_module("pynvml")
    nvml.nvmlInit()
    return nvml


def _of_first_gpu(call: str, *arguments: int) -> Any:
    nvml = _initialised()
    return getattr(nvml, call)(nvml.nvmlDeviceGetHandleByIndex(0), *arguments)


def _memory(listed: Callable[[], Any], pid: int) -> str:
    used = {process.pid: process.usedGpuMemory for process in listed()}
    if pid not in used:
        raise LookupError("not listed")
    if used[pid] is None:
        raise LookupError("listed without its memory")
    return f"{used[pid] / MIB:g} MiB"


def _utilisation(read: Callable[[], Any], processes: Processes) -> str:
    """Return which processes have samples. Under MPS, only the server should have any."""
    names = {pid: name for name, pid in processes.items()}
    shares = {names.get(sample.pid, "other"): sample.smUtil for sample in read()}
    return ", ".join(f"{name} {share} %" for name, share in sorted(shares.items())) or "no samples"


def _control(server: int) -> Iterator[Try]:
    commands = ("get_server_list", f"get_server_status {server}", f"get_client_list {server}")
    for command in commands:
        yield f"control: {command.split()[0]}", "", partial(_ask, command)


def _ask(command: str) -> str:
    reply = subprocess.run(
        ["nvidia-cuda-mps-control"], input=command + "\n", capture_output=True, text=True, timeout=DEADLINE
    )
    if reply.returncode != 0 or reply.stderr:
        raise RuntimeError(f"exit code {reply.returncode}, {reply.stderr.strip()}")
    return " ".join(reply.stdout.split()) or "(empty)"


def _files(files: dict[str, str]) -> Iterator[Try]:
    for name, path in files.items():
        yield name, "", partial(_open, path)


def _open(path: str) -> str:
    """Open the file without a read, because a read of /dev/kmsg waits for the next record."""
    os.close(os.open(path, os.O_RDONLY | os.O_NONBLOCK))
    return "opens"


def _proc(processes: Processes) -> Iterator[Try]:
    for name, pid in processes.items():
        directory = Path("/proc", str(pid))
        for file in PROC_FILES:
            yield f"/proc/PID/{file}", name, partial(_read, directory / file)
        yield "/proc/PID/exe", name, partial(_target, directory / "exe")
        yield "pidfd_open", name, partial(_pidfd, pid)


def _read(path: Path) -> str:
    return f"{len(path.read_bytes())} bytes"


def _target(path: Path) -> str:
    return path.readlink().name


def _pidfd(pid: int) -> str:
    os.close(os.pidfd_open(pid))
    return "opens"


if __name__ == "__main__":
    main()
