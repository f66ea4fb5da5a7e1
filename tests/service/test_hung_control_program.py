"""The service with a control program that hangs, and with a daemon with a blocked log."""

import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.eventually import eventually
from tests.exporter_process import Exporter, Serve, run
from tests.standin.mps import BIN, MpsStandIn, is_alive, this_process
from tests.standin.mps_daemon.settings import ASKED_BY

CLIENT = 5_000_000

CONFIGURATION = """
[watchdog]
mode = "act"
[[daemons]]
pipe_directory = "{pipe}"
log_directory = "{logs}"
restart_command = ["nvidia-cuda-mps-control", "-d"]
"""
FAST = {
    "control_deadline": 1.0,
    "intervals": {"liveness": 1, "lists": 5, "stale": 0.3, "fault": 0.5},
    "rules": {"hung_after": 3.0},
}
"""Shorter deadlines and intervals, so that tests need not wait long."""

ServeWith = Callable[[Path], Exporter]


@pytest.fixture
def hangs(tmp_path: Path) -> Path:
    """While this file exists, the control program hangs before it connects."""
    return tmp_path / "hangs"


@pytest.fixture
def serve_with(mps: MpsStandIn, serve: Serve, tmp_path: Path, hangs: Path) -> ServeWith:
    """Starts the service, which reads the logs in a directory."""
    control = tmp_path / "program"
    control.write_text(f'#!/bin/sh\n[ -e {hangs} ] && exec sleep 600\nexec "{BIN}/nvidia-cuda-mps-control" "$@"\n')
    control.chmod(0o755)

    def start(logs: Path) -> Exporter:
        file = tmp_path / "config.toml"
        file.write_text(CONFIGURATION.format(pipe=mps.pipe_directory, logs=logs))
        logs.mkdir(exist_ok=True)
        variables = {"CUDA_MPS_EXPORTER_CONFIG_FILE": str(file), ASKED_BY: this_process(os.getpid())}
        return serve(overrides=FAST | {"control_executable": str(control)}, **variables)

    return start


@pytest.mark.systems
def test_does_not_restart_a_daemon_whose_control_program_hangs(
    mps: MpsStandIn, serve_with: ServeWith, hangs: Path, environment: dict[str, str]
) -> None:
    mps.start()
    mps.connect_and_wait(CLIENT)
    exporter = serve_with(mps.log_directory)
    exporter.shows(1, "cuda_mps_server_clients")
    daemon = mps.pid

    hangs.touch()
    exporter.shows(1, "cuda_mps_watchdog_diagnosis", diagnosis="program_unresponsive")
    exporter.shows(0, "cuda_mps_exporter_source_up", source="control")
    assert exporter.value("cuda_mps_daemon_up") == 1

    def has_waited() -> None:
        waits = exporter.events("watchdog_waits")
        assert [each["reason"] for each in waits] == ["program_at_fault"]

    eventually(has_waited)
    # As many commands as a hung daemon would have been ended after.
    for _ in range(4):
        failures = exporter.value("cuda_mps_exporter_source_failures_total", source="control") or 0
        eventually(lambda before=failures: _more(exporter, before))  # type: ignore[misc]
    assert exporter.events("daemon_unresponsive", "watchdog_acts") == []
    assert (mps.pid, is_alive(daemon)) == (daemon, True)
    findings = findings_of(environment)
    (command,) = [
        each for found in findings for step in found["steps"] for each in step["commands"] if "timeout 10" in each
    ]
    assert command.startswith('echo "get_server_list" | CUDA_MPS_PIPE_DIRECTORY=')

    hangs.unlink()
    exporter.shows(1, "cuda_mps_watchdog_diagnosis", diagnosis="well")
    exporter.shows(1, "cuda_mps_exporter_source_up", source="control")


def findings_of(environment: Mapping[str, str]) -> list[dict[str, Any]]:
    """What the running service finds."""
    found: list[dict[str, Any]] = json.loads(run(environment, "status", "--json").stdout)["findings"]
    return found


def _more(exporter: Exporter, before: float) -> None:
    assert (exporter.value("cuda_mps_exporter_source_failures_total", source="control") or 0) > before


def test_restarts_a_hung_daemon_whose_control_program_hangs(mps: MpsStandIn, serve_with: ServeWith) -> None:
    mps.start()
    exporter = serve_with(mps.log_directory)
    exporter.shows(1, "cuda_mps_daemon_up")
    before = mps.pid
    mps.stop_signal()

    def restarted() -> None:
        assert mps.is_running()
        assert mps.pid != before

    eventually(restarted)
    exporter.is_in_state("up")


class Relay:
    """Copies the daemon's log into another directory, until it is blocked: stands for the fifo's reader."""

    def __init__(self, source: Path, target: Path) -> None:
        self._source, self._target = source / "control.log", target / "control.log"
        self._ended, self.blocked = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        offset = 0
        with self._target.open("ab", buffering=0) as target:
            while not self._ended.wait(0.02):
                with self._source.open("rb") as source:
                    source.seek(offset)
                    new = source.read()
                if not self.blocked.is_set():
                    target.write(new)
                offset += len(new)

    def end(self) -> None:
        """Stop."""
        self._ended.set()
        self._thread.join()


@pytest.fixture
def relay(mps: MpsStandIn, tmp_path: Path) -> Iterator[Relay]:
    """The daemon's log, as it is read."""
    (tmp_path / "logs").mkdir()
    mps.start()
    made = Relay(mps.log_directory, tmp_path / "logs")
    yield made
    made.end()


@pytest.mark.systems
def test_reports_a_blocked_log_and_its_end(
    mps: MpsStandIn, serve_with: ServeWith, relay: Relay, tmp_path: Path, environment: dict[str, str]
) -> None:
    exporter = serve_with(tmp_path / "logs")
    exporter.shows(0, "cuda_mps_daemon_log_blocked")
    exporter.shows(1, "cuda_mps_exporter_log_followed", file="control.log")

    relay.blocked.set()
    exporter.shows(1, "cuda_mps_daemon_log_blocked")
    exporter.shows(0, "cuda_mps_exporter_log_followed", file="control.log")
    assert exporter.value("cuda_mps_daemon_up") == 1
    assert [each["event"] for each in exporter.events("daemon_log_blocked")] == ["daemon_log_blocked"]
    assert "log_blocked" in [found["code"] for found in findings_of(environment)]

    relay.blocked.clear()
    exporter.shows(0, "cuda_mps_daemon_log_blocked")
    exporter.shows(1, "cuda_mps_exporter_log_followed", file="control.log")
    assert len(exporter.events("daemon_log_unblocked")) == 1
