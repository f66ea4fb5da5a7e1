"""Simulated nodes with failures, a Prometheus that scrapes them, and an Alertmanager that notifies."""

import contextlib
import json
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import bcrypt

from tests.eventually import PATIENCE_SECONDS, answering, eventually
from tests.paging import fast_rules
from tests.paging.receiver import Receiver
from tests.ports import LOCALHOST, free_address
from tests.prometheus import Alertmanager, Prometheus
from tests.web.certificates import Authority
from tests.web.test_authentication import basic

JOB = "cuda-mps-exporter"
USER, PASSWORD = "prometheus", "wonderland"
EVERY = "1s"


class SimulatedNode:
    """The exporter's demo as a process, with TLS and a password."""

    def __init__(self, plan: Sequence[str], web_config: Path, authority: Authority) -> None:
        self.instance = free_address()
        """The address, which stays the same after a crash."""
        self._log = web_config.with_name(f"{self.instance}.log")
        self._trusting = ssl.create_default_context(cafile=str(authority.cert))
        planned = [word for each in plan for word in ("--at", each)]
        serving = (f"--web.listen-address={self.instance}", f"--web.config.file={web_config}", "--log.level=error")
        self._command = [sys.executable, "-m", "exporter", "demo", "--calm", *planned, *serving]

    def start(self) -> None:
        """Start; the times of `plan` count from now."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(self._command, stderr=log)

    def kill(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()

    def is_up(self) -> None:
        """Check that it serves."""
        self.get(f"https://{self.instance}/healthz")

    def get(self, url: str) -> str:
        """Return a page."""
        assert self._process.poll() is None, self._log.read_text()
        request = urllib.request.Request(url, headers={"Authorization": basic(USER, PASSWORD)})
        with answering(), urllib.request.urlopen(request, timeout=30, context=self._trusting) as response:
            text: str = response.read().decode()
        return text


class Environment:
    """Simulated nodes, Prometheus, Alertmanager and the receiver, which run while the context is open."""

    def __init__(self, directory: Path) -> None:
        self.pager = Receiver()
        self._directory = directory
        self._authority = Authority(directory)
        self._targets = directory / "targets.json"
        self._web_config = directory / "web.yml"
        self._nodes: list[SimulatedNode] = []
        self._up: list[str] = []
        self._scraping = False
        receivers = {name: self.pager.url(name) for name in ("pager", "tickets")}
        self.alertmanager = Alertmanager(directory, fast_rules.alertmanager(receivers))
        self._ending = contextlib.ExitStack()

    def __enter__(self) -> Self:
        server = self._authority.issue("node", f"IP:{LOCALHOST}")
        hashed = bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()
        web = {
            "tls_server_config": {"cert_file": str(server.cert), "key_file": str(server.key)},
            "basic_auth_users": {USER: hashed},
        }
        self._web_config.write_text(json.dumps(web))  # YAML holds all of JSON
        with contextlib.ExitStack() as beginning:
            beginning.enter_context(self.pager)
            beginning.enter_context(self.alertmanager)
            self._prometheus = Prometheus(self._directory, self._configuration())
            self._ending = beginning.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._nodes:
            each.kill()
        self._ending.close()

    def node(self, *plan: str) -> SimulatedNode:
        """Start a node."""
        node = SimulatedNode(plan, self._web_config, self._authority)
        node.start()
        self._nodes.append(node)
        return node

    def scrape(self, *nodes: SimulatedNode) -> None:
        """Scrape these nodes, each when it is up. Prometheus starts with the first one."""

        def all_up() -> None:
            problems = [problem for node in nodes if (problem := self._joined(node))]
            assert not problems, problems

        eventually(all_up, within=PATIENCE_SECONDS, every=0.1)
        if not self._scraping:
            self._scraping = True
            self._ending.enter_context(self._prometheus)
            self._prometheus.shows("up", {1.0})

    def _joined(self, node: SimulatedNode) -> str | None:
        """Return why a node is not scraped yet; None if it is up and scraped from now on."""
        if node.instance in self._up:
            return None
        try:
            node.is_up()
        except AssertionError as problem:
            return str(problem)
        self._up.append(node.instance)
        written = self._targets.with_suffix(".new")
        written.write_text(json.dumps([{"targets": self._up}]))
        written.replace(self._targets)
        return None

    def _configuration(self) -> dict[str, Any]:
        rules = self._directory / "cuda-mps.rules.json"
        rules.write_text(json.dumps(fast_rules.rules()))
        scrape = {
            "job_name": JOB,
            "scheme": "https",
            "tls_config": {"ca_file": str(self._authority.cert)},
            "basic_auth": {"username": USER, "password": PASSWORD},
            "file_sd_configs": [{"files": [str(self._targets)], "refresh_interval": EVERY}],
        }
        return {
            "global": {"scrape_interval": EVERY, "scrape_timeout": EVERY, "evaluation_interval": EVERY},
            "rule_files": [str(rules)],
            "alerting": {"alertmanagers": [{"static_configs": [{"targets": [self.alertmanager.address]}]}]},
            "scrape_configs": [scrape],
        }
