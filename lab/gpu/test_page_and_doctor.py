"""The page and `doctor` on a real node."""

import json
import os
from pathlib import Path

import pytest

from exporter.report.text import size_text
from tests.eventually import eventually

from . import figures
from .clients import NO_DAEMON, Clients
from .mps import ControlDaemon
from .program import Exporter, doctor

pytestmark = pytest.mark.gpu

PLANTED = {"memory_limit_without_effect", "process_bypassing"}
"""Mistakes that these tests plant. Without them, `doctor` must not report them."""

# NVML's lists are read every 10 s.
SEEN_WITHIN = 25


class TestPage:
    """The page during a fault with a surviving affected client."""

    def test_shows_clients_and_the_client_that_delays_recovery(
        self, exporter: Exporter, daemon: ControlDaemon, clients: Clients
    ) -> None:
        """With the command that ends it, until it has exited."""
        victim = clients.start_ready("victim", mib=2048, seconds=120, busy_ms=1, every_ms=20, hold=120)

        def there() -> None:
            assert victim.pid in exporter.scrape().memory_by_pid()
            used = exporter.scrape().memory_by_pid()[victim.pid]
            assert size_text(int(used)) in exporter.page("/")

        eventually(there, within=SEEN_WITHIN)
        _save("page-well.html", exporter.page("/"))

        clients.start_ready("cause", fault="oob", fault_after=1).fails()
        eventually(lambda: _shows(exporter, f"kill -KILL {victim.pid}"), within=SEEN_WITHIN)
        page = exporter.page("/")
        _save("page-fault.html", page)
        figures.note(page_kb=len(page.encode()) / 1000)

        victim.leave()
        eventually(lambda: _does_not_show(exporter, f"kill -KILL {victim.pid}"), within=SEEN_WITHIN)

    def test_a_runbook_is_served(self, exporter: Exporter) -> None:
        """The page links to it."""
        assert exporter.page("/runbooks/CudaMpsServerFault.md").startswith("# CudaMpsServerFault")


class TestDoctor:
    """`doctor` reports the planted mistakes and no others."""

    def test_a_daemon_with_a_client_has_none_of_the_mistakes(self, daemon: ControlDaemon, clients: Clients) -> None:
        """False reports would make it useless."""
        clients.start_ready("client", seconds=60)
        found = doctor(daemon)
        _save("doctor-well.json", json.dumps(found, indent=1))
        codes = {each["code"] for each in found["findings"]}
        assert not codes & PLANTED
        critical = [each for each in found["findings"] if each["severity"] == "critical"]
        assert not critical, critical

    def test_a_bypassing_process_and_its_pipe_directory(self, daemon: ControlDaemon, clients: Clients) -> None:
        """From its environment."""
        clients.start_ready("beside", seconds=60, environment=NO_DAEMON)
        found = doctor(daemon)
        _save("doctor-beside.json", json.dumps(found, indent=1))
        assert "process_bypassing" in {each["code"] for each in found["findings"]}


def test_a_memory_limit_without_effect(unstarted_daemon: ControlDaemon) -> None:
    unstarted_daemon.start(CUDA_MPS_PINNED_DEVICE_MEM_LIMIT="0=2G")
    codes = {each["code"] for each in doctor(unstarted_daemon)["findings"]}
    assert "memory_limit_without_effect" in codes


def _shows(exporter: Exporter, words: str) -> None:
    assert words in exporter.page("/")


def _does_not_show(exporter: Exporter, words: str) -> None:
    assert words not in exporter.page("/")


def _save(name: str, text: str) -> None:
    captures = os.environ.get("GPU_CAPTURES")
    if captures:
        Path(captures, name).write_text(text)
