"""A real Prometheus at work on the loopback device, for the tests that need one."""

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.eventually import eventually
from tests.ports import LOCALHOST, listening_address
from tests.tools import needed


class Prometheus:
    """Prometheus with a configuration, and its data in a directory; ended with its context."""

    def __init__(self, directory: Path, configuration: Mapping[str, Any], *options: str) -> None:
        file = directory / "prometheus.yml"
        file.write_text(json.dumps(configuration))  # YAML holds all of JSON
        self._log = directory / "prometheus.log"
        self._command = [
            needed("prometheus"),
            f"--config.file={file}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address={LOCALHOST}:0",
            *options,
        ]

    def __enter__(self) -> Self:
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(self._command, stderr=log)
        return self

    @property
    def address(self) -> str:
        """Where it serves; waits until it does."""
        return listening_address(self._log)

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()

    def get(self, path: str, **parameters: str | float) -> Any:
        """The data of an answer of its API; waits until it answers."""

        def answered() -> Any:
            assert self.process.poll() is None, self._log.read_text()
            return json.loads(self._read(f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}"))

        return eventually(answered)["data"]

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

    def _read(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"http://{self.address}{path}", timeout=30) as response:
                text: str = response.read().decode()
        except (urllib.error.URLError, ConnectionError) as error:
            raise AssertionError(f"not yet: {error}") from error
        return text
