"""A node that is set up by the guides, seen from outside."""

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.eventually import PATIENCE_SECONDS, answering, eventually
from tests.exporter_process import Exporter
from tests.standin.mps import MpsStandIn

from .machine import ROOT, Machine

GUIDE = ROOT / "docs" / "start.md"
PAGE = ROOT / "docs" / "install" / "host.md"
DAEMON = "nvidia-cuda-mps.service"
EXPORTER = "cuda-mps-exporter.service"
USER = "cuda-mps-exporter"
RULES = "50-cuda-mps-exporter.rules"
NAME = "/tmp/nvidia-mps"
CLIENT = 5_000_000
"""A PID that no process has."""
CONFIGURATION = "/etc/cuda-mps-exporter/config.toml"
SETTINGS = '[web]\nlisten_address = ["{address}"]\n[log]\nformat = "json"\n'


class Node(Exporter):
    """A machine with the units of a daemon and an exporter."""

    def __init__(self, machine: Machine, address: str, directory: Path) -> None:
        """`address` is where the exporter listens. `directory` is for files of the stand-in outside of the machine."""
        self.machine = machine
        self.settings = SETTINGS.format(address=address)
        self._address = f"http://{address}/metrics"
        self.mps = MpsStandIn(directory)
        self.mps.pipe_directory = machine.root / "tmp" / "nvidia-mps"
        self.mps.log_directory = machine.root / "var" / "log" / "nvidia-mps"
        shutil.copytree(ROOT / "systemd", machine.root / "root" / "systemd")
        machine.write(CONFIGURATION, self.settings)

    def follow(self, guide: Path, section: str) -> None:
        """Run the commands of a guide, except those that install the exporter's program, which exists."""
        text = guide.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        lines = [
            line
            for line in re.findall(r"^    (.+)$", text, re.MULTILINE)
            if not re.search(r"/pip install|\.deb|dnf|restorecon", line)
        ]
        assert lines
        self.machine.do("sh", "-euc", "\n".join(("cd /root", *lines)))

    def address(self) -> str:
        """The URL of the exporter."""
        return self._address

    def log_text(self) -> str:
        """Return nothing: the report of a failed test has the journal."""
        return ""

    def scrape(self) -> str:
        """Return the metrics as text."""
        with answering(), urllib.request.urlopen(self._address, timeout=PATIENCE_SECONDS) as response:
            text: str = response.read().decode()
        return text

    def pid(self, unit: str) -> int:
        """Return the PID of a unit's main process in the machine; 0 if there is none."""
        return int(self.machine.show(unit, "MainPID"))

    def settles(self) -> None:
        """Wait until daemon and exporter run, and the exporter reports this daemon as up.

        An earlier test may have ended a daemon a moment ago, so that the exporter still reports that one.
        """
        for unit in (DAEMON, EXPORTER):
            self.machine.run("systemctl", "reset-failed", unit)
            self.machine.do("systemctl", "start", unit)
        eventually(lambda: self.answers(0))
        eventually(self.is_known)
        self.shows(1, "cuda_mps_daemon_up", daemon=NAME)

    def is_known(self) -> None:
        """Assert that the exporter knows the daemon's present process."""
        daemons = self.page("/api/v1/status")["data"]["daemons"]
        assert [each["pid"] for each in daemons if each["name"] == NAME] == [self.pid(DAEMON)]

    def has_lost(self, times: int, *, since: float) -> None:
        """Assert that the exporter has reported so many losses of the daemon since a time."""
        lost = self.page(f"/api/v1/events?event=daemon_lost&daemon={NAME}&since={since}")["data"]
        assert len(lost) == times

    def answers(self, before: int) -> None:
        """Assert that the daemon is another process than before, and answers."""
        assert self.pid(DAEMON) not in (0, before)
        assert self.machine.run("sh", "-c", "echo get_server_list | timeout 10 nvidia-cuda-mps-control").returncode == 0

    def restarts(self, unit: str) -> int:
        """Return how often systemd has restarted a unit since it was last started or reset."""
        return int(self.machine.show(unit, "NRestarts"))

    def is_another(self, unit: str, before: int) -> None:
        """Assert that the unit has another process than before."""
        assert self.pid(unit) not in (0, before)

    def has_failed(self, unit: str) -> None:
        """Assert that systemd has given up on the unit."""
        assert self.machine.show(unit, "ActiveState") == "failed"

    def journal(self, unit: str) -> str:
        """Return the journal of a unit, with systemd's lines about it."""
        return self.machine.do("journalctl", "--no-pager", f"--unit={unit}", "--output=cat")

    def ask(self, command: str) -> str:
        """Return the daemon's reply to a command, once no other session blocks it."""

        def answer() -> str:
            done = self.machine.run("sh", "-c", f"echo {command} | nvidia-cuda-mps-control")
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        return eventually(answer)

    def logs(self, text: str) -> int:
        """Return how often the daemon has logged this."""
        return (self.mps.log_directory / "stdout.log").read_text().count(text)

    def has_logged(self, text: str, times: int) -> None:
        """Assert that the daemon has logged this so often."""
        assert self.logs(text) == times

    def starts(self) -> int:
        """Return how often the daemon has started, according to its log."""
        return self.logs("Starting control daemon")

    def server(self) -> int:
        """Return the PID of the daemon's server."""
        found = self.samples("cuda_mps_server_clients", daemon=NAME)
        assert found
        return int(found[0][0]["server"])

    def page(self, path: str) -> Any:
        """Return the content of another page."""
        try:
            return super().page(path)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            raise AssertionError(f"no page yet: {error}") from error
