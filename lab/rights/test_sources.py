"""Which sources work for root and for an ordinary user."""

import importlib
import json
import os
import pwd
import shutil
import stat
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lab.gpu.clients import NO_DAEMON, Clients
from lab.gpu.device import Device
from lab.gpu.mps import ControlDaemon, as_user, interpreter

from . import tables

pytestmark = pytest.mark.gpu

ORDINARY = "nobody"
KERNEL_LOG = "/dev/kmsg"
PROBE = Path(__file__).with_name("probe.py")
OTHER_USER = "bypassing process of nobody"
ROOTS = "root's client"
CONTROL = "root's control daemon"
# Sources that the exporter needs as root. The table has all others.
ROOT_NEEDS = (
    "NVML init",
    "control: get_server_list",
    "control: get_server_status",
    "control: get_client_list",
    "control.log",
    "server.log",
    "/proc/PID/stat",
    "/proc/PID/status",
    "/proc/PID/comm",
    "/proc/PID/exe",
    "/proc/PID/cgroup",
    "/proc/PID/environ",
    "pidfd_open",
)


@dataclass(frozen=True)
class Finding:
    """Result of one source for one user."""

    works: bool
    detail: str

    def __str__(self) -> str:
        detail = " ".join(self.detail.split()).replace("|", "/")
        return f"{'yes' if self.works else '**no**'}: {detail}"


Findings = dict[tuple[str, str], Finding]


@pytest.fixture(scope="class")
def processes(daemon: ControlDaemon, clients: Clients) -> dict[str, int]:
    """Return one process of each kind, of both users."""
    own = clients.start_ready("roots", mib=64, seconds=300, busy_ms=5, every_ms=10)
    bypassing = clients.start_ready(
        "bypasser", mib=64, seconds=300, busy_ms=5, every_ms=10, environment=NO_DAEMON, uid=_uid()
    )
    control = daemon.process()
    assert control is not None
    return {
        ROOTS: own.pid,
        OTHER_USER: bypassing.pid,
        "root's MPS server": daemon.server(),
        CONTROL: control.pid,
    }


@pytest.fixture(scope="class")
def by_root(root: Path, daemon: ControlDaemon, processes: dict[str, int]) -> Findings:
    assert os.getuid() == 0, "the comparison needs root"
    return _probe(root, daemon, processes, None)


@pytest.fixture(scope="class")
def by_ordinary(root: Path, daemon: ControlDaemon, processes: dict[str, int]) -> Findings:
    return _probe(root, daemon, processes, _uid())


class TestRights:
    """Results of the probe as root and as an ordinary user."""

    def test_the_table_is_written(
        self, daemon: ControlDaemon, gpu: Device, by_root: Findings, by_ordinary: Findings
    ) -> None:
        """Both users tried the same sources."""
        assert by_root.keys() == by_ordinary.keys()
        tables.write(_table(gpu, daemon, by_root, by_ordinary))

    def test_root_can_read_all_needed_sources(self, by_root: Findings) -> None:
        """A service that runs as root needs all of them."""
        missing = {key: finding for key, finding in by_root.items() if key[0] in ROOT_NEEDS and not finding.works}
        assert missing == {}

    def test_root_sees_all_processes_on_the_gpu(self, by_root: Findings) -> None:
        """Clients are in both lists, a bypassing process in one."""
        assert by_root["NVML compute process list", ROOTS].works
        assert by_root["NVML compute process list", OTHER_USER].works
        assert by_root["NVML MPS process list", ROOTS].works
        assert not by_root["NVML MPS process list", OTHER_USER].works, "a bypassing process is no client"

    def test_an_ordinary_user_can_identify_processes(self, by_ordinary: Findings) -> None:
        """All users can read the start time, which identifies a process together with the PID."""
        assert by_ordinary["/proc/PID/stat", ROOTS].works
        assert by_ordinary["pidfd_open", ROOTS].works


def _uid() -> int:
    return pwd.getpwnam(ORDINARY).pw_uid


def _probe(root: Path, daemon: ControlDaemon, processes: dict[str, int], uid: int | None) -> Findings:
    """Run the probe as a user, with nvidia-ml-py in a directory that the user can read."""
    modules = root / "modules"
    modules.mkdir(mode=0o755, exist_ok=True)
    source: Any = importlib.import_module("pynvml").__file__
    shutil.copy(source, modules / "pynvml.py")
    (modules / "pynvml.py").chmod(0o644)
    look = {
        "processes": processes,
        "on_gpu": {name: pid for name, pid in processes.items() if name != CONTROL},
        "server": daemon.server(),
        "files": {log.name: str(log) for log in (daemon.control_log, daemon.server_log)} | {KERNEL_LOG: KERNEL_LOG},
    }
    done = subprocess.run(
        [interpreter(uid), "-", json.dumps(look)],
        input=PROBE.read_text(),
        env={**daemon.environment, "PYTHONPATH": str(modules), "PYTHONDONTWRITEBYTECODE": "1"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=90,
        **as_user(uid),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout.splitlines()[-1])
    return {(row["source"], row["of"]): Finding(row["works"], row["detail"]) for row in rows}


def _table(gpu: Device, daemon: ControlDaemon, by_root: Findings, by_ordinary: Findings) -> str:
    rows = [
        f"| {source} | {of or '-'} | {finding} | {by_ordinary[source, of]} |"
        for (source, of), finding in by_root.items()
    ]
    return "\n".join(
        [
            f"{gpu.name}, driver {gpu.driver}; daemon, server and client are root's, the bypasser is {ORDINARY}'s.",
            "",
            f"| source | of | as root | as {ORDINARY} |",
            "|---|---|---|---|",
            *rows,
            "",
            f"Modes that the daemon gave its files, with umask {_umask():03o}:",
            "",
            "| file | mode | owner |",
            "|---|---|---|",
            *(_mode(path) for path in _files_of(daemon)),
            "",
        ]
    )


def _files_of(daemon: ControlDaemon) -> list[Path]:
    """Return the files of the daemon. The tests made the directories."""
    return sorted([*daemon.pipe_directory.iterdir(), *daemon.log_directory.iterdir()])


def _mode(path: Path) -> str:
    status = path.stat()
    owner = pwd.getpwuid(status.st_uid).pw_name
    return f"| {path.parent.name}/{path.name} | {stat.filemode(status.st_mode)} | {owner} |"


def _umask() -> int:
    """Return the umask, which can only be read by setting it."""
    present = os.umask(0o022)
    os.umask(present)
    return present
