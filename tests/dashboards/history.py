"""Samples for Prometheus: half an hour of two simulated nodes, and a node that is down."""

import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from dashboards.__main__ import RECORDING, ROOT
from exporter.demo.gpus import SERVING
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import PAST_SECONDS, PlannedFailure, Simulation, advance
from exporter.history import HistoryStatus
from exporter.metrics.catalogue import NodeCollector
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, GpuReading, LogFile
from exporter.model.watchdog import WatchdogPhase
from exporter.reducer import reduce
from exporter.view import View
from tests.builders import (
    DAEMON,
    failure,
    mig,
    partitioned,
    reply,
)
from tests.clocks import HandClock
from tests.simulated import ACTING
from tests.tools import needed

JOB = "cuda-mps-exporter"
EVERY = 15
BEGINS = 1_700_000_100.0
"""The start of the demo."""

FIRST = BEGINS - PAST_SECONDS
LAST = BEGINS + 900.0

NEWER_SECONDS = 1200.0

PARTITIONED = "/run/partitioned"
STORMY, CALM, DOWN = "stormy:10677", "calm:10677", "down:10677"

WITHOUT_CLIENTS = ("8f2c6a51-2c1e-4a8e-9d0b-7c5f3e1a2b4d", "notebook-0", "research")
PODS = (*(each.pod for each in SERVING if each.pod is not None), WITHOUT_CLIENTS)
"""The pods of a node with clients, and one without: UID, name and namespace."""

PLAN = (
    PlannedFailure(after=930, failure="nvml-fails", seconds=60),
    PlannedFailure(after=960, failure="daemon-restarts"),
    PlannedFailure(after=1100, failure="fault"),
)


def write(file: Path) -> None:
    """Write all samples with their times."""
    with file.open("w") as out:
        for instance, samples in ((STORMY, _stormy()), (CALM, _calm())):
            for at, view in samples:
                out.writelines(_lines(instance, at, view))
        for at in range(int(FIRST), int(LAST) + 1, EVERY):
            out.write(f'up{{job="{JOB}",instance="{DOWN}"}} 0 {at}\n')
            for uid, name, namespace in PODS:
                pod = f'uid="{uid}",pod="{name}",namespace="{namespace}"'
                resource = f'node="{STORMY}",resource="nvidia_com_gpu",container="main",unit="integer"'
                out.write(f"kube_pod_container_resource_requests{{{pod},{resource}}} 1 {at}\n")
                out.write(f'kube_pod_status_phase{{{pod},phase="Failed"}} 0 {at}\n')
        out.write("# EOF\n")


def import_into(data: Path, file: Path) -> None:
    """Import the samples with promtool."""
    _create_blocks_from("openmetrics", str(file), str(data))


def evaluate_rules(address: str, data: Path) -> None:
    """Add what the recording rules give to the samples, which a Prometheus at the address serves.

    It must be started again to serve the results. A rule that reads others has results only if these are served.
    """
    times = (f"--start={int(FIRST)}", f"--end={int(LAST)}")
    _create_blocks_from("rules", f"--url=http://{address}", f"--output-dir={data}", *times, str(ROOT / RECORDING))


def _create_blocks_from(*arguments: str) -> None:
    command = [needed("promtool"), "tsdb", "create-blocks-from", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _stormy() -> Iterator[tuple[int, View]]:
    """Return a node with all failures of the demo."""
    clock = HandClock(BEGINS)
    simulation = Simulation(1, clock, past=BEGINS - FIRST, probes=True)
    clock.time = LAST + 1
    return ((at, view_of(node)) for at, node in _nodes(simulation))


def _calm() -> Iterator[tuple[int, View]]:
    """Return a second node with three failures, and with all other problems for a while."""
    simulation, stuck = Simulation(2, HandClock(LAST + 1), calm=True, past=NEWER_SECONDS, probes=True), None
    simulation.plan(PLAN)
    for at, node in _nodes(simulation):
        view = view_of(node)
        if LAST - 600 <= at < LAST - 500:
            view = replace(view, node=_unwell(node), paused=True, config_valid=False)
        if LAST - 480 <= at < LAST - 300:
            view = stuck = stuck or view
        yield at, view


def _nodes(simulation: Simulation) -> Iterator[tuple[int, Node]]:
    """Yield the node at each scrape."""
    for node, _ in advance(replace(initial_node(), simulated=True), simulation, ACTING):
        if int(node.at) % EVERY == 0:
            yield int(node.at), node


def _unwell(node: Node) -> Node:
    """Return the same with an unread log and GPU, drifted default limits, a huge log, a quarantine and an Xid.

    A log is blocked as well, and a watchdog does not act because its state could not be read.
    Another daemon has static SM partitions and namespaces. A GPU has MIG instances.
    """
    first, second, last = node.daemons
    seen = (
        LogFile(at=node.at, daemon=first, file="server.log", problem=failure("Permission denied")),
        GpuReading(at=node.at, gpu=next(iter(node.gpus)), problem=failure("GPU is lost")),
        GpuEvent(at=node.at, type=8, xid=95, gpu=list(node.gpus)[-1]),
        LogFile(at=node.at, daemon=first, file="control.log", size=2 << 30),
        reply("get_default_active_thread_percentage", "100.0\n", at=node.at, daemon=first),
    )
    for each in seen:
        node, _ = reduce(node, each)
    logged = replace(node.daemons[first].log.own_commands, blocked_since=node.at)
    blocked = replace(node.daemons[first], log=replace(node.daemons[first].log, own_commands=logged))
    watches = {
        second: replace(node.watches[second], state_lost_at=node.at),
        last: replace(node.watches[last], phase=WatchdogPhase.QUARANTINED),
    }
    modes = replace(partitioned().daemons[DAEMON], name=PARTITIONED)
    return replace(
        node,
        daemons={**node.daemons, first: blocked, PARTITIONED: modes},
        watches={**node.watches, **watches},
        gpus={**node.gpus, **mig().gpus, **partitioned().gpus},
        processes={**node.processes, **partitioned().processes},
    )


def view_of(node: Node) -> View:
    """Return the node with all that an exporter shows of itself."""
    return View(
        node,
        client_min_age=15.0,
        config_valid=True,
        history=HistoryStatus(writable=True, events_dropped=0),
        log_records_dropped=0,
        accept_failures={"web": 0, "service_socket": 0},
        policy=ACTING,
    )


def _lines(instance: str, at: int, view: View) -> Iterable[str]:
    target = f'job="{JOB}",instance="{instance}",node="{instance}"'
    yield f"up{{{target}}} 1 {at}\n"
    for family in NodeCollector(view).collect():
        for sample in family.samples:
            labels = "".join(f',{name}="{escaped(value)}"' for name, value in sample.labels.items())
            yield f"{sample.name}{{{target}{labels}}} {float(sample.value)} {at}\n"


def escaped(value: str) -> str:
    """Return the value of a label as the text format has it."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
