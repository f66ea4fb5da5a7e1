"""Who had work in flight when a fault struck, by libcuda's doors: the culprit had, and whoever was idle had not."""

import json
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from exporter.incidents.root_cause import ONLY_IN_FLIGHT
from tests.eventually import eventually

from .clients import Client, Clients
from .mps import ControlDaemon
from .program import Exporter
from .trial_kinds import LOADS

pytestmark = pytest.mark.gpu

FAULT_AFTER_SECONDS = 8
WATCHED_WITHIN_SECONDS = 4
"""The doors are read once a second, and must have been watched for three when the fault strikes."""

LAUNCHES = "cuda_mps_client_kernel_launches_total"

TRIALS = (
    ("oob", ("idle", "idle", "idle"), "idle"),
    ("oob", ("idle", "busy", "idle"), "busy"),
    ("oob", ("busy", "full", "idle"), "idle"),
    ("trap", ("idle", "idle", "idle"), "busy"),
    ("trap", ("busy", "idle", "idle"), "idle"),
    ("oob-read", ("idle", "idle", "full"), "full"),
)
"""What the culprit does, what each of its neighbours does, and what it does itself until then."""


@pytest.fixture(scope="class")
def watching(daemon: ControlDaemon) -> Iterator[Exporter]:
    exporter = Exporter(daemon, "--client-min-age=0s", "--attribution=bpf")
    try:
        exporter.wait()
        yield exporter
    finally:
        exporter.end()


class TestTrials:
    """One after another, with one daemon: all who were hit go at once, and the server is well again."""

    @pytest.mark.parametrize(
        ("fault", "mix", "own"), TRIALS, ids=lambda told: told if type(told) is str else "-".join(told)
    )
    def test_the_culprit_had_work_in_flight_and_the_idle_ones_had_not(
        self, watching: Exporter, clients: Clients, fault: str, mix: tuple[str, ...], own: str
    ) -> None:
        """And where all the others were idle, it is the suspect."""
        loads = {clients.start_ready(load, **LOADS[load]).pid: load for load in mix}
        culprit = clients.start_ready("culprit", fault=fault, fault_after=FAULT_AFTER_SECONDS, **LOADS[own])
        eventually(lambda: _watches(watching, {culprit.pid, *loads}), within=WATCHED_WITHIN_SECONDS)

        culprit.fails()
        incident = eventually(lambda: _settled(watching, culprit))

        idle = {pid for pid, load in loads.items() if load == "idle"}
        in_flight = {each["pid"]: each["in_flight"] for each in incident["affected"]}
        assert in_flight.keys() == {culprit.pid, *loads}
        assert in_flight[culprit.pid] is True, in_flight
        assert {pid for pid in idle if in_flight[pid] is False} == idle, in_flight
        sure = {each["pid"]: each["confidence"] for each in incident["suspects"]}
        assert sure[culprit.pid] == max(sure.values()), incident["suspects"]
        assert all(sure.get(pid, 0.0) < sure[culprit.pid] for pid in idle), incident["suspects"]
        assert idle != loads.keys() or sure[culprit.pid] >= ONLY_IN_FLIGHT, incident["suspects"]


def _watches(exporter: Exporter, pids: set[int]) -> None:
    scrape = exporter.scrape()
    named = {sample.labels["client"]: int(sample.labels["pid"]) for sample in scrape.select("cuda_mps_client_info")}
    assert {named[sample.labels["client"]] for sample in scrape.select(LAUNCHES, kind="kernel")} >= pids


def _settled(exporter: Exporter, culprit: Client) -> dict[str, Any]:
    with urllib.request.urlopen(f"http://{exporter.address}/api/v1/incidents", timeout=10) as answer:
        told = json.load(answer)["data"]
    found: list[dict[str, Any]] = [each for each in told if culprit.pid in {hit["pid"] for hit in each["affected"]}]
    assert [each["settled"] for each in found] == [True], told
    return found[0]
