"""The exporter as a process of its own, with stand-ins for MPS and NVML."""

import json
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil
from prometheus_client.parser import text_string_to_metric_families

from tests import program
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn
from tests.standin.nvml import MEBIBYTE, Device, Process

GPU = Device().uuid
UNUSED_PID = 5_000_000
"""A PID above every PID that Linux assigns."""

SERVE = ("serve", "--web.listen-address", "127.0.0.1:0", "--client-min-age", "0", "--log.format=json")

FAST = {
    "control_deadline": 2.0,
    "collect_deadline": 2.0,
    "intervals": {"liveness": 1, "lists": 5, "nvml": 0.5, "stale": 0.3, "fault": 0.5},
}
"""Shorter deadlines and intervals, so that tests need not wait long."""

Labels = Mapping[str, str]


class Exporter:
    """A running exporter."""

    def __init__(self, arguments: list[str], environment: Mapping[str, str], log: Path, by: Sequence[str] = ()) -> None:
        """Start the exporter with these arguments of Python; `by` is a command that executes it."""
        self._log = log
        self._address = ""
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*by, sys.executable, *arguments],
                env=os.environ | environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
            )

    def log_text(self) -> str:
        """Return its log."""
        return self._log.read_text()

    def records(self) -> list[dict[str, Any]]:
        """Return the complete records of its log."""
        complete, _, _ = self.log_text().rpartition("\n")
        return [json.loads(line) for line in complete.splitlines()]

    def events(self, *names: str) -> list[dict[str, Any]]:
        """Return the logged events of these names, without level and timestamp."""
        found = [record for record in self.records() if record["event"] in names]
        return [{key: value for key, value in each.items() if key not in ("level", "timestamp")} for each in found]

    def address(self) -> str:
        """Wait until it serves, and return the URL of its metrics."""

        def serving() -> str:
            assert self.process.poll() is None, self.log_text()
            found = self.events("serving")
            assert found
            return str(found[0]["metrics"])

        self._address = self._address or eventually(serving)
        return self._address

    def scrape(self) -> str:
        """Return its metrics as text."""
        return self.text("/metrics")

    def page(self, path: str) -> Any:
        """Return the JSON of another path."""
        return json.loads(self.text(path))

    def text(self, path: str) -> str:
        """Return the text of a path."""
        address = self.address().removesuffix("/metrics") + path
        with urllib.request.urlopen(address, timeout=PATIENCE_SECONDS) as response:
            text: str = response.read().decode()
        return text

    def samples(self, name: str, **labels: str) -> list[tuple[Labels, float]]:
        """Return the samples of a name that have these labels."""
        lines = [line for line in self.scrape().splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
        families = text_string_to_metric_families("\n".join(lines))
        found = [sample for family in families for sample in family.samples]
        return [(each.labels, each.value) for each in found if labels.items() <= each.labels.items()]

    def value(self, name: str, **labels: str) -> float | None:
        """Return the sum of those samples, None if there is none."""
        found = self.samples(name, **labels)
        return sum(value for _, value in found) if found else None

    def shows(self, expected: float | None, name: str, /, **labels: str) -> None:
        """Wait until that sum has the expected value."""

        def shown() -> None:
            try:
                value = self.value(name, **labels)
                assert value == expected, f"{name} {labels} is {value}:\n{self.log_text()[-4000:]}"
            except urllib.error.HTTPError as error:
                error.close()
                raise AssertionError("no metrics yet") from error

        eventually(shown, every=0.2)

    def is_in_state(self, state: str) -> None:
        """Wait until the daemon is in this state, and assert that it is in no other."""
        self.shows(1, "cuda_mps_daemon_state", state=state)
        assert self.value("cuda_mps_daemon_state") == 1

    def stop(self) -> int:
        """Stop it with SIGTERM, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(PATIENCE_SECONDS)


Serve = Callable[..., Exporter]


def control_processes(mps: MpsStandIn) -> list[psutil.Process]:
    """Return the processes of the control program that query the stand-in's daemon now."""
    return [
        process
        for process in psutil.process_iter(["environ", "cmdline"])
        if (process.info["environ"] or {}).get("CUDA_MPS_PIPE_DIRECTORY") == str(mps.pipe_directory)
        and any(word.endswith("/nvidia-cuda-mps-control") for word in process.info["cmdline"] or [])
        and process.info["cmdline"][0] != "nvidia-cuda-mps-control"
    ]


def on_the_gpu(clients: Mapping[int, int], mps: MpsStandIn, *beside: int) -> Device:
    """The GPU with these clients and their MiB, their server, and processes beside MPS."""
    server = [] if mps.server_pid is None else [Process(mps.server_pid, 66 * MEBIBYTE, in_mps_list=False)]
    of_mps = [Process(pid, mebibytes * MEBIBYTE) for pid, mebibytes in clients.items()]
    others = [Process(pid, 700 * MEBIBYTE, in_mps_list=False) for pid in beside]
    return Device(processes=(*server, *of_mps, *others), memory_used_bytes=8192 * MEBIBYTE)


def fast_command(command: str, *attribution: str) -> list[str]:
    """Return the arguments of Python that run a command with `FAST` constants and this attribution."""
    flags = [*SERVE[1:], f"--attribution={'+'.join(attribution) or 'off'}"] if command == "serve" else ["--look"]
    return program.command(command, *flags, **FAST)


def run(environment: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run a command of the exporter."""
    return run_python(environment, *program.command(*arguments))


def run_python(environment: Mapping[str, str], *arguments: str) -> "subprocess.CompletedProcess[str]":
    """Run Python with these arguments."""
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=os.environ | environment, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
