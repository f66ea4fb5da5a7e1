"""Work in flight when a fault occurs, by the libcuda probes: the cause has some, and idle clients have none."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from exporter.incidents.root_cause import ONLY_IN_FLIGHT
from tests.eventually import eventually

from .clients import LOADS, Client, Clients
from .mps import ControlDaemon
from .program import Exporter

pytestmark = pytest.mark.gpu

WATCHED_WITHIN_SECONDS = 8
"""The probes are read once a second, and published every 5 seconds if nothing else changes."""
FAULT_AFTER_SECONDS = WATCHED_WITHIN_SECONDS + 1

LAUNCHES = "cuda_mps_client_kernel_launches_total"

TRIALS = (
    ("oob", ("idle", "idle", "idle"), "idle"),
    ("oob", ("idle", "busy", "idle"), "busy"),
    ("oob", ("busy", "full", "idle"), "idle"),
    ("trap", ("idle", "idle", "idle"), "busy"),
    ("trap", ("busy", "idle", "idle"), "idle"),
    ("oob-read", ("idle", "idle", "full"), "full"),
    *(("oob", others, own) for others in (("idle",), ("idle",) * 3) for own in ("idle", "busy", "full")),
    *(("oob-read", ("idle", "idle"), own) for own in ("busy", "full")),
)
"""What the cause does at the fault, what each other client does, and what the cause does before."""


@pytest.fixture(scope="class")
def watching(daemon: ControlDaemon) -> Iterator[Exporter]:
    exporter = Exporter(daemon, "--client-min-age=0s", "--attribution=bpf")
    try:
        exporter.wait()
        # The probes must be attached before the first client begins.
        eventually(lambda: _probes_are_read(exporter), within=WATCHED_WITHIN_SECONDS)
        yield exporter
    finally:
        exporter.end()


class TestTrials:
    """Trials with one daemon. All affected clients exit at once, and the server recovers."""

    @pytest.mark.parametrize(("fault", "mix", "own"), TRIALS, ids=str)
    def test_the_cause_had_work_in_flight_and_idle_clients_had_none(
        self, watching: Exporter, clients: Clients, fault: str, mix: tuple[str, ...], own: str
    ) -> None:
        """If all other clients were idle, the cause is the suspect."""
        loads = {clients.start_ready(load, **LOADS[load]).pid: load for load in mix}
        cause = clients.start_ready("cause", fault=fault, fault_after=FAULT_AFTER_SECONDS, **LOADS[own])
        eventually(lambda: _watches(watching, {cause.pid, *loads}), within=WATCHED_WITHIN_SECONDS)

        cause.fails()
        incident = eventually(lambda: _settled(watching, cause))

        idle = {pid for pid, load in loads.items() if load == "idle"}
        in_flight = {each["pid"]: each["in_flight"] for each in incident["affected"]}
        assert in_flight.keys() == {cause.pid, *loads}
        assert in_flight[cause.pid] is True, in_flight
        assert {pid for pid in idle if in_flight[pid] is False} == idle, in_flight
        sure = {each["pid"]: each["confidence"] for each in incident["suspects"]}
        assert sure[cause.pid] == max(sure.values()), incident["suspects"]
        assert all(sure.get(pid, 0.0) < sure[cause.pid] for pid in idle), incident["suspects"]
        assert idle != loads.keys() or sure[cause.pid] >= round(ONLY_IN_FLIGHT.confidence, 2), incident["suspects"]


def _probes_are_read(exporter: Exporter) -> None:
    samples = exporter.scrape().select("cuda_mps_exporter_source_up", source="libcuda_probes")
    assert [sample.value for sample in samples] == [1]


def _watches(exporter: Exporter, pids: set[int]) -> None:
    scrape = exporter.scrape()
    named = {sample.labels["client"]: int(sample.labels["pid"]) for sample in scrape.select("cuda_mps_client_info")}
    assert {named[sample.labels["client"]] for sample in scrape.select(LAUNCHES, kind="kernel")} >= pids


def _settled(exporter: Exporter, cause: Client) -> dict[str, Any]:
    incidents = json.loads(exporter.page("/api/v1/incidents"))["data"]
    found: list[dict[str, Any]] = [
        each for each in incidents if cause.pid in {client["pid"] for client in each["affected"]}
    ]
    assert [each["settled"] for each in found] == [True], incidents
    return found[0]
