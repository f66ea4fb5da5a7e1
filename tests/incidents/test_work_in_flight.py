"""Work in flight at the time of a fault, by client, and the cases in which it is unknown."""

from collections.abc import Iterable
from dataclasses import replace

from exporter.incidents import root_cause
from exporter.model.incident import Incident, InFlightWork
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.values import build, plain
from tests.builders import AT, OTHER_GPU, active, exited, gpu_reading, process, reduced, server_log
from tests.incidents.test_incidents import UP as THREE_CLIENTS
from tests.incidents.test_incidents import A, B, C, block, only, time_passes
from tests.works import SECOND_NS, boot_ns, reading, work

UP = reduced(exited(C, at=AT), start=THREE_CLIENTS).node
"""A server with two clients on one GPU."""

CONFIDENCE = round(root_cause.ONLY_IN_FLIGHT.confidence, 2)

LOGGED_AT = AT + 5
"""When the exporter read the fault log block. The fault occurred about 0.3 s before."""

WATCHED = tuple(reading(AT + at, watched=(A, B)) for at in (-1.0, 0.0, 1.0, 2.0, 3.0))
"""Both clients are probed for some seconds, and launch nothing."""

LATER = time_passes(LOGGED_AT + 3)


def fault(
    *before: ProcessWork,
    after: Iterable[ProcessWork] | None = (),
    watched_after: Iterable[int] = (A, B),
    exited_pids: Iterable[int] = (),
    seconds: float = 1.0,
    history: Iterable[Observation] = WATCHED,
) -> Incident:
    """Return the incident of a fault that affects both clients, with the probe readings before and after it.

    If `after` is None, the probes are not read again. A watched client without counts has initialised CUDA only.
    """
    later = () if after is None else (reading_of(LOGGED_AT + 0.5, *after, watched=watched_after, seconds=seconds),)
    seen = (
        *history,
        reading_of(AT + 4.5, *before, watched=(A, B), seconds=1.5),
        *block(A, B, at=LOGGED_AT),
        *(exited(pid, at=LOGGED_AT + 0.1) for pid in exited_pids),
        *later,
        LATER,
    )
    return only(reduced(*seen, start=UP))


def reading_of(at: float, *works: ProcessWork, watched: Iterable[int], seconds: float) -> WorkReading:
    counted = {each.pid for each in works}
    idle = (work(pid) for pid in watched if pid not in counted)
    return reading(at, *works, *idle, watched=watched, seconds=seconds)


def in_flight_work(incident: Incident) -> dict[int, bool]:
    return {each.pid: each.in_flight for each in incident.clues.in_flight_work}


