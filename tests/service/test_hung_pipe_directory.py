"""Pipe directories that really hang cost only what is read from them, in the whole program."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.collectors.thread import MOST_HANGING
from tests import program
from tests.eventually import eventually
from tests.exporter_process import FAST, SERVE, Exporter
from tests.hanging import hangs
from tests.standin.mps import MpsStandIn, this_process
from tests.standin.mps_daemon.settings import ASKED_BY
from tests.tools import not_here

CONFIGURATION = """
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
    text = CONFIGURATION.format(pipe=mps.pipe_directory, logs=mps.log_directory)
    file.write_text(text + "".join(OTHER.format(other) for other in others))
    mps.start()
    before, ended = mps.pid, discovered.pid
    own = environment | {ASKED_BY: this_process(os.getpid())}
    exporter = Exporter(
        program.command(*SERVE, f"--config.file={file}", discovery=True, **FAST), own, tmp_path / "exporter.log"
    )
    a = str(discovered.pipe_directory)

    def is_known() -> None:
        assert exporter.value("cuda_mps_daemon_start_time_seconds", daemon=a) is not None

    with contextlib.ExitStack() as mounts:
        try:
            exporter.shows(1, "cuda_mps_daemon_up", daemon="b")
            exporter.shows(1, "cuda_mps_daemon_up", daemon=a)
            # After this, the exit of its process is known without its directory.
            eventually(is_known)
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
