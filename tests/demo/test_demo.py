"""The simulated node has all events and states that the demo promises."""

from collections import Counter
from collections.abc import Sequence
from functools import cache
from itertools import islice

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from exporter.demo.simulation import CALM_SECONDS, FAILURES, PlannedFailure, Simulation, advance
from exporter.metrics.catalogue import CATALOGUE, NodeCollector
from exporter.model.action import ActionResult
from exporter.model.contention import Resource
from exporter.model.event import Event, EventName
from exporter.model.identity import WorkloadKind
from exporter.model.incident import Incident, IncidentEnd, IncidentKind
from exporter.model.kernels import KernelReading
from exporter.model.node import CollectorName, Node
from exporter.model.server import RefusalReason
from exporter.model.usage import Method, SharedAccount
from exporter.model.watchdog import Condition
from exporter.report.node_status import document_of
from exporter.report.status_text import clients_by_pid
from exporter.usage.capacity import gpu_sharing
from exporter.view import View
from tests.builders import AT, Reduced
from tests.clocks import HandClock
from tests.simulated import ACTING, MINUTE, minutes
from tests.state.invariants import assert_consistent, assert_counts_match_events, assert_only_grown, counters

TRAINING, INFERENCE, NOTEBOOKS = (f"/run/nvidia/mps/{name}/pipe" for name in ("training", "inference", "notebooks"))


@cache
def acting() -> tuple[Reduced, ...]:
    """Return the node after each minute, with `--watchdog=act`, until the fourth fault. It names no client."""
    clock = HandClock(AT)
    return tuple(islice(minutes(clock, Simulation(1, clock), ACTING), 16))


@cache
def observing() -> tuple[Reduced, ...]:
    """Return the same of the default installation, which only observes."""
    clock = HandClock(AT)
    return tuple(islice(minutes(clock, Simulation(2, clock)), 8))


@cache
def probed() -> tuple[tuple[Reduced, ...], frozenset[str]]:
    """Return the same with `--attribution=bpf`, and the families that have samples in the first minute.

    The probes take nearly all of the time, so the past is short.
    """
    clock = HandClock(AT)
    simulation = Simulation(1, clock, past=CALM_SECONDS, probes=True)
    (first,) = islice(minutes(clock, simulation, ACTING), 1)
    clock.time += MINUTE
    seen: set[str] = set()
    events: list[Event] = []
    node = first.node
    for second in advance(first.node, simulation, ACTING):
        node, news = second
        events.extend(news)
        view = View(node, client_min_age=15.0, policy=ACTING)
        seen |= {each.name for each in CATALOGUE if each.name not in seen and any(each.samples(view))}
    clock.time += MINUTE
    later = islice(minutes(clock, simulation, ACTING, node), 4)
    return (first, Reduced(node, tuple(events)), *later), frozenset(seen)


def events(of_minutes: Sequence[Reduced] | None = None) -> list[Event]:
    return [event for minute in of_minutes or acting() for event in minute.events]


def ended_incidents(of_minutes: Sequence[Reduced] | None = None) -> list[Incident]:
    """Return the incidents that are over."""
    ended = [event.incident for event in events(of_minutes) if event.event is EventName.FAULT_RECOVERED]
    return [incident for incident in ended if incident is not None]


def exposition(present: Node) -> str:
    return generate_latest(NodeCollector(View(present, client_min_age=15.0, policy=ACTING))).decode()


def values(present: Node, name: str, label: str) -> dict[str, float]:
    return {
        sample.labels[label]: sample.value
        for family in text_string_to_metric_families(exposition(present))
        for sample in family.samples
        if sample.name == name
    }


def test_has_every_kind_of_event() -> None:
    """All but stops, pauses, lost GPUs, and blocked or forged logs; open faults are reported last.

    NVML fails only in `--at`, and starvation needs the probes.
    """
    assert {event.event for event in (*events(), *events(observing()))} == set(EventName) - {
        EventName.DAEMON_STOPPED,
        EventName.EXPORTER_PAUSED,
        EventName.GPU_LOST,
        EventName.EXPORTER_RESUMED,
        EventName.LOG_BLOCKED,
        EventName.LOG_CONTRADICTED,
        EventName.LOG_UNBLOCKED,
        EventName.FAULT_OPEN,
        EventName.NVML_FAILED,
        EventName.NVML_RECOVERED,
        EventName.CLIENT_STARVED,
        EventName.CLIENT_NOT_STARVED,
    }