class TestIdle:
    """A client without open work after a fault had none at the fault: no work completes in a broken context."""

    def test_client_that_never_launched_is_idle(self) -> None:
        """The probes saw its first CUDA call, and no launch since."""
        assert in_flight_work(fault(after=(work(B, launched=LOGGED_AT - 0.2, since=LOGGED_AT - 0.2),))) == {
            A: False,
            B: True,
        }

    def test_a_client_with_a_launch_whose_end_may_be_missed_is_not_known_to_be_idle(self) -> None:
        """It would make its neighbour the only one with work in flight. A synchronisation of all its work ends it."""
        hidden = boot_ns(AT + 2)
        other = work(B, launched=LOGGED_AT - 0.2, since=LOGGED_AT - 0.2)
        for synced, known in ((0, {B: True}), (hidden - 1, {B: True}), (hidden + 1, {A: False, B: True})):
            client = replace(work(A), hidden_ns=hidden, synced_ns=synced)
            assert in_flight_work(fault(client, after=(client, other))) == known

    def test_exited_client_without_launches_is_idle(self) -> None:
        """The counts of an exited process are read once more."""
        died = fault(
            after=(work(A), work(B, launched=LOGGED_AT - 0.2, since=LOGGED_AT - 0.2)),
            watched_after=(),
            exited_pids=(A, B),
        )
        assert in_flight_work(died) == {A: False, B: True}
        assert died.suspect is not None
        assert (died.suspect.client.pid, died.suspect.confidence) == (B, CONFIDENCE)

    def test_client_that_only_synchronized_is_idle(self) -> None:
        """A reading before the fault is not necessary."""
        polling = work(A, failed_ns=boot_ns(LOGGED_AT - 0.2))
        assert in_flight_work(fault(after=(polling,), watched_after=(B,), exited_pids=(A,))) == {A: False, B: False}
        assert in_flight_work(fault(work(A), after=(polling,), watched_after=(B,), exited_pids=(A,))) == {
            A: False,
            B: False,
        }

    def test_sleeping_client_is_idle_if_the_probes_were_read_between_fault_and_log(self) -> None:
        """The reading before that one shows its work at the time of the fault."""
        slept, failed = (work(A, launched=AT, failed_ns=at) for at in (0, boot_ns(AT + 4.4)))
        history = (*WATCHED[:-1], reading(AT + 3.0, slept, watched=(A, B)))
        assert in_flight_work(fault(failed, after=(failed,), history=history))[A] is False

    def test_client_with_completed_work_is_idle(self) -> None:
        """Its last launch may be shortly before the fault."""
        incident = fault(work(A, launched=AT + 4.4, since=AT + 4.3), after=(work(A, launched=LOGGED_AT - 0.5),))
        assert incident.clues.in_flight_work == (
            InFlightWork(pid=A, in_flight=False, seconds_since_launch=0.5),
            InFlightWork(pid=B, in_flight=False),
        )

    def test_client_that_exited_after_the_last_reading_is_not_idle(self) -> None:
        """It may have launched work after that reading."""
        assert in_flight_work(fault(work(A, launched=AT), after=(), watched_after=(B,), exited_pids=(A,))) == {B: False}

    def test_exited_client_is_idle_if_its_last_counts_were_read(self) -> None:
        """The counts of an exited process are read once more."""
        last = work(A, launched=AT)
        assert in_flight_work(fault(last, after=(last,), watched_after=(B,), exited_pids=(A,))) == {A: False, B: False}

    def test_completed_work_after_the_fault_is_no_evidence(self) -> None:
        assert in_flight_work(fault(after=(work(A, launched=LOGGED_AT + 0.2),))) == {B: False}

    def test_client_whose_work_begins_after_the_fault_is_idle(self) -> None:
        """These launches fail. Work from before the fault would still be in flight."""
        later = work(A, launched=LOGGED_AT + 0.4, since=LOGGED_AT + 0.1, failed_ns=boot_ns(LOGGED_AT + 0.4))
        assert fault(after=(later,)).clues.in_flight_work[0] == InFlightWork(pid=A, in_flight=False)

    def test_client_that_may_have_destroyed_its_context_is_not_idle(self) -> None:
        """A destroyed context ends its open work, too. One of its synchronizations failed."""
        assert A not in in_flight_work(
            fault(after=(work(A, launched=LOGGED_AT - 1, failed_ns=boot_ns(LOGGED_AT - 0.2)),))
        )

    def test_client_without_launches_since_it_was_idle_is_idle(self) -> None:
        """It may only poll for completion, and each poll fails."""
        slept = work(A, launched=LOGGED_AT - 9)
        polling = work(A, launched=LOGGED_AT - 9, failed_ns=boot_ns(LOGGED_AT - 0.2))
        assert in_flight_work(fault(slept, after=(polling,)))[A] is False
        assert in_flight_work(fault(work(A, launched=LOGGED_AT - 9, since=LOGGED_AT - 9), after=(polling,)))[A] is True
        assert A not in in_flight_work(fault(polling, after=(polling,)))
        assert A not in in_flight_work(
            fault(slept, after=(work(A, launched=LOGGED_AT - 0.4, kernels=2, failed_ns=1 << 62),))
        )

    def test_client_that_synchronised_its_context_is_idle(self) -> None:
        """Also if it made its first CUDA call before the probes were attached."""
        late = work(A, launched=AT + 2, initialized_ns=0, synced_ns=boot_ns(AT + 3))
        assert in_flight_work(fault(late, after=(late,)))[A] is False

    def test_client_with_an_unknown_past_is_unknown(self) -> None:
        """A kernel from before the probes were attached may still run."""
        late = work(A, launched=AT + 2, initialized_ns=0)
        assert in_flight_work(fault(late, after=(late,))) == {B: False}

    def test_client_whose_work_ended_by_a_query_is_unknown(self) -> None:
        """The answer may have been the fault's error, after which it went on."""
        asked = work(A, launched=AT + 2, answered_ns=boot_ns(AT + 3))
        assert in_flight_work(fault(asked, after=(asked,))) == {B: False}

    def test_synchronisation_of_one_of_several_contexts_is_no_proof(self) -> None:
        """The log reports two contexts of the client, or the node has two GPUs."""
        late = work(A, launched=AT + 2, initialized_ns=0, synced_ns=boot_ns(AT + 3))
        contexts = server_log(active(A, 7), at=AT + 1)
        for seen in (contexts, (gpu_reading(at=AT + 1, gpu=OTHER_GPU, index=1),)):
            assert in_flight_work(fault(late, after=(late,), history=(*WATCHED[:3], *seen, *WATCHED[3:]))) == {B: False}

    def test_exited_client_is_idle_if_its_last_counts_were_read_between_fault_and_log(self) -> None:
        """Its synchronisation had failed. The counts were deleted after that reading."""
        slept, failed = (work(A, launched=AT, failed_ns=at) for at in (0, boot_ns(AT + 4.4)))
        history = (*WATCHED[:-1], reading(AT + 3.0, slept, watched=(A, B)))
        died = fault(failed, after=(), history=history, watched_after=(B,), exited_pids=(A,))
        assert in_flight_work(died) == {A: False, B: False}

    def test_client_without_counts_is_unknown(self) -> None:
        """It made its first CUDA call before the probes were attached."""
        after = reading(LOGGED_AT + 0.5, work(B), watched=(A, B), seconds=1.5)
        seen = (*WATCHED, reading(AT + 4.5, work(B), watched=(A, B), seconds=1.5), *block(A, B, at=LOGGED_AT))
        assert in_flight_work(only(reduced(*seen, after, LATER, start=UP))) == {B: False}

    def test_exited_client_is_unknown_if_the_probes_were_not_read_again(self) -> None:
        assert A not in in_flight_work(fault(after=None, exited_pids=(A,)))


