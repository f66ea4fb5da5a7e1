"""Who had work in flight when a fault struck: what can be told of it, and of whom nothing can be."""

from collections.abc import Iterable

from exporter.incidents import root_cause
from exporter.model.incident import Incident, InFlightWork
from exporter.model.launches import ProcessWork, WorkReading
from exporter.model.observation import Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.serialization import build, plain
from tests.builders import AT, exited, process, reduced
from tests.incidents.test_incidents import UP as THREE
from tests.incidents.test_incidents import A, B, C, block, only, time_passes
from tests.works import SECOND_NS, boot_ns, reading, work

UP = reduced(exited(C, at=AT), start=THREE).node
"""A server with two clients on the one GPU."""

TOLD = AT + 5
"""When the log was seen to tell of the fault, which struck some 0.3 s before."""

WATCHED = tuple(reading(AT + at, watched=(A, B)) for at in (-1.0, 0.0, 1.0, 2.0, 3.0))
"""Both clients are watched for long, and do nothing."""

SETTLED = time_passes(TOLD + 3)


def fault(
    *before: ProcessWork,
    after: Iterable[ProcessWork] | None = (),
    watched_after: Iterable[int] = (A, B),
    gone: Iterable[int] = (),
    seconds: float = 1.0,
    history: Iterable[Observation] = WATCHED,
) -> Incident:
    """A fault that hits both clients, the doors as they were last read before it, and as they were first read after it.

    `after` is None where they were not read again.
    """
    later = () if after is None else (reading(TOLD + 0.5, *after, watched=watched_after, seconds=seconds),)
    seen = (
        *history,
        reading(AT + 4.5, *before, watched=(A, B), seconds=1.5),
        *block(A, B, at=TOLD),
        *(exited(pid, at=TOLD + 0.1) for pid in gone),
        *later,
        SETTLED,
    )
    return only(reduced(*seen, start=UP))


def in_flight_work(incident: Incident) -> dict[int, bool]:
    return {each.pid: each.in_flight for each in incident.clues.in_flight_work}


class TestIdle:
    """Whoever has nothing open after a fault had nothing open when it struck: no span ends once everything fails."""

    def test_one_that_has_launched_nothing(self) -> None:
        """It is watched, and there is no work of it."""
        assert in_flight_work(fault(after=(work(B, launched=TOLD - 0.2, since=TOLD - 0.2),))) == {A: False, B: True}

    def test_one_that_launched_nothing_and_died_at_once(self) -> None:
        """The counts of a dead process are read once more, so without any it launched nothing."""
        died = fault(after=(work(B, launched=TOLD - 0.2, since=TOLD - 0.2),), watched_after=(), gone=(A, B))
        assert in_flight_work(died) == {A: False, B: True}
        assert died.suspect is not None
        assert (died.suspect.client.pid, died.suspect.confidence) == (B, root_cause.ONLY_IN_FLIGHT)

    def test_one_that_only_synchronised_until_that_failed(self) -> None:
        """Whether it was read before the fault or not."""
        asks = work(A, failed_ns=boot_ns(TOLD - 0.2))
        assert in_flight_work(fault(after=(asks,), watched_after=(B,), gone=(A,))) == {A: False, B: False}
        assert in_flight_work(fault(work(A), after=(asks,), watched_after=(B,), gone=(A,))) == {A: False, B: False}

    def test_one_that_slept_where_the_probes_were_read_between_the_fault_and_the_log(self) -> None:
        """The reading before that has what it had done when the fault struck."""
        slept, failed = (work(A, launched=AT, failed_ns=at) for at in (0, boot_ns(AT + 4.4)))
        history = (*WATCHED[:-1], reading(AT + 3.0, slept, watched=(A, B)))
        assert in_flight_work(fault(failed, after=(failed,), history=history))[A] is False

    def test_one_whose_work_was_done(self) -> None:
        """It may have launched right up to the fault."""
        incident = fault(work(A, launched=AT + 4.4, since=AT + 4.3), after=(work(A, launched=TOLD - 0.5),))
        assert incident.clues.in_flight_work == (
            InFlightWork(pid=A, in_flight=False, seconds_since_launch=0.5),
            InFlightWork(pid=B, in_flight=False),
        )

    def test_one_that_died_after_it_was_read_is_not_cleared(self) -> None:
        """It may have launched since."""
        assert in_flight_work(fault(work(A, launched=AT), after=(), watched_after=(B,), gone=(A,))) == {B: False}

    def test_unless_its_last_word_was_kept(self) -> None:
        """The doors tell of the dead once more."""
        last = work(A, launched=AT)
        assert in_flight_work(fault(last, after=(last,), watched_after=(B,), gone=(A,))) == {A: False, B: False}

    def test_one_that_launched_since_and_was_answered_is_not_understood(self) -> None:
        """In a context that is broken nothing is."""
        assert in_flight_work(fault(after=(work(A, launched=TOLD + 0.2),))) == {B: False}

    def test_one_that_begins_only_after_it(self) -> None:
        """In vain; had it had work when the fault struck, that would be in flight still."""
        later = work(A, launched=TOLD + 0.4, since=TOLD + 0.1, failed_ns=boot_ns(TOLD + 0.4))
        assert fault(after=(later,)).clues.in_flight_work[0] == InFlightWork(pid=A, in_flight=False)

    def test_one_that_may_have_given_up_its_context_is_not_cleared(self) -> None:
        """With which its spans end, too: a synchronisation of it has failed."""
        assert A not in in_flight_work(fault(after=(work(A, launched=TOLD - 1, failed_ns=boot_ns(TOLD - 0.2)),)))

    def test_unless_it_has_launched_nothing_at_all_since_it_was_idle(self) -> None:
        """As one that only asks, in vain, whether its work is done."""
        slept = work(A, launched=TOLD - 9)
        asks = work(A, launched=TOLD - 9, failed_ns=boot_ns(TOLD - 0.2))
        assert in_flight_work(fault(slept, after=(asks,)))[A] is False
        assert in_flight_work(fault(work(A, launched=TOLD - 9, since=TOLD - 9), after=(asks,)))[A] is True
        assert A not in in_flight_work(fault(asks, after=(asks,)))
        assert A not in in_flight_work(
            fault(slept, after=(work(A, launched=TOLD - 0.4, kernels=2, failed_ns=1 << 62),))
        )

    def test_where_launches_were_lost_one_that_launched_nothing_is_not_cleared(self) -> None:
        """It may be the one whose they were."""
        after = reading(TOLD + 0.5, work(B, launched=AT), watched=(A,), lost=1)
        seen = (*WATCHED, reading(AT + 4.5, watched=(A, B), seconds=1.5), *block(A, B, at=TOLD), after, SETTLED)
        assert in_flight_work(only(reduced(*seen, start=UP))) == {B: False}

    def test_a_dead_one_without_counts_is_not_cleared_unless_all_was_seen(self) -> None:
        """Launches were lost; the probes were not read again; another process has the PID; it came a moment before."""
        dead = {"watched_after": (B,), "gone": (A,)}
        assert A not in in_flight_work(fault(after=None, gone=(A,)))
        assert A not in in_flight_work(fault(after=(), watched_after=(A, B), gone=(A,)))
        late = tuple(reading(AT + at, watched=(B,)) for at in (-1.0, 0.0, 1.0, 2.0, 3.0))
        assert in_flight_work(fault(after=(), history=late, **dead)) == {B: False}
        lost = reading(TOLD + 0.5, watched=(B,), lost=1)
        seen = (
            *WATCHED,
            reading(AT + 4.5, watched=(A, B), seconds=1.5),
            *block(A, B, at=TOLD),
            exited(A, at=TOLD + 0.1),
            lost,
            SETTLED,
        )
        assert in_flight_work(only(reduced(*seen, start=UP))) == {}