def test_every_lost_daemon_returns() -> None:
    """Each loss is followed by the same daemon's return, unless the simulation ends before."""
    for of_minutes in (acting(), observing()):
        reported, end = events(of_minutes), AT + (len(of_minutes) - 1) * MINUTE
        lost = [event for event in reported if event.event is EventName.DAEMON_LOST and event.at < end - 4 * MINUTE]
        assert lost
        for loss in lost:
            returns = [
                event.at for event in reported if (event.daemon, event.event) == (loss.daemon, EventName.DAEMON_UP)
            ]
            assert any(loss.at < back < loss.at + 4 * MINUTE for back in returns)


def test_one_daemon_restarts_between_two_scrapes() -> None:
    """It is counted nevertheless."""
    reported = [event for event in events() if event.daemon == TRAINING]
    losses = [event.at for event in reported if event.event is EventName.DAEMON_LOST]
    returns = [event.at for event in reported if event.event is EventName.DAEMON_UP]
    assert any(0 < back - lost < 1 for lost in losses for back in returns)


def test_has_both_kinds_of_fault() -> None:
    """One is before the start of the demo, and the next is soon after it."""
    openings = [event.at for event in events() if event.event is EventName.FAULT]
    assert any(at < AT for at in openings)
    assert any(AT < at < AT + MINUTE for at in openings)
    assert {incident.kind for incident in ended_incidents()} == {IncidentKind.CLIENT_KILLED, IncidentKind.MEMORY}


def test_a_fault_has_all_details() -> None:
    """It has an Xid, affected clients on two GPUs, refused clients. Most wait a minute for a client."""
    held = [incident for incident in ended_incidents() if incident.blocking]
    for incident in ended_incidents():
        assert [xid.number for xid in incident.xids] == [31]
        assert incident.affected_confirmed
        assert len(incident.affected) >= 3
        assert len(incident.gpus) == 2
        assert incident.ending is IncidentEnd.RECOVERED
        if incident in held:
            assert len(incident.blocking) == 1
            assert MINUTE - 1 < (incident.seconds or 0.0) < MINUTE + 1
        else:
            assert (incident.seconds or 0.0) < 2
    assert 0 < len(held) < len(ended_incidents())
    assert any(incident.refused for incident in held)


def test_killed_clients_and_most_addresses_name_a_suspect() -> None:
    """About as many as in trials: one of four illegal addresses names no client."""
    ended = [incident for each in (acting(), observing(), probed()[0]) for incident in ended_incidents(each)]
    named = Counter((incident.kind, incident.suspect is not None) for incident in ended)
    assert named.keys() == {
        (IncidentKind.CLIENT_KILLED, True),
        (IncidentKind.MEMORY, True),
        (IncidentKind.MEMORY, False),
    }
    assert named[IncidentKind.MEMORY, True] > named[IncidentKind.MEMORY, False]


def test_clients_are_refused_during_a_fault_and_by_a_full_server() -> None:
    """These are all reasons."""
    refused = {event.reason for event in events() if event.event is EventName.CLIENT_REFUSED}
    assert refused == {RefusalReason.FAULT, RefusalReason.LIMIT}


def test_has_nearly_every_diagnosis() -> None:
    """Those that need a debugger or a hung driver are excluded."""
    found = {event.state for event in events() if event.event is EventName.DAEMON_DIAGNOSED}
    assert found == {
        Condition.WELL,
        Condition.DOWN,
        Condition.UNRESPONSIVE,
        Condition.HELD,
        Condition.FAULT,
        Condition.CRASH_LOOP,
    }


def test_the_watchdog_acts_only_if_asked() -> None:
    acted = {event.daemon: event.result for event in events() if event.event is EventName.WATCHDOG_ACTED}
    would = {event.daemon for event in events(observing()) if event.event is EventName.WATCHDOG_WOULD_ACT}
    assert acted == dict.fromkeys((TRAINING, NOTEBOOKS), ActionResult.SUCCEEDED)
    assert would == {TRAINING, NOTEBOOKS}
    assert EventName.WATCHDOG_WOULD_ACT not in {event.event for event in events()}
    assert EventName.WATCHDOG_ACTED not in {event.event for event in events(observing())}