class TestInFlight:
    """Work that is open after the fault was open at the fault, or began then."""

    def test_open_work_with_a_launch_before_the_fault_is_in_flight(self) -> None:
        (in_flight, _) = fault(after=(work(A, launched=LOGGED_AT - 0.3, since=LOGGED_AT - 0.3),)).clues.in_flight_work
        assert in_flight == InFlightWork(pid=A, in_flight=True, seconds_since_launch=0.3)

    def test_client_whose_launches_fail_since_the_fault_has_work_in_flight(self) -> None:
        """Its work was open before the fault."""
        busy = work(A, launched=AT + 4.4, since=AT + 4.3)
        assert in_flight_work(fault(busy, after=(work(A, launched=LOGGED_AT + 0.4, since=AT + 4.3),)))[A] is True

    def test_exited_client_had_work_in_flight_if_the_last_reading_shows_it(self) -> None:
        busy = work(A, launched=AT + 4.4, since=AT + 4.3)
        assert in_flight_work(fault(busy, after=(), watched_after=(B,), exited_pids=(A,))) == {A: True, B: False}

    def test_last_counts_of_a_client_that_exited_before_the_log_was_read_are_used(self) -> None:
        """The probes are read between the fault and its log block. An exited process is not probed."""
        last = work(A, launched=LOGGED_AT - 0.3, since=LOGGED_AT - 0.3)
        last_reading = WorkReading(
            at=LOGGED_AT - 0.1, boot_ns=boot_ns(LOGGED_AT - 0.1), seconds=2, processes=(last,), watched=(B,)
        )
        exit_seen, later = exited(A, at=LOGGED_AT - 0.05), reading(LOGGED_AT + 0.9, watched=(B,))
        assert (
            in_flight_work(
                only(reduced(*WATCHED, last_reading, exit_seen, *block(A, B, at=LOGGED_AT), later, LATER, start=UP))
            )[A]
            is True
        )

    def test_last_reading_is_used_until_the_probes_are_read_again(self) -> None:
        busy = work(A, launched=AT + 4.4, since=AT + 4.3)
        assert in_flight_work(fault(busy, after=None)) == {A: True}
        assert in_flight_work(fault(busy, after=(work(A, launched=AT + 4.4),)))[A] is False