class TestInFlight:
    """A span that is open afterwards was open, or began then."""

    def test_one_whose_last_launch_came_before(self) -> None:
        """As the culprit's."""
        (flight, _) = fault(after=(work(A, launched=TOLD - 0.3, since=TOLD - 0.3),)).clues.in_flight_work
        assert flight == InFlightWork(pid=A, in_flight=True, seconds_since_launch=0.3)

    def test_one_that_launches_in_vain_ever_since(self) -> None:
        """It had work before."""
        busy = work(A, launched=AT + 4.4, since=AT + 4.3)
        assert in_flight_work(fault(busy, after=(work(A, launched=TOLD + 0.4, since=AT + 4.3),)))[A] is True

    def test_one_that_died_at_once_had_if_it_was_seen_a_moment_before(self) -> None:
        """Nothing that was read later has it."""
        busy = work(A, launched=AT + 4.4, since=AT + 4.3)
        assert in_flight_work(fault(busy, after=(), watched_after=(B,), gone=(A,))) == {A: True, B: False}

    def test_one_that_was_dead_when_the_doors_were_read_last_is_known_by_its_last_word(self) -> None:
        """They are read between the fault and the log's word of it: whoever is dead is nobody's to watch."""
        last = work(A, launched=TOLD - 0.3, since=TOLD - 0.3)
        early = WorkReading(at=TOLD - 0.1, boot_ns=boot_ns(TOLD - 0.1), seconds=2, processes=(last,), watched=(B,))
        gone, later = exited(A, at=TOLD - 0.05), reading(TOLD + 0.9, watched=(B,))
        assert (
            in_flight_work(only(reduced(*WATCHED, early, gone, *block(A, B, at=TOLD), later, SETTLED, start=UP)))[A]
            is True
        )

    def test_before_the_doors_are_read_again_it_is_what_was_seen_last(self) -> None:
        """It is told, and taken back where it turns out otherwise."""
        busy = work(A, launched=AT + 4.4, since=AT + 4.3)
        assert in_flight_work(fault(busy, after=None)) == {A: True}
        assert in_flight_work(fault(busy, after=(work(A, launched=AT + 4.4),)))[A] is False