def test_attributes_the_sm_time_of_clients_that_share_a_gpu_only_if_asked() -> None:
    """By default, status states the option. Only a client that is alone on a GPU, or bypasses MPS, has SM time."""
    last = observing()[-1].node
    assert CollectorName.LIBCUDA_PROBES not in last.sources
    methods = {method for gpu in last.usage_totals.gpus.values() for _, method in gpu.by_account}
    assert Method.MEASURED in methods
    assert methods & {Method.FLIGHT, Method.LAUNCHES} == set()
    families = {family.name for family in text_string_to_metric_families(exposition(last)) if family.samples}
    assert not [name for name in families if name.startswith(("cuda_mps_client_kernel", "cuda_mps_client_slowdown"))]
    problems = {document_of(minute.node).attribution_problem for minute in observing()}
    assert "SM time by client is not known: start the exporter with --attribution=bpf" in problems


def test_shows_the_kernels_of_clients_only_if_asked() -> None:
    """Those of some have no name, because the clients began before the exporter. A fault has what was in flight."""
    clients = [each for minute in probed()[0] for each in clients_by_pid(document_of(minute.node)).values()]
    assert {each.command for each in clients if each.kernels and not each.kernels_problem} >= {"train.py", "vllm"}
    assert {each.command for each in clients if each.kernels_problem} >= {"jupyter-lab"}
    assert not [each for each in clients_by_pid(document_of(observing()[-1].node)).values() if each.kernels]
    clock = HandClock(AT)
    seconds = Simulation(1, clock, calm=True, past=CALM_SECONDS, probes=True)
    seconds.plan([PlannedFailure(after=60, failure="fault")])
    readings = [each for each in seconds.collect().observations if isinstance(each, KernelReading) and each.at_fault]
    assert [len(reading.clients) >= 4 and all(each.last for each in reading.clients) for reading in readings] == [True]


def test_a_circuit_opens_and_is_closed_again() -> None:
    """It opens in the first minute."""
    opened = [event.at for event in events() if event.event is EventName.CIRCUIT_OPENED]
    closed = [event.at for event in events() if event.event is EventName.CIRCUIT_CLOSED]
    assert AT < opened[0] < AT + MINUTE
    assert opened[0] < closed[0] < AT + 5 * MINUTE


def test_attributes_nearly_all_usage() -> None:
    """The parts add up to the whole exactly."""
    gpus = probed()[0][-1].node.usage_totals.gpus.values()
    for gpu in gpus:
        assert sum(used.sm_us for used in gpu.by_account.values()) == gpu.total.sm_us
        assert sum(used.energy_mj for used in gpu.by_account.values()) == gpu.total.energy_mj
    entries = [(account, used) for gpu in gpus for (account, _), used in gpu.by_account.items()]
    unattributed = sum(used.sm_us for account, used in entries if account is SharedAccount.UNATTRIBUTED)
    assert 0 < unattributed < 0.05 * sum(gpu.total.sm_us for gpu in gpus)


def test_has_an_idle_client_and_a_noisy_neighbour() -> None:
    """Both methods of attribution are used."""
    found = [each for minute in probed()[0] for each in gpu_sharing(minute.node).values()]
    assert any(gpu.sharing.idle for minute in probed()[0] for gpu in document_of(minute.node).gpus if gpu.sharing)
    assert any(each.bandwidth_is_full for each in found)
    assert {method for each in found for method in each.methods} == {Method.MEASURED, Method.FLIGHT}


def test_a_noisy_neighbour_slows_clients_down_clearly() -> None:
    """Some have been alone with the GPU before, in a pause of the neighbour, and others not yet."""
    slowed = [
        (minute.node, client.slowdown)
        for minute in probed()[0]
        for sharing in gpu_sharing(minute.node).values()
        for client in sharing.clients
        if client.is_slowed and client.slowdown is not None
    ]
    assert {found.at_least for _, found in slowed if found.ratio > 2} == {False, True}
    named = [
        process.command
        for node, found in slowed
        if found.resource is Resource.MEMORY and found.neighbours
        if (process := node.processes.get(found.neighbours[0][0])) is not None
    ]
    assert named.count("finetune.py") + named.count("etl-scan") > 0.9 * len(named) > 0


