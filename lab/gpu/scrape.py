"""Samples of /metrics."""

import time
import urllib.request
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

MIB = 2**20


@dataclass(frozen=True)
class Scrape:
    """One answer of /metrics."""

    text: str
    seconds: float
    at: float
    samples: tuple[Sample, ...]

    def select(self, name: str, **labels: str) -> list[Sample]:
        """Return the samples of a family with these labels."""
        return [sample for sample in self.samples if sample.name == name and labels.items() <= sample.labels.items()]

    def value(self, name: str, **labels: str) -> float:
        """Return the value of the only such sample."""
        found = self.select(name, **labels)
        assert len(found) == 1, f"{len(found)} samples of {name} with {labels}: {found}"
        return found[0].value

    def total(self, name: str, **labels: str) -> float:
        """Return the sum over all other labels. A counter exists with 0 before its first event, and must be present."""
        found = self.select(name, **labels)
        assert found, f"no sample of {name} with {labels}"
        return sum(sample.value for sample in found)

    def state(self, name: str, *, label: str = "state", **labels: str) -> str:
        """Return the state of an object. Exactly one of its states must be 1, and all others 0."""
        found = self.select(name, **labels)
        assert sorted(sample.value for sample in found) == [0.0] * (len(found) - 1) + [1.0], f"{name}: {found}"
        return next(sample.labels[label] for sample in found if sample.value == 1)

    def listed_pids(self) -> list[int]:
        """Return the sorted PIDs of `cuda_mps_client_info`, with duplicates."""
        return sorted(int(sample.labels["pid"]) for sample in self.select("cuda_mps_client_info"))

    def blind_sources(self) -> list[str]:
        """Return the sorted sources that the exporter cannot read."""
        return sorted(each.labels["source"] for each in self.select("cuda_mps_exporter_source_up") if each.value == 0)

    def memory_by_pid(self) -> dict[int, int]:
        """Return the bytes of each client, joined on `daemon` and `client` like in a dashboard."""
        pids = {_identity(info): int(info.labels["pid"]) for info in self.select("cuda_mps_client_info")}
        memory = self.select("cuda_mps_client_memory_used_bytes")
        assert {_identity(sample) for sample in memory} <= pids.keys(), f"memory of clients without info: {memory}"
        return {pids[_identity(sample)]: int(sample.value) for sample in memory}


def parse(text: str, *, seconds: float = 0, at: float = 0) -> Scrape:
    families = text_string_to_metric_families(text)
    return Scrape(text, seconds, at, tuple(sample for family in families for sample in family.samples))


def page(url: str) -> str:
    with urllib.request.urlopen(url, timeout=10) as response:
        return str(response.read().decode())


def fetch(url: str) -> Scrape:
    started = time.perf_counter()
    text = page(url)
    return parse(text, seconds=time.perf_counter() - started, at=time.time())


def _identity(sample: Sample) -> tuple[str, str]:
    return sample.labels["daemon"], sample.labels["client"]
