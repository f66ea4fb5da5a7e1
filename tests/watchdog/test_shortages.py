"""A real exporter that may act loses its descriptors, /proc or its CPU: a daemon with clients stays as it is."""

import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from exporter.loop import SETTLE_SECONDS
from tests import program
from tests.conftest import Starter
from tests.eventually import until
from tests.exporter_process import FAST, SERVE, Exporter
from tests.standin.mps import MpsStandIn, is_alive
from tests.tools import needed, not_here

pytestmark = [pytest.mark.systems, pytest.mark.timeout(300)]

MNT_DETACH = 2
"""umount2(2)."""

SHORTAGE_SECONDS = 6.0
RECOVERY_SECONDS = 3.0
STOPPED_SECONDS = 12.0


@contextmanager
def _few_descriptors(exporter: Exporter, free: int) -> Iterator[None]:
    pid = exporter.process.pid
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir(f"/proc/{pid}/fd"))) + 1
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + free, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@contextmanager
def _mounted(exporter: Exporter, *mount: str) -> Iterator[None]:
    inside = [needed("nsenter"), f"--target={exporter.process.pid}", "--mount"]
    subprocess.run([*inside, "mount", *mount, "/proc"], check=True)
    try:
        yield
    finally:
        # umount(8) itself reads /proc.
        unmount = f"import ctypes; ctypes.CDLL(None).umount2(b'/proc', {MNT_DETACH})"
        subprocess.run([*inside, sys.executable, "-c", unmount], check=True)


@contextmanager
def _stopped(exporter: Exporter) -> Iterator[None]:
    exporter.process.send_signal(signal.SIGSTOP)
    time.sleep(STOPPED_SECONDS - SHORTAGE_SECONDS)
    try:
        yield
    finally:
        exporter.process.send_signal(signal.SIGCONT)


def test_no_shortage_of_the_exporter_ends_a_daemon(
    mps: MpsStandIn, environment: dict[str, str], start: Starter, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        not_here("only root can mount /proc anew")
    # Without CAP_SYS_PTRACE, hidepid=2 hides processes from root too.
    without_ptrace = ["unshare", "--mount", "setpriv", "--bounding-set=-sys_ptrace", "--inh-caps=-sys_ptrace"]
    if subprocess.run([*without_ptrace, "mount", "-t", "proc", "proc", "/proc"], check=False).returncode:
        not_here("/proc cannot be mounted anew")
    restarted, restart = tmp_path / "restarted", tmp_path / "restart"
    restart.write_text(f"#!/bin/sh\necho >> {restarted}\n")
    restart.chmod(0o755)
    configuration = tmp_path / "config.toml"
    configuration.write_text(
        f'[[daemons]]\nname = "node"\npipe_directory = "{mps.pipe_directory}"\nlog_directory = "{mps.log_directory}"\n'
        f'restart_command = ["{restart}"]\nwatchdog = "act"\nuser = "root"\n'
    )
    mps.start()
    client = start()
    mps.connect_and_wait(client.pid)
    daemon, server = mps.pid, mps.server_pid
    assert server is not None
    flags = ["--watchdog.mode=act", "--watchdog.allow=restart_daemon,kill_clients,shut_down_server,end_hung_server"]
    variables = environment | {"CUDA_MPS_EXPORTER_CONFIG_FILE": str(configuration)}
    exporter = Exporter(
        program.command(*SERVE, *flags, **FAST), variables, tmp_path / "exporter.log", by=without_ptrace
    )
    try:
        exporter.is_in_state("up")
        trials = {
            "no free descriptor": lambda: _few_descriptors(exporter, 0),
            "one free descriptor": lambda: _few_descriptors(exporter, 1),
            "three free descriptors": lambda: _few_descriptors(exporter, 3),
            "hidepid": lambda: _mounted(exporter, "-t", "proc", "-o", "hidepid=2", "proc"),
            "no /proc": lambda: _mounted(exporter, "-t", "tmpfs", "none"),
            "SIGSTOP": lambda: _stopped(exporter),
        }
        wrong: dict[str, list[object]] = {}
        for name, trial in trials.items():
            before = len(exporter.records())
            with trial():
                time.sleep(SHORTAGE_SECONDS)
            time.sleep(RECOVERY_SECONDS)
            seen = [record["event"] for record in exporter.records()[before:]]
            found: list[object] = [each for each in seen if each in ("daemon_lost", "watchdog_acts", "source_raised")]
            found += [pid for pid in (daemon, server, client.pid) if not is_alive(pid)]
            if found or restarted.exists():
                wrong[name] = found
        assert not wrong
        exporter.is_in_state("up")

        time.sleep(SETTLE_SECONDS)
        mps.kill()

        until(lambda: restarted.exists())
    finally:
        exporter.process.kill()
        exporter.process.wait()
