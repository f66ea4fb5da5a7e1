"""Directories that really hang (a mount without an answer) cost only what is read from them, in the whole program."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.discovery import Discovery
from exporter.collectors.thread import MOST_HANGING
from tests import program
from tests.conftest import Starter
from tests.eventually import eventually, until
from tests.exporter_process import FAST, SERVE, Exporter
from tests.hanging import hangs
from tests.standin.mps import MpsStandIn, this_process
from tests.standin.mps_daemon.settings import ASKED_BY
from tests.tools import not_here

CONFIGURATION = """
[[daemons]]
name = "a"
pipe_directory = "{a.pipe_directory}"
log_directory = "{a.log_directory}"
[[daemons]]
name = "b"
pipe_directory = "{b.pipe_directory}"
log_directory = "{b.log_directory}"
"""


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[tuple[MpsStandIn, MpsStandIn]]:
    """Daemon a, whose log directory hangs from now on, and daemon b."""
    with MpsStandIn(tmp_path / "a") as a, MpsStandIn(tmp_path / "b") as b:
        for daemon in (a, b):
            daemon.pipe_directory.parent.mkdir()
            daemon.start()
        try:
            mount = hangs(a.log_directory)
            mount.__enter__()
        except OSError as error:
            not_here(f"nothing can be mounted: {error.strerror}")
        yield a, b
        mount.__exit__(None, None, None)


def test_reports_a_fault_and_the_exit_of_another_daemon(
    daemons: tuple[MpsStandIn, MpsStandIn], start: Starter, tmp_path: Path
) -> None:
    a, b = daemons
    config = tmp_path / "config.toml"
    config.write_text(CONFIGURATION.format(a=a, b=b))
    own = {"RUNTIME_DIRECTORY": str(tmp_path / "run"), "STATE_DIRECTORY": str(tmp_path / "state")}
    own |= {"CUDA_MPS_EXPORTER_CONFIG_FILE": str(config), "PATH": a.environment()["PATH"]}
    exporter = Exporter(program.command(*SERVE), own, tmp_path / "exporter.log")
    try:
        exporter.shows(1, "cuda_mps_daemon_up", daemon="a")
        exporter.shows(1, "cuda_mps_daemon_up", daemon="b")
        exporter.shows(1, "cuda_mps_exporter_log_followed", daemon="b", file="control.log")
        client = start().pid
        b.connect_and_wait(client)
        exporter.shows(1, "cuda_mps_clients_connected_total", daemon="b")
        b.fault(client)
        exporter.shows(1, "cuda_mps_faults_total", daemon="b")
        os.kill(client, signal.SIGKILL)
        b.kill()
        exporter.shows(1, "cuda_mps_daemon_losses_total", daemon="b", reason="died")
        assert exporter.value("cuda_mps_daemon_up", daemon="a") == 1
        assert exporter.value("cuda_mps_daemon_losses_total", daemon="a", reason="died") == 0
        assert exporter.stop() == 0
    finally:
        exporter.process.kill()
        exporter.process.wait()


def test_discovery_finds_all_daemons(daemons: tuple[MpsStandIn, MpsStandIn], tmp_path: Path) -> None:
    discovery = Discovery(patterns=(), proc=Path("/proc"), clock=SystemClock())

    discovery.collect()

    found = {name for name in discovery.locations if str(tmp_path) in name}
    assert found == {str(daemon.pipe_directory) for daemon in daemons}


ACTING = """
[[daemons]]
name = "b"
watchdog = "act"
pipe_directory = "{pipe}"
log_directory = "{logs}"
restart_command = ["nvidia-cuda-mps-control", "-d"]
"""
OTHER = """
[[daemons]]
pipe_directory = "{0}"
log_directory = "{0}/log"
"""


@pytest.fixture
def discovered(tmp_path: Path) -> Iterator[MpsStandIn]:
    """A running daemon that is not configured."""
    with MpsStandIn(tmp_path / "a") as daemon:
        daemon.pipe_directory.parent.mkdir()
        daemon.start()
        yield daemon


def test_restarts_a_daemon_while_other_pipe_directories_hang(
    mps: MpsStandIn, discovered: MpsStandIn, environment: dict[str, str], tmp_path: Path
) -> None:
    others = [tmp_path / str(number) for number in range(MOST_HANGING + 1)]
    for other in others:
        other.mkdir()
    file = tmp_path / "config.toml"
    text = ACTING.format(pipe=mps.pipe_directory, logs=mps.log_directory)
    file.write_text(text + "".join(OTHER.format(other) for other in others))
    mps.start()
    before, ended = mps.pid, discovered.pid
    own = environment | {ASKED_BY: this_process(os.getpid())}
    exporter = Exporter(
        program.command(*SERVE, f"--config.file={file}", discovery=True, **FAST), own, tmp_path / "exporter.log"
    )
    a = str(discovered.pipe_directory)

    with contextlib.ExitStack() as mounts:
        try:
            exporter.shows(1, "cuda_mps_daemon_up", daemon="b")
            exporter.shows(1, "cuda_mps_daemon_up", daemon=a)
            # After this, the exit of its process is known without its directory.
            until(lambda: exporter.value("cuda_mps_daemon_start_time_seconds", daemon=a) is not None)
            try:
                for directory in (Path(a), *others):
                    mounts.enter_context(hangs(directory))
            except OSError as error:
                not_here(f"nothing can be mounted: {error.strerror}")
            # The stand-in would look into its directory.
            os.kill(ended, signal.SIGKILL)
            mps.kill()

            def restarted() -> None:
                assert mps.is_running()
                assert mps.pid != before

            eventually(restarted)
            exporter.shows(1, "cuda_mps_daemon_up", daemon="b")
            exporter.shows(1, "cuda_mps_daemon_losses_total", daemon="b", reason="died")
            # The exit of a process needs no directory.
            exporter.shows(0, "cuda_mps_daemon_up", daemon=a)
            assert exporter.stop() == 0
        finally:
            exporter.process.kill()
            exporter.process.wait()
