"""A real Prometheus and a real Alertmanager at work on the loopback device, for the tests that need one."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from tests.eventually import answering, eventually
from tests.ports import LOCALHOST, listening_address
from tests.tools import needed


class _Server:
    """A program with a configuration file and a log in a directory; ended with its context."""

    def __init__(
        self, directory: Path, configuration: Mapping[str, Any], name: str, program: str, *options: str
    ) -> None:
        file = directory / f"{name}.yml"
        file.write_text(json.dumps(configuration))  # YAML holds all of JSON
        self._log = directory / f"{name}.log"
        address = f"--web.listen-address={LOCALHOST}:0"
        self._command = [needed(program), f"--config.file={file}", address, *options]

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

    def _read(self, path: str, body: bytes | None = None) -> str:
        assert self.process.poll() is None, self._log.read_text()
        headers = {"Content-Type": "application/json"}
        request = urllib.request.Request(f"http://{self.address}{path}", data=body, headers=headers)
        with answering(), urllib.request.urlopen(request, timeout=30) as response:
            text: str = response.read().decode()
        return text


class Prometheus(_Server):
    """Prometheus with its data in a directory."""

    def __init__(self, directory: Path, configuration: Mapping[str, Any], *options: str) -> None:
        data = f"--storage.tsdb.path={directory / 'data'}"
        super().__init__(directory, configuration, "prometheus", "prometheus", data, *options)

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer of its API; waits until it answers."""
        query = urllib.parse.urlencode(parameters)
        return eventually(lambda: json.loads(self._read(f"/api/v1/{path}?{query}")))["data"]

    def vector(self, expression: str, **parameters: float) -> Sequence[tuple[Mapping[str, str], float]]:
        """The samples of an expression, now or at a `time`."""
        found = self.get("query", query=expression, **parameters)["result"]
        return [(each["metric"], float(each["value"][1])) for each in found]

    def query(self, expression: str) -> dict[str, float]:
        """The values of an expression, by client."""
        return {labels.get("client", ""): value for labels, value in self.vector(expression)}

    def own(self, name: str) -> float:
        """One of its own metrics, which have no labels."""
        for line in self._read("/metrics").splitlines():
            if line.startswith(f"{name} "):
                return float(line.split()[1])
        raise AssertionError(name)

    def shows(self, expression: str, values: set[float]) -> None:
        """Wait until an expression has these values."""

        def shown() -> None:
            assert set(self.query(expression).values()) == values, expression

        eventually(shown, every=0.2)


class Alertmanager(_Server):
    """Alertmanager, alone, with its data in a directory."""

    def __init__(self, directory: Path, configuration: Mapping[str, Any]) -> None:
        options = (f"--storage.path={directory / 'alertmanager'}", "--cluster.listen-address=")
        super().__init__(directory, configuration, "alertmanager", "prometheus-alertmanager", *options)

    def send(self, labels: Mapping[str, str], *, ended: datetime | None = None) -> None:
        """Send an alert as Prometheus does, or its end."""
        alert = {"labels": labels} | ({} if ended is None else {"endsAt": ended.isoformat()})
        self._read("/api/v2/alerts", json.dumps([alert]).encode())

    def inhibited(self, labels: Mapping[str, str]) -> bool:
        """Whether an alert, which it must know, is kept from being sent by another."""
        found = self.alerts(*(f'{name}="{value}"' for name, value in labels.items()))
        assert len(found) == 1, found
        ((_, inhibited),) = found
        return inhibited

    def alerts(self, *matchers: str) -> Sequence[tuple[Mapping[str, str], bool]]:
        """The labels of the alerts that match, and whether each is kept from being sent by another."""
        query = urllib.parse.urlencode([("filter", each) for each in matchers])
        found = json.loads(self._read(f"/api/v2/alerts?{query}"))
        return [(each["labels"], bool(each["status"]["inhibitedBy"])) for each in found]