class TestNotKnown:
    """No evidence is none, either way."""

    def test_where_the_doors_are_not_watched(self) -> None:
        """As it is by default."""
        assert only(reduced(*block(A, B, at=TOLD), SETTLED, start=UP)).clues.in_flight_work == ()

    def test_where_they_were_not_watched_all_the_time(self) -> None:
        """Too many launches, and the guard left them for a while."""
        assert in_flight_work(fault(work(A, launched=AT), after=(work(A, launched=AT),), seconds=0.5)) == {}

    def test_where_they_were_not_watched_for_long(self) -> None:
        """A kernel may run that was launched before."""
        assert in_flight_work(fault(after=(), history=WATCHED[-1:])) == {}

    def test_of_one_whose_libcuda_was_not_watched(self) -> None:
        """A copy of its own, in its container; of the other it is known all the same."""
        before = tuple(reading(AT + at, watched=(B,)) for at in (1.0, 2.0, 3.0, 4.0))
        after = reading(TOLD + 0.5, watched=(A, B), seconds=1.5)
        assert in_flight_work(only(reduced(*before, *block(A, B, at=TOLD), after, SETTLED, start=UP))) == {B: False}

    def test_of_one_that_got_an_error_long_ago(self) -> None:
        """Of another kind: what was in flight then is told of for ever, and nothing since."""
        for failed in (
            work(A, launched=TOLD - 0.3, failed_ns=boot_ns(AT)),
            work(A, launched=TOLD - 0.3, failed_ns=boot_ns(AT), since=AT - 0.5),
        ):
            assert in_flight_work(fault(failed, after=(failed,))) == {B: False}

    def test_of_one_whose_libcuda_was_left_just_before(self) -> None:
        """Though it lives, and is watched again."""
        before, after = reading(AT + 4.5, watched=(B,), seconds=1.5), reading(TOLD + 0.5, watched=(A, B))
        assert in_flight_work(only(reduced(*WATCHED, before, *block(A, B, at=TOLD), after, SETTLED, start=UP))) == {
            B: False
        }

    def test_of_a_newcomer_with_the_pid_of_whom_nothing_is_known_yet(self) -> None:
        """Its work is not the dead one's, of whom the last word counts."""
        busy, new = work(A, launched=AT + 4.4, since=AT + 4.3), work(A, first_ns=boot_ns(TOLD + 0.3), launched=TOLD)
        assert in_flight_work(fault(busy, after=(new,), gone=(A,))) == {A: True, B: False}

    def test_where_the_last_reading_is_old(self) -> None:
        """The eye failed some time ago, and has not looked again."""
        history = (reading(AT - 1), reading(AT, work(A, launched=AT - 1, since=AT - 1)))
        assert in_flight_work(only(reduced(*history, *block(A, B, at=TOLD), SETTLED, start=UP))) == {}

    def test_of_another_that_has_the_pid_by_now(self) -> None:
        """Neither its idleness nor its work is the affected client's."""
        newcomer = process(A, at=TOLD + 0.2, ticks=boot_ns(TOLD + 0.2) // 10_000_000)
        for works in ((), (work(A, first_ns=boot_ns(TOLD + 0.3), launched=TOLD + 0.3),)):
            seen = (
                *WATCHED,
                reading(AT + 4.5, watched=(A, B), seconds=1.5),
                *block(A, B, at=TOLD),
                exited(A, at=TOLD + 0.1),
                newcomer,
                reading(TOLD + 0.5, *works, watched=(A, B)),
                SETTLED,
            )
            assert in_flight_work(only(reduced(*seen, start=UP))) == {B: False}

    def test_of_one_that_had_the_pid_before(self) -> None:
        """What it has left behind is not the client's."""
        left = work(A, first_ns=SECOND_NS, launched=TOLD - 1, since=TOLD - 1)
        assert in_flight_work(fault(left, after=(left,))) == {B: False}


class TestWhatComesOfIt:
    """The incident keeps it, and it weighs."""

    def test_who_had_work_is_suspected_beside_who_had_none(self) -> None:
        """Nothing else tells the two apart."""
        incident = fault(after=(work(B, launched=TOLD - 0.3, since=TOLD - 0.3),))
        assert incident.suspect is not None
        assert incident.suspect.client.pid == B
        assert incident.suspect.confidence == root_cause.ONLY_IN_FLIGHT
        assert Reason(ReasonCode.WORK_IN_FLIGHT, seconds=0.3) in incident.suspect.indications

    def test_it_stays_when_the_readings_are_forgotten(self) -> None:
        """A minute later."""
        incident = fault(work(A, launched=AT), after=(work(A, launched=AT),))
        assert in_flight_work(incident) == {A: False, B: False}

    def test_it_outlives_the_exporter_and_an_older_file_has_none(self) -> None:
        """As every clue does."""
        incident = fault(after=(work(B, launched=TOLD - 0.3, since=TOLD - 0.3),))
        kept = plain(incident)
        assert build(Incident, {**kept, "client_details": {}}).clues == incident.clues
        del kept["clues"]["in_flight_work"]
        assert build(Incident, {**kept, "client_details": {}}).clues.in_flight_work == ()