class TestUnknown:
    """Missing readings are evidence neither for nor against a client."""

    def test_unknown_without_probes(self) -> None:
        """The probes are off by default."""
        assert only(reduced(*block(A, B, at=LOGGED_AT), LATER, start=UP)).clues.in_flight_work == ()

    def test_unknown_if_the_probes_were_detached_for_a_while(self) -> None:
        """The rate limit detached them because of too many launches."""
        assert in_flight_work(fault(work(A, launched=AT), after=(work(A, launched=AT),), seconds=0.5)) == {}

    def test_unknown_if_the_probes_were_attached_recently(self) -> None:
        """A kernel that was launched earlier may still run."""
        assert in_flight_work(fault(after=(), history=WATCHED[-1:])) == {}

    def test_unknown_for_a_client_whose_libcuda_was_not_probed(self) -> None:
        """Its container has another copy of the library. The other client is known."""
        before = tuple(reading(AT + at, watched=(B,)) for at in (1.0, 2.0, 3.0, 4.0))
        after = reading(LOGGED_AT + 0.5, work(B), watched=(A, B), seconds=1.5)
        assert in_flight_work(only(reduced(*before, *block(A, B, at=LOGGED_AT), after, LATER, start=UP))) == {B: False}

    def test_unknown_for_a_client_with_an_older_error(self) -> None:
        """After an earlier error, work that was in flight stays open, and no later work is counted."""
        for failed in (
            work(A, launched=LOGGED_AT - 0.3, failed_ns=boot_ns(AT)),
            work(A, launched=LOGGED_AT - 0.3, failed_ns=boot_ns(AT), since=AT - 0.5),
        ):
            assert in_flight_work(fault(failed, after=(failed,))) == {B: False}

    def test_unknown_for_a_client_whose_probes_were_detached_just_before(self) -> None:
        late = work(A, initialized_ns=0)
        before = reading(AT + 4.5, work(B), watched=(B,), seconds=1.5)
        after = reading(LOGGED_AT + 0.5, late, work(B), watched=(A, B))
        assert in_flight_work(only(reduced(*WATCHED, before, *block(A, B, at=LOGGED_AT), after, LATER, start=UP))) == {
            B: False
        }

    def test_unknown_if_the_work_may_have_ended_while_the_probes_were_detached(self) -> None:
        late = work(A, launched=AT - 9, since=AT - 9, initialized_ns=0, open_unsure_ns=1)
        assert in_flight_work(fault(late, after=(late,))) == {B: False}
        assert in_flight_work(fault(late, after=(replace(late, open_unsure_ns=0),)))[A] is True

    def test_work_of_a_process_that_reuses_the_pid_is_ignored(self) -> None:
        busy, reused = (
            work(A, launched=AT + 4.4, since=AT + 4.3),
            work(A, first_ns=boot_ns(LOGGED_AT + 0.3), launched=LOGGED_AT),
        )
        assert in_flight_work(fault(busy, after=(reused,), exited_pids=(A,))) == {A: True, B: False}

    def test_unknown_if_the_last_reading_is_old(self) -> None:
        """The collector failed some time ago, and has not read the probes since."""
        history = (reading(AT - 1), reading(AT, work(A, launched=AT - 1, since=AT - 1)))
        assert in_flight_work(only(reduced(*history, *block(A, B, at=LOGGED_AT), LATER, start=UP))) == {}

    def test_unknown_if_another_process_has_the_pid(self) -> None:
        """Its work, or the lack of it, is not that of the affected client."""
        successor = process(A, at=LOGGED_AT + 0.2, ticks=boot_ns(LOGGED_AT + 0.2) // 10_000_000)
        for works in ((), (work(A, first_ns=boot_ns(LOGGED_AT + 0.3), launched=LOGGED_AT + 0.3),)):
            seen = (
                *WATCHED,
                reading(AT + 4.5, watched=(A, B), seconds=1.5),
                *block(A, B, at=LOGGED_AT),
                exited(A, at=LOGGED_AT + 0.1),
                successor,
                reading(LOGGED_AT + 0.5, *works, work(B), watched=(A, B)),
                LATER,
            )
            assert in_flight_work(only(reduced(*seen, start=UP))) == {B: False}

    def test_work_of_the_previous_process_with_the_pid_is_ignored(self) -> None:
        previous = work(A, first_ns=SECOND_NS, launched=LOGGED_AT - 1, since=LOGGED_AT - 1)
        assert in_flight_work(fault(previous, after=(previous,))) == {B: False}


class TestEffect:
    """The incident stores work in flight, and the ranking of suspects uses it."""

    def test_client_with_work_in_flight_is_the_suspect(self) -> None:
        incident = fault(after=(work(B, launched=LOGGED_AT - 0.3, since=LOGGED_AT - 0.3),))
        assert incident.suspect is not None
        assert incident.suspect.client.pid == B
        assert incident.suspect.confidence == CONFIDENCE
        assert Reason(ReasonCode.WORK_IN_FLIGHT, seconds=0.3) in incident.suspect.indications

    def test_work_in_flight_outlives_the_readings(self) -> None:
        incident = fault(work(A, launched=AT), after=(work(A, launched=AT),))
        assert in_flight_work(incident) == {A: False, B: False}

    def test_work_in_flight_is_stored_and_may_be_missing_in_an_older_file(self) -> None:
        incident = fault(after=(work(B, launched=LOGGED_AT - 0.3, since=LOGGED_AT - 0.3),))
        stored = plain(incident)
        assert build(Incident, {**stored, "client_details": {}}).clues == incident.clues
        del stored["clues"]["in_flight_work"]
        assert build(Incident, {**stored, "client_details": {}}).clues.in_flight_work == ()
