"""Two exporters that are to act for one daemon: one acts, and the other observes, reports that, and takes over."""

from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests import program
from tests.exporter_process import FAST, Exporter, run
from tests.standin.mps import BIN, MpsStandIn, is_alive
from tests.standin.mps import _processes_of as processes_of

OURS = ("PATH", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY")
SERVE = ("serve", "--web.listen-address", "127.0.0.1:0", "--log.format=json")


def configuration(mps: MpsStandIn) -> str:
    """Return a configuration that restarts the stand-in at once."""
    variables = [f"{name}={value}" for name, value in mps.environment().items() if name not in OURS]
    return f"""
        [watchdog]
        mode = "act"

        [[daemons]]
        name = "training"
        pipe_directory = "{mps.pipe_directory}"
        log_directory = "{mps.log_directory}"
        restart_command = {["env", *variables, f"{BIN}/nvidia-cuda-mps-control", "-d"]}
    """


@pytest.fixture
def serve(mps: MpsStandIn, tmp_path: Path) -> Iterator[Callable[..., Exporter]]:
    """Start exporters that share the lock directory and nothing else."""
    (tmp_path / "config.toml").write_text(configuration(mps))
    started: list[Exporter] = []

    def start(state: str | None = None) -> Exporter:
        number = len(started)
        environment = mps.environment() | {
            "CUDA_MPS_EXPORTER_CONFIG_FILE": str(tmp_path / "config.toml"),
            "RUNTIME_DIRECTORY": str(tmp_path / f"run{number}"),
            "STATE_DIRECTORY": str(tmp_path / (state or f"state{number}")),
        }
        command = program.command(*SERVE, **FAST, lock_directory=tmp_path / "locks", rules={"backoff": 0.1})
        del environment["CUDA_MPS_PIPE_DIRECTORY"], environment["CUDA_MPS_LOG_DIRECTORY"]
        started.append(Exporter(command, environment, tmp_path / f"exporter{number}.log"))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.wait()


def daemons(mps: MpsStandIn) -> list[int]:
    """Return the PIDs of the control daemons that run in the stand-in's directory."""
    words = {pid: _words(pid) for pid in processes_of(mps.pipe_directory)}
    return [pid for pid, line in words.items() if line[:1] == [b"nvidia-cuda-mps-control"] and b"-d" in line]


def _words(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return []


def restarted_by(exporter: Exporter, times: int) -> None:
    """Wait until an exporter's restarts have helped so often."""
    exporter.shows(times, "cuda_mps_watchdog_restarts_total", reason="down", result="succeeded")


def test_one_exporter_acts_and_the_other_takes_over(mps: MpsStandIn, serve: Callable[..., Exporter]) -> None:
    mps.start()
    first = serve()
    first.shows(1, "cuda_mps_watchdog_mode", mode="act")
    first.shows(1, "cuda_mps_daemon_up")
    second = serve()
    second.shows(1, "cuda_mps_watchdog_blocked", reason="another_exporter")
    second.shows(1, "cuda_mps_watchdog_mode", mode="observe")
    second.shows(1, "cuda_mps_daemon_up")

    mps.kill()
    restarted_by(first, 1)
    assert len(daemons(mps)) == 1
    assert second.events("watchdog_acts") == []
    assert second.events("watchdog_may_not_act") == [
        {"event": "watchdog_may_not_act", "daemon": "training", "reason": "another_exporter"}
    ]

    first.process.kill()
    first.process.wait()
    second.shows(1, "cuda_mps_watchdog_mode", mode="act")
    second.shows(0, "cuda_mps_watchdog_blocked", reason="another_exporter")
    second.shows(1, "cuda_mps_daemon_up")
    mps.kill()
    restarted_by(second, 1)
    assert len(daemons(mps)) == 1


def test_restarts_nothing_without_a_usable_state_directory(
    mps: MpsStandIn, serve: Callable[..., Exporter], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    mps.start()
    exporter = serve("file")
    exporter.shows(1, "cuda_mps_watchdog_state", state="state_lost")
    exporter.shows(1, "cuda_mps_watchdog_blocked", reason="state_lost")
    exporter.shows(1, "cuda_mps_daemon_up")
    pid = mps.pid

    mps.kill()
    exporter.shows(1, "cuda_mps_watchdog_diagnosis", diagnosis="down")
    exporter.shows(1, "cuda_mps_watchdog_state", state="state_lost")
    assert (exporter.events("watchdog_acts"), daemons(mps), is_alive(pid)) == ([], [], False)


def test_a_second_exporter_with_the_same_state_serves_and_stores_nothing_until_the_first_ends(
    mps: MpsStandIn, serve: Callable[..., Exporter]
) -> None:
    mps.start()
    first = serve("shared")
    first.shows(1, "cuda_mps_exporter_history_writable")
    second = serve("shared")
    second.shows(0, "cuda_mps_exporter_history_writable")
    second.shows(1, "cuda_mps_daemon_up")

    first.process.kill()
    first.process.wait()
    second.shows(1, "cuda_mps_exporter_history_writable")


def test_a_second_exporter_with_the_same_port_exits(mps: MpsStandIn, serve: Callable[..., Exporter]) -> None:
    mps.start()
    address = urlsplit(serve().address()).netloc

    done = run(mps.environment(), "serve", f"--web.listen-address={address}")

    assert (done.returncode, address in done.stderr) == (1, True)
