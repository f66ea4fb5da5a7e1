"""A log directory that really hangs (a mount without an answer) costs its daemon's logs alone, in the whole program."""

import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.discovery import Discovery
from tests import program
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.hanging import hangs
from tests.ports import free_address
from tests.standin.mps import MpsStandIn
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


def test_reports_a_fault_and_the_exit_of_another_daemon(daemons: tuple[MpsStandIn, MpsStandIn], tmp_path: Path) -> None:
    a, b = daemons
    config, address = tmp_path / "config.toml", free_address()
    config.write_text(CONFIGURATION.format(a=a, b=b))
    own = {"RUNTIME_DIRECTORY": str(tmp_path / "run"), "STATE_DIRECTORY": str(tmp_path / "state")}
    own |= {"CUDA_MPS_EXPORTER_CONFIG_FILE": str(config), "PATH": a.environment()["PATH"]}
    service = subprocess.Popen(
        [sys.executable, *program.command("serve", f"--web.listen-address={address}")], env=os.environ | own
    )

    def shows(*lines: str) -> None:
        try:
            with urllib.request.urlopen(f"http://{address}/metrics", timeout=PATIENCE_SECONDS) as response:
                text = response.read().decode()
        except OSError as error:
            raise AssertionError("it does not serve yet") from error
        for line in lines:
            assert line in text

    try:
        eventually(lambda: shows('cuda_mps_daemon_up{daemon="a"} 1', 'cuda_mps_daemon_up{daemon="b"} 1'))
        eventually(lambda: shows('log_followed{daemon="b",file="control.log"} 1'))
        client = subprocess.Popen(["sleep", "infinity"])
        b.connect_and_wait(client.pid)
        eventually(lambda: shows('cuda_mps_clients_connected_total{daemon="b"} 1'))
        b.fault(client.pid)
        eventually(lambda: shows('cuda_mps_faults_total{daemon="b"} 1'))
        client.kill()
        client.wait()
        b.kill()
        eventually(lambda: shows('cuda_mps_daemon_losses_total{daemon="b",reason="died"} 1'))
        shows('cuda_mps_daemon_up{daemon="a"} 1', 'cuda_mps_daemon_losses_total{daemon="a",reason="died"} 0')
        service.send_signal(signal.SIGTERM)
        assert service.wait(PATIENCE_SECONDS) == 0
    finally:
        service.kill()
        service.wait()


def test_discovery_finds_all_daemons(daemons: tuple[MpsStandIn, MpsStandIn], tmp_path: Path) -> None:
    discovery = Discovery(patterns=(), proc=Path("/proc"), clock=SystemClock())

    discovery.collect()

    found = {name for name in discovery.locations if str(tmp_path) in name}
    assert found == {str(daemon.pipe_directory) for daemon in daemons}
