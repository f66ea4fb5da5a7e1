"""A real Alertmanager at work on the loopback device, for the tests that need one."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tests.ports import LOCALHOST, listening_address
from tests.tools import needed


class Alertmanager:
    """Alertmanager with a configuration, alone, and its data in a directory; ended with its context."""

    def __init__(self, directory: Path, configuration: Mapping[str, Any]) -> None:
        file = directory / "alertmanager.yml"
        file.write_text(json.dumps(configuration))  # YAML holds all of JSON
        self._log = directory / "alertmanager.log"
        self._command = [
            needed("prometheus-alertmanager"),
            f"--config.file={file}",
            f"--storage.path={directory / 'alertmanager'}",
            f"--web.listen-address={LOCALHOST}:0",
            "--cluster.listen-address=",
        ]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        return self

    @property
    def address(self) -> str:
        """Where it serves; waits until it does."""
        return listening_address(self._log)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def send(self, labels: Mapping[str, str], *, ended: datetime | None = None) -> None:
        """Send an alert as Prometheus does, or its end."""
        alert = {"labels": labels} | ({} if ended is None else {"endsAt": ended.isoformat()})
        self._ask("/api/v2/alerts", json.dumps([alert]).encode())

    def inhibited(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert, which it must know, is kept from being sent by another."""
        matchers = [f'{name}="{value}"' for name, value in labels.items()]
        query = urllib.parse.urlencode([("filter", each) for each in matchers])
        found: Sequence[Any] = json.loads(self._ask(f"/api/v2/alerts?{query}"))
        assert len(found) == 1, found
        return bool(found[0]["status"]["inhibitedBy"])

    def _ask(self, path: str, body: bytes | None = None) -> str:
        assert self.process.poll() is None, self._log.read_text()
        request = urllib.request.Request(
            f"http://{self.address}{path}", data=body, headers={"Content-Type": "application/json"}
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                text: str = response.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            raise AssertionError(f"not yet: {error}") from error
        return text
