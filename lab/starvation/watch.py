"""What the exporter shows over time: samples of /metrics, and when the status changes."""

import json
import re
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lab.gpu.scrape import Scrape, fetch, page

EVERY_SECONDS, KEPT_SECONDS = 1.0, 5.0
"""How often the exporter is read, and how often all samples are kept."""

RATIO, LEAST, ERROR = (f"cuda_mps_client_slowdown_{name}" for name in ("ratio", "least_ratio", "error_ratio"))
INFO = "cuda_mps_client_info"
FAMILIES = (
    RATIO,
    LEAST,
    ERROR,
    "cuda_mps_client_slowdown_info",
    INFO,
    "cuda_mps_client_sm_utilization_ratio",
    "cuda_mps_client_dram_bandwidth_ratio",
    "cuda_mps_client_watched_ratio",
    "cuda_mps_gpu_info",
    "cuda_mps_gpu_dram_bandwidth_ratio",
)
THRESHOLD = 2.0
"""That of the alert CudaMpsClientStarved. `alert.py` evaluates the rule itself."""

STATES = ("expression", "slowed down", "problem")
"""The alert's expression, the line of the status, and the problem `client_starved`."""

Json = Mapping[str, Any]


class Watch(threading.Thread):
    """Reads the exporter once a second. `url` is its present address, `pid` the client that is starved."""

    def __init__(self, url: Callable[[], str], pid: Callable[[], int], daemon_name: str, gpu: str) -> None:
        super().__init__(daemon=True)
        self._url, self._pid = url, pid
        self._of = {"daemon": daemon_name, "gpu": gpu}
        self._ended = threading.Event()
        self._began = time.time()
        self.at: list[float] = []
        self.series: dict[str, list[float | None]] = {}
        self.values: list[tuple[float, float, float]] = []
        """When the client had which slowdown, with which standard error."""
        self.changes: list[tuple[float, str, bool]] = []
        """When a state began (True) or ended."""
        self.problems: list[tuple[float, str]] = []
        """When the exporter could not be read, and why."""

    def run(self) -> None:
        """Read until the end."""
        turn = 0
        while not self._ended.wait(max(0.0, self._began + turn * EVERY_SECONDS - time.time())):
            try:
                self._read()
            except Exception as problem:  # the exporter may start again
                if not self.problems or time.time() - self.problems[-1][0] > KEPT_SECONDS:
                    self.problems.append((time.time(), repr(problem)))
            turn = max(turn + 1, int((time.time() - self._began) / EVERY_SECONDS))

    def end(self) -> None:
        """End, and wait for the last reading."""
        self._ended.set()
        if self.is_alive():
            self.join(15)

    def is_now(self, state: str) -> bool:
        """Return whether a state has begun and not ended."""
        return next((begun for _, name, begun in reversed(self.changes) if name == state), False)

    def first(self, state: str, *, begun: bool, after: float) -> float | None:
        """Return when a state first began or ended after a time."""
        return next(
            (at for at, name, is_begun in self.changes if (name, is_begun) == (state, begun) and at > after), None
        )

    def status(self) -> Json:
        """Return the status of the JSON API."""
        data: Json = json.loads(self.text("/api/v1/status"))["data"]
        return data

    def events(self) -> list[Json]:
        """Return all events, the newest first."""
        data: list[Json] = json.loads(self.text("/api/v1/events?limit=1000"))["data"]
        return data

    def text(self, path: str) -> str:
        """Return a page of the exporter."""
        return page(self._url() + path)

    def names(self, pids: Sequence[int]) -> list[str]:
        """Return the labels `client` of these clients, if they are known."""
        labels = [name for name in self.series if name.startswith(f"{INFO}{{")]
        found = {pid: re.search(rf'client="([^"]+)".*pid="{pid}"', "\n".join(labels)) for pid in pids}
        return [each[1] for each in found.values() if each]

    def client(self, scrape: Scrape | None = None) -> str | None:
        """Return the label `client` of the starved client."""
        found = (scrape or fetch(self._url() + "/metrics")).select(INFO, pid=str(self._pid()))
        return found[0].labels["client"] if found else None

    def _read(self) -> None:
        scrape = fetch(self._url() + "/metrics")
        at = scrape.at
        if not self.at or at - self.at[-1] > KEPT_SECONDS - EVERY_SECONDS / 2:
            self._keep(scrape)
        client = self.client(scrape)
        ratio, least, error = (
            next((each.value for each in scrape.select(name, client=client or "")), None)
            for name in (RATIO, LEAST, ERROR)
        )
        value = least if ratio is None else ratio
        if value is not None and error is not None:
            self.values.append((at, value, error))
        status = self.status()
        now = {
            "expression": value is not None and error is not None and value - 2 * error > THRESHOLD,
            "slowed down": f'"slowed down: PID {self._pid()} ' in json.dumps(status),
            "problem": any(each["code"] == "client_starved" for each in status["findings"]),
        }
        self.changes += [(at, state, now[state]) for state in STATES if now[state] != self.is_now(state)]

    def _keep(self, scrape: Scrape) -> None:
        self.at.append(round(scrape.at, 2))
        for sample in scrape.samples:
            own = all(sample.labels.get(name, wanted) == wanted for name, wanted in self._of.items())
            if sample.name in FAMILIES and own:
                labels = ",".join(f"{name}={json.dumps(value)}" for name, value in sorted(sample.labels.items()))
                row = self.series.setdefault(f"{sample.name}{{{labels}}}", [])
                row += [None] * (len(self.at) - 1 - len(row)) + [float(f"{sample.value:.4g}")]
