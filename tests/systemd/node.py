"""A node on which all of it is installed as the guide says, seen from outside."""

import re
import shutil
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from tests.eventually import PATIENCE_SECONDS, eventually
from tests.exporter_process import Exporter
from tests.standin.mps import MpsStandIn

from .machine import ROOT, Machine

UNITS, START = ROOT / "docs" / "systemd.md", ROOT / "docs" / "start.md"
DAEMON = "nvidia-cuda-mps.service"
EXPORTER = "cuda-mps-exporter.service"
USER = "cuda-mps-exporter"
RULES = "50-cuda-mps-exporter.rules"
NAME = "/tmp/nvidia-mps"
CLIENT = 5_000_000
"""A PID that nobody has."""
CONFIGURATION = "/etc/cuda-mps-exporter/config.toml"
SETTINGS = '[web]\nlisten_address = ["{address}"]\n[log]\nformat = "json"\n'


class Node(Exporter):
    """A machine with a daemon and an exporter, each by its unit."""

    def __init__(self, machine: Machine, address: str, directory: Path) -> None:
        """`address` is where the exporter listens, `directory` is for what the stand-in needs on this side."""
        self.machine = machine
        self.settings = SETTINGS.format(address=address)
        self._address = f"http://{address}/metrics"
        self.mps = MpsStandIn(directory)
        self.mps.pipe_directory = machine.root / "tmp" / "nvidia-mps"
        self.mps.log_directory = machine.root / "var" / "log" / "nvidia-mps"
        shutil.copytree(ROOT / "systemd", machine.root / "root" / "systemd")
        machine.write(CONFIGURATION, self.settings)

    def follow(self, guide: Path, section: str) -> None:
        """Do as a guide says, except for what makes the Python environment, which is there."""
        text = guide.read_text().partition(f"\n## {section}\n")[2].partition("\n## ")[0]
        lines = [line for line in re.findall(r"^    (.+)$", text, re.MULTILINE) if "/pip install" not in line]
        assert lines
        self.machine.do("sh", "-euc", "\n".join(("cd /root", *lines)))

    def address(self) -> str:
        """Where its metrics are."""
        return self._address

    def scrape(self) -> str:
        """The metrics as text."""
        try:
            with urllib.request.urlopen(self._address, timeout=PATIENCE_SECONDS) as response:
                return str(response.read().decode())
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            raise AssertionError(f"no metrics yet: {error}") from error

    def pid(self, unit: str) -> int:
        """The PID of a unit's main process, as it is in the machine; 0 where there is none."""
        return int(self.machine.show(unit, "MainPID"))

    def settles(self) -> None:
        """Wait until daemon and exporter run, and the one knows that the other does."""
        for unit in (DAEMON, EXPORTER):
            self.machine.run("systemctl", "reset-failed", unit)
            self.machine.do("systemctl", "start", unit)
        eventually(lambda: self.answers(0))
        self.shows(1, "cuda_mps_daemon_up", daemon=NAME)

    def answers(self, before: int) -> None:
        """The daemon is another process than it was, and answers."""
        assert self.pid(DAEMON) not in (0, before)
        assert self.machine.run("sh", "-c", "echo get_server_list | timeout 10 nvidia-cuda-mps-control").returncode == 0

    def restarts(self, unit: str) -> int:
        """How often systemd has restarted a unit by itself, since it was last started or reset."""
        return int(self.machine.show(unit, "NRestarts"))

    def is_another(self, unit: str, before: int) -> None:
        """The unit's process is another than it was."""
        assert self.pid(unit) not in (0, before)

    def has_failed(self, unit: str) -> None:
        """Systemd has given the unit up."""
        assert self.machine.show(unit, "ActiveState") == "failed"

    def journal(self, unit: str) -> str:
        """What the journal has of a unit, and of systemd about it."""
        return self.machine.do("journalctl", "--no-pager", f"--unit={unit}", "--output=cat")

    def ask(self, command: str) -> str:
        """What the daemon answers, once nobody else's session keeps it from doing so."""

        def answer() -> str:
            done = self.machine.run("sh", "-c", f"echo {command} | nvidia-cuda-mps-control")
            assert done.returncode == 0, done.stderr
            return done.stdout.strip()

        return eventually(answer)

    def logs(self, text: str) -> int:
        """How often the daemon has said this."""
        return (self.mps.log_directory / "stdout.log").read_text().count(text)

    def has_logged(self, text: str, times: int) -> None:
        """The daemon has said this so often."""
        assert self.logs(text) == times

    def starts(self) -> int:
        """How often the daemon has started, by its log."""
        return self.logs("Starting control daemon")

    def server(self) -> int:
        """The PID of the daemon's server."""
        found = self.samples("cuda_mps_server_clients", daemon=NAME)
        assert found
        return int(found[0][0]["server"])

    def page(self, path: str) -> Any:
        """What another page has to say."""
        try:
            return super().page(path)
        except (urllib.error.URLError, ConnectionError, TimeoutError) as error:
            raise AssertionError(f"no page yet: {error}") from error