def test_has_clients_of_every_kind_of_workload() -> None:
    """Slurm jobs, pods with their names, containers, units, and users. Tasks are those of ECS and Nomad."""
    accounts = {workload.kind for minute in acting() for workload in minute.node.accounts}
    assert accounts == set(WorkloadKind) - {WorkloadKind.TASK}
    assert {pod.namespace for minute in acting() for pod in minute.node.pods.values()} == {"inference"}
    known = {workload.kind: each for workload, each in acting()[-1].node.usage_totals.identities.items()}
    assert (known[WorkloadKind.POD].namespace, known[WorkloadKind.POD].labels) == ("inference", {"team": "vision"})
    assert known[WorkloadKind.JOB].job_id


def test_some_clients_use_two_gpus_and_others_one() -> None:
    """Each GPU has clients."""
    daemons = [daemon for minute in acting() for daemon in minute.node.daemons.values()]
    placed = {client.gpus for daemon in daemons for client in daemon.clients.values()}
    assert {len(gpus) for gpus in placed} == {1, 2}
    assert frozenset().union(*placed) == acting()[-1].node.gpus.keys()


def test_the_exposition_is_valid_and_every_gpu_is_up() -> None:
    """No GPU uses more memory than it has."""
    for minute in (*acting()[::5], probed()[0][-1]):
        series = [
            (sample.name, str(sample.labels))
            for family in text_string_to_metric_families(exposition(minute.node))
            for sample in family.samples
        ]
        assert len(series) == len(set(series))
        assert set(values(minute.node, "cuda_mps_gpu_up", "gpu").values()) == {1}
        used = values(minute.node, "cuda_mps_gpu_memory_used_bytes", "gpu")
        total = values(minute.node, "cuda_mps_gpu_memory_total_bytes", "gpu")
        assert all(used[gpu] <= total[gpu] for gpu in total)


def test_counters_only_grow_and_the_node_is_consistent() -> None:
    """The rules are those of real nodes."""
    for of_minutes in (acting(), probed()[0]):
        before = counters(of_minutes[0].node)
        for minute in of_minutes:
            assert_consistent(minute.node)
            after = counters(minute.node)
            assert_only_grown(before, after)
            before = after
        assert_counts_match_events(of_minutes[-1].node, events(of_minutes))


def test_log_lines_have_the_wording_of_mps() -> None:
    """The parser knows every line except those of the failure `unknown-line`."""
    daemons = acting()[-1].node.daemons
    unknown = {name: sum(each.totals.log_lines_unrecognized.values()) for name, each in daemons.items()}
    new = FAILURES["unknown-line"]
    assert new.every is not None
    seconds = (len(acting()) - 1) * MINUTE - new.first
    assert unknown == {TRAINING: 1 + seconds // new.every, INFERENCE: 0, NOTEBOOKS: 0}


def test_has_clients_at_the_start() -> None:
    """The simulated past has connected them."""
    first = acting()[0]
    assert EventName.CLIENT_CONNECTED in first.names()
    assert any(daemon.clients for daemon in first.node.daemons.values())


def test_every_family_has_samples_in_the_first_minute() -> None:
    """A simulation has no families about the exporter's process, and its hardware Xids are over by then."""
    without = ("cuda_mps_exporter_history_", "cuda_mps_exporter_config_", "cuda_mps_watchdog_quarantined_")
    without += ("cuda_mps_gpu_hardware_xid_",)
    without += ("cuda_mps_exporter_log_records_", "cuda_mps_exporter_accept_failures_")
    without += ("cuda_mps_exporter_source_problem_", "cuda_mps_exporter_simulated")
    # Of MIG and protocol 3, which the demo does not simulate.
    without += ("cuda_mps_gpu_mig_info", "cuda_mps_gpu_mig_sms", "cuda_mps_server_name_")
    without += ("cuda_mps_exporter_replies_",)
    assert {family.name for family in CATALOGUE if not family.name.startswith(without)} == probed()[1]


def test_the_seed_determines_the_events() -> None:
    clocks = [HandClock(AT) for _ in range(3)]
    first, again, other = (
        next(minutes(clock, Simulation(seed, clock, past=2 * MINUTE))).events
        for seed, clock in zip((1, 1, 2), clocks, strict=True)
    )
    assert first == again != other
