"""Kernels at a fault: those in flight at its first sign, in which order, and what they show about work in flight."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from exporter.incidents import root_cause
from exporter.incidents.fault_kernels import settled_kernels
from exporter.incidents.incidents import last_sign_at
from exporter.model.identity import Workload, WorkloadKind
from exporter.model.incident import Clues, Incident
from exporter.model.kernels import ClientKernels, FaultKernels, KernelName, KernelReading, LaunchedKernel
from exporter.model.launches import ProcessWork
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, Observation
from exporter.model.values import build, plain
from tests.builders import AT, active, at_work, daemon_process, exited, gpu_reading, process, reduced, server_log
from tests.incidents.test_incidents import UP as THREE_CLIENTS
from tests.incidents.test_incidents import A, B, C, block, leaves, only, time_passes, xid
from tests.incidents.test_work_in_flight import LATER, LOGGED_AT, UP, WATCHED, in_flight_work, reading_of
from tests.incidents.values import ended, fault_kernels, faulted_client, incident, suspect
from tests.works import BOOTED, boot_ns, work

READ_AT = LOGGED_AT + 0.1

EARLIER_SIGN = tuple(
    KernelRecord(at=LOGGED_AT + after, record=f"4,358,{microseconds},-;NVRM: Xid (PCI:0000:00:06): 31, MMU Fault")
    for after, microseconds in ((0.2, 58_000_000), (0.3, 57_500_000))
)
"""Two Xids, of which the second one was logged 0.3 s before the fault, and read late."""

DUMPED = KernelRecord(
    at=LOGGED_AT + 0.05,
    record="4,358,58747868,-;NVRM: Xid (PCI:0000:00:06): 13,"
    " Graphics SM Warp Exception on (GPC 0, TPC 0, SM 0): MMU Fault",
)
"""The sign of a fault with GPU core dumps on."""

Limits = dict[str, Any]
"""When the probes on launches were attached and detached."""


def name(raw: str) -> KernelName:
    return KernelName(raw=raw, short=raw.upper())


def kernel(
    raw: str | None = None, since: float = LOGGED_AT - 0.2, until: float | None = None, **known: Any
) -> LaunchedKernel:
    """Return a kernel, or with `nodes` a graph, that came into flight at one time, and was launched then."""
    usual = {"launches": 1, "last_ns": boot_ns(since), "name": None if raw is None else name(raw)}
    in_flight = {"since_ns": boot_ns(since), "until_ns": 0 if until is None else boot_ns(until)}
    return LaunchedKernel(**{**usual, **in_flight, "is_graph": "nodes" in known, **known})


def of_client(pid: int, *last: LaunchedKernel, **known: Any) -> ClientKernels:
    return ClientKernels(**{"pid": pid, "first_ns": boot_ns(BOOTED + 9_000), "last": last, **known})


def kernels_read(*found: ClientKernels, at: float = READ_AT, at_fault: bool = True, **known: Any) -> KernelReading:
    usual = {"launches_since_ns": boot_ns(BOOTED)}
    return KernelReading(at=at, boot_ns=boot_ns(at), clients=found, at_fault=at_fault, **{**usual, **known})


def fault(*seen: Observation, start: Node = UP) -> Incident:
    """Return the incident of a fault that affects both clients, after these observations."""
    ordered = sorted((*block(A, B, at=LOGGED_AT), *seen, LATER), key=lambda each: each.at)
    return only(reduced(*ordered, start=start))


def kernels_of(incident: Incident, pid: int = A) -> FaultKernels:
    (found,) = (each for each in incident.clues.kernels if each.pid == pid)
    return found


def in_flight(incident: Incident, pid: int = A) -> list[str | None]:
    return [None if each.name is None else each.name.raw for each in kernels_of(incident, pid).in_flight]


class TestInFlight:
    """The kernels in flight at the first sign, the likeliest cause first."""

    def test_one_that_never_completed_before_is_first_then_the_latest(self) -> None:
        often = kernel("often", since=LOGGED_AT - 0.1, completed=1000, launches=1001)
        older, new = kernel("older", since=LOGGED_AT - 0.4), kernel("new", since=LOGGED_AT - 0.3)
        incident = fault(kernels_read(of_client(A, often, new, older), of_client(B)))
        assert in_flight(incident) == ["new", "older", "often"]
        assert kernels_of(incident).last == (often, new, older)
        assert (in_flight(incident, B), kernels_of(incident, B).in_flight_count) == ([], 0)

    def test_launches_after_the_first_sign_and_completed_ones_are_not_in_flight(self) -> None:
        """With core dumps, the synchronisation of the cause returns success after the fault."""
        dumped = kernel("dumped", until=LOGGED_AT + 0.05)
        before, after = kernel("before", until=LOGGED_AT - 0.1), kernel("after", since=LOGGED_AT + 0.05)
        # It was launched before, and again after the first sign.
        again = kernel("again", last_ns=boot_ns(LOGGED_AT + 0.09), launches=2)
        incident = fault(kernels_read(of_client(A, again, after, dumped, before)))
        assert set(in_flight(incident)) == {"dumped", "again"}

    def test_at_most_four_names_of_a_client_are_kept(self) -> None:
        """The kernels of a graph count. How many kernels were in flight is known, and so are the last launches."""
        many = tuple(kernel(f"k{number}", since=LOGGED_AT - number) for number in range(1, 20))
        first = kernels_of(fault(kernels_read(of_client(A, *many))))
        assert [each.name for each in first.in_flight] == [name(f"k{number}") for number in range(1, 5)]
        assert (first.in_flight_count, first.last) == (19, many[:8])

        nodes = tuple(map(name, "abcdef"))
        graph = kernel(None, since=LOGGED_AT - 2, nodes=nodes)
        first = kernels_of(fault(kernels_read(of_client(A, many[0], graph, many[5]))))
        assert [each.names for each in first.in_flight] == [(name("k1"),), nodes[:3]]
        assert [each.nodes for each in first.last] == [(), nodes[:4], ()]

    def test_the_first_reading_after_the_first_sign_counts(self) -> None:
        """The Xid is older than the block. A client that a reading does not have is taken from a later one."""
        sign = KernelRecord(at=LOGGED_AT - 0.5, record=xid(31, LOGGED_AT).record)
        readings = (
            kernels_read(of_client(A, kernel("before")), at=LOGGED_AT - 0.6),
            kernels_read(of_client(A, kernel("most", since=LOGGED_AT - 1)), at=LOGGED_AT - 0.45, at_fault=False),
            kernels_read(of_client(A, kernel("first", since=LOGGED_AT - 1)), at=LOGGED_AT - 0.4),
            kernels_read(at=LOGGED_AT - 0.3, at_fault=False),
            kernels_read(*(of_client(pid, kernel("later", since=LOGGED_AT - 1)) for pid in (A, B)), at=READ_AT),
        )
        incident = fault(sign, *readings, exited(A, at=LOGGED_AT - 0.2))
        assert kernels_of(incident).fault_ns == pytest.approx(boot_ns(LOGGED_AT - 0.5), abs=1000)
        assert (in_flight(incident), in_flight(incident, B)) == (["first"], ["later"])

    def test_a_client_that_left_just_before_the_fault_has_its_kernels(self) -> None:
        """As one that a signal ends while its kernel runs. It is no affected client."""
        struck = (*leaves(C, at=LOGGED_AT - 0.1), *block(A, B, at=LOGGED_AT))
        seen = (*struck, kernels_read(of_client(C, kernel("killed"))), time_passes(LOGGED_AT + 3))
        incident = only(reduced(*seen, start=THREE_CLIENTS))
        assert [each.pid for each in incident.clues.kernels] == [C]
        assert in_flight(incident, C) == ["killed"]

    def test_remembers_the_first_of_many_readings(self) -> None:
        """Each Xid of a fault can be followed by one, before the incident is known."""
        first = kernels_read(of_client(A, kernel("first")), at=LOGGED_AT - 0.1)
        sign = KernelRecord(at=LOGGED_AT - 0.15, record=xid(31, LOGGED_AT).record)
        others = (kernels_read(of_client(A, kernel("other")), at=LOGGED_AT - 0.09 + n / 1000) for n in range(50))
        assert in_flight(fault(sign, first, *others)) == ["first"]
        later = reduced(kernels_read(at=LOGGED_AT + 12, at_fault=False), start=reduced(first, start=UP).node)
        assert later.node.fault_kernels == ()

    def test_kernels_of_another_process_with_the_pid_are_ignored(self) -> None:
        predecessor = of_client(A, kernel("old"), first_ns=boot_ns(BOOTED + 1))
        successor = of_client(B, kernel("new"), first_ns=boot_ns(LOGGED_AT + 0.05))
        assert fault(kernels_read(predecessor, successor)).clues.kernels == ()
        exited_before = process(A, at=AT + 3, ticks=boot_ns(AT + 2) // 10_000_000)
        assert fault(exited_before, kernels_read(of_client(A, kernel("old")))).clues.kernels == ()

    def test_states_since_and_until_when_launches_are_known(self) -> None:
        paused: Limits = {"launches_since_ns": boot_ns(LOGGED_AT - 60), "launches_until_ns": boot_ns(LOGGED_AT - 3)}
        found = kernels_of(fault(kernels_read(of_client(A, kernel(), names_lost=7), **paused)))
        assert {"launches_since_ns": found.launches_since_ns, "launches_until_ns": found.launches_until_ns} == paused
        assert found.names_lost == 7

    def test_of_many_clients_those_of_suspects_remain_then_those_with_kernels_in_flight(self) -> None:
        """A thousand incidents are stored."""
        pids = range(600, 660)
        up = reduced(
            *at_work(),
            daemon_process(),
            gpu_reading(pids),
            *(line for pid in pids for line in server_log(active(pid))),
            *(process(pid) for pid in pids),
        ).node
        done, flying = kernel("done", until=AT + 1), kernel("flying")
        kernels = kernels_read(*(of_client(pid, flying if pid >= 640 else done) for pid in pids))
        seen = (*block(*pids, at=LOGGED_AT), kernels, xid(31, LOGGED_AT + 0.2))
        assert len(only(reduced(*seen, start=up)).clues.kernels) == 60
        remaining = only(reduced(*seen, LATER, start=up)).clues.kernels
        assert [each.pid for each in remaining] == [*range(640, 656)]
        assert [each.last for each in remaining] == [(flying,)] * 3 + [()] * 13

        known = tuple(fault_kernels(pid, *flights) for pid, flights in ((600, (flying,)), (601, ())))
        ranked = incident(suspects=(suspect(601, 0.9),), clues=Clues(kernels=known))
        assert [each.pid for each in settled_kernels(ranked)] == [601, 600]

    @pytest.mark.parametrize(("began", "known"), [(-1, True), (1, False)])
    def test_states_whether_a_client_began_before_the_exporter(self, began: float, known: bool) -> None:
        seen = process(A, at=AT + 2, ticks=boot_ns(AT + began) // 10_000_000)
        incident = fault(seen, kernels_read(of_client(A, kernel(), first_ns=boot_ns(AT + 2))))
        assert kernels_of(incident).began_before_exporter is known
        assert in_flight(incident) == [None]

    def test_counts_earlier_faults_in_which_the_workload_had_the_kernel_in_flight(self) -> None:
        """That of another workload, and a kernel that was only launched, do not count."""
        alice, bob = (Workload(kind=WorkloadKind.USER, name=each) for each in ("alice", "bob"))
        known = (kernel("in flight"), kernel("other"), kernel("done", until=AT + 1))
        before = kernels_of(fault(kernels_read(of_client(A, *known))))
        earlier = {
            number: ended(
                id=str(number),
                detected_at=AT - 100,
                end_reported=True,
                clues=Clues(kernels=(before, replace(before, pid=B))),
                client_details={pid: faulted_client(pid, workload=workload) for pid in (A, B)},
            )
            for number, workload in enumerate((alice, alice, bob, None))
        }
        start = replace(UP, incidents={each.id: each for each in earlier.values()})
        nobody = replace(process(B, at=AT + 1), user=None, uid=None)
        again = tuple(kernel(each, since=LOGGED_AT - 0.4) for each in ("in flight", "done"))
        now = tuple(of_client(pid, *again) for pid in (A, B))
        seen = (nobody, *block(A, B, at=LOGGED_AT), kernels_read(*now), *EARLIER_SIGN, LATER)
        (incident,) = (each for each in reduced(*seen, start=start).node.incidents.values() if each.id not in "0123")
        assert kernels_of(incident).earlier_faults == {"in flight": 2}
        assert kernels_of(incident, B).earlier_faults == {}

    def test_an_older_sign_that_is_read_late_changes_what_was_in_flight(self) -> None:
        """The exporter reads the kernel log late."""
        early = kernel("early", since=LOGGED_AT - 0.35, until=LOGGED_AT - 0.05)
        late = kernel("late", since=LOGGED_AT - 0.1)
        assert in_flight(fault(kernels_read(of_client(A, late, early)))) == ["late"]
        assert in_flight(fault(kernels_read(of_client(A, late, early)), *EARLIER_SIGN)) == ["early"]

    def test_kernels_are_known_at_once(self) -> None:
        """Not only when the evidence settles."""
        seen = (*block(A, B, at=LOGGED_AT), kernels_read(of_client(A, kernel("a"))))
        assert in_flight(only(reduced(*seen, start=UP))) == ["a"]

    def test_a_client_that_the_log_does_not_list_has_its_kernels(self) -> None:
        """With core dumps, it may be the cause."""
        seen = (*block(A, B, at=LOGGED_AT), DUMPED, kernels_read(of_client(C, kernel("unlisted"))), LATER)
        incident = only(reduced(*seen, start=THREE_CLIENTS))
        assert (incident.clues.unlisted, in_flight(incident, C)) == ((C,), ["unlisted"])

    def test_is_stored_and_may_be_missing_in_an_older_file(self) -> None:
        incident = fault(kernels_read(of_client(A, kernel("a"), kernel(nodes=(name("b"),), grid=(4, 2, 1)))))
        stored = plain(incident)
        assert build(Incident, {**stored, "client_details": {}}).clues == incident.clues
        del stored["clues"]["kernels"]
        assert build(Incident, {**stored, "client_details": {}}).clues.kernels == ()


class TestEvidence:
    """Kernels show work in flight, or its absence, where the counts of once a second do not."""

    def unknown(self, *found: ClientKernels, since: float | None = None, **known: Any) -> dict[int, bool]:
        """Return the work in flight if the counts of A do not show any, but its kernels may: it polls, and each fails.

        It launched since the reading before the fault, and its context may be gone.
        """
        failed = {"launched": LOGGED_AT - 0.4, "kernels": 2, "failed_ns": boot_ns(LOGGED_AT + 0.2), **known}
        return in_flight_work(fault(*self.counts(work(A, **failed), since=since), kernels_read(*found)))

    def counts(self, after: ProcessWork, since: float | None = None) -> Iterable[Observation]:
        history = (reading_of(AT + at, watched=(A, B), seconds=1.0) for at in (-1.0, 0.0, 1.0, 2.0, 3.0))
        before = reading_of(AT + 4.5, work(A, launched=AT + 1, since=since), watched=(A, B), seconds=1.5)
        busy = work(B, launched=LOGGED_AT - 0.2, since=LOGGED_AT - 0.2)
        return (*history, before, reading_of(LOGGED_AT + 0.5, after, busy, watched=(A, B), seconds=1.0))

    def test_client_whose_kernels_had_completed_is_idle(self) -> None:
        done = kernel("done", until=LOGGED_AT - 0.3, since=LOGGED_AT - 0.4, launches=2)
        assert self.unknown(of_client(A, done)) == {A: False, B: True}
        incident = fault(
            *self.counts(work(A, launched=LOGGED_AT - 0.4, kernels=2, failed_ns=boot_ns(LOGGED_AT + 0.2))),
            kernels_read(of_client(A, done), of_client(B, kernel("cause"))),
        )
        assert [each.pid for each in incident.clues.kernels] == [B, A]
        assert incident.suspect is not None
        assert incident.suspect.client.pid == B
        assert incident.suspect.confidence == round(root_cause.ONLY_IN_FLIGHT.confidence, 2)

    def test_client_with_a_kernel_in_flight_is_not_idle(self) -> None:
        """Also if its counts show it idle: one of them is wrong."""
        launched = kernel("launched", launches=2)
        assert self.unknown(of_client(A, launched)) == {A: True, B: True}
        idle = self.counts(work(A, launched=LOGGED_AT - 0.4, kernels=2))
        assert in_flight_work(fault(*idle)) == {A: False, B: True}
        assert in_flight_work(fault(*idle, kernels_read(of_client(A, launched)))) == {B: True}

    @pytest.mark.parametrize(
        ("changed", "known"),
        [
            ({"launches": 1}, {}),
            ({"launches": 2}, {"graphs": 1}),
            ({}, {"since": AT + 4}),
            ({"until": LOGGED_AT + 0.2, "since": LOGGED_AT + 0.1}, {}),
            ({"until": None, "since": LOGGED_AT + 0.1}, {}),
            ({}, {"copies": 1}),
            ({}, {"transfers": 1}),
            ({}, {"initialized_ns": 0}),
            ({}, {"answered_ns": 1}),
        ],
        ids=(
            "launch-lost",
            "graph-lost",
            "busy-before",
            "launched-again",
            "launched-later",
            "copy",
            "transfer",
            "unknown-past",
            "query",
        ),
    )
    def test_unknown_unless_all_work_had_completed(self, changed: dict[str, Any], known: dict[str, int]) -> None:
        """A copy has no kernel. A kernel that was launched again may have been in flight before."""
        done = kernel("done", **{"until": LOGGED_AT - 0.3, "since": LOGGED_AT - 0.4, "launches": 2, **changed})
        assert self.unknown(of_client(A, done), **known).get(A) is not False

    def test_unknown_if_the_probes_were_detached_or_the_kernels_not_read(self) -> None:
        done = kernel("done", until=LOGGED_AT - 0.3, since=LOGGED_AT - 0.4, launches=2)
        flying = kernel("flying", since=LOGGED_AT - 4, launches=2)
        counts = self.counts(work(A, launched=LOGGED_AT - 0.4, kernels=2, failed_ns=boot_ns(LOGGED_AT + 0.2)))
        paused: Limits = {"launches_until_ns": boot_ns(LOGGED_AT - 0.1)}
        resumed: Limits = {"launches_since_ns": boot_ns(LOGGED_AT - 3)}
        later: Limits = {"launches_since_ns": boot_ns(LOGGED_AT + 0.01)}
        for found, limits in [(done, paused), (done, later), (flying, paused), (flying, resumed), (flying, later)]:
            assert A not in in_flight_work(fault(*counts, kernels_read(of_client(A, found), **limits)))
        assert A not in self.unknown(of_client(B, done))

    def test_a_client_that_may_have_copied_since_its_last_counts_is_unknown(self) -> None:
        """It has exited, and its counts were not read again."""
        before = reading_of(AT + 4.5, work(A, launched=AT + 1), watched=(A, B), seconds=1.5)
        after = reading_of(LOGGED_AT + 0.5, watched=(B,), seconds=1.0)
        kernels = kernels_read(of_client(A, kernel("done", until=AT + 2, since=AT + 1)))
        seen: tuple[Observation, ...] = (*WATCHED, before, kernels, exited(A, at=LOGGED_AT + 0.2), after)
        assert in_flight_work(fault(*seen)) == {B: False}

    def test_with_core_dumps_a_completed_kernel_is_no_proof(self) -> None:
        """The kernel of the cause completes at the fault, and the log may be late."""
        done = kernel("done", until=LOGGED_AT - 0.3, since=LOGGED_AT - 0.4, launches=2)
        after = work(A, launched=LOGGED_AT - 0.4, kernels=2, failed_ns=boot_ns(LOGGED_AT + 0.2))
        incident = fault(*self.counts(after), kernels_read(of_client(A, done)), DUMPED)
        assert incident.core_dumps
        assert A not in in_flight_work(incident)
        flying = kernel("done", until=LOGGED_AT + 0.02, launches=2)
        assert in_flight_work(fault(*self.counts(after), kernels_read(of_client(A, flying)), DUMPED))[A] is True


def test_the_last_sign_is_the_newest_xid_or_incident() -> None:
    assert last_sign_at(UP) == 0.0
    with_xid = reduced(xid(31, AT + 4), start=UP).node
    assert last_sign_at(with_xid) == AT + 4
    assert last_sign_at(reduced(*block(A, at=AT + 5), start=with_xid).node) == AT + 5
    assert last_sign_at(reduced(*block(A, at=AT + 5), time_passes(AT + 30), start=with_xid).node) == AT + 5
