"""Who is suspected, how surely, and why: never surer than what was measured allows."""

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.incidents import root_cause
from exporter.incidents.root_cause import rank_suspects, rankings
from exporter.model.gpu import FailedAccess, IncidentXid
from exporter.model.incident import ClientDetails, Clues, EarlyDisconnect, FaultKind, Incident, InFlightWork
from exporter.model.reason import Reason, ReasonCode
from tests.builders import AT, DAEMON, GPU, SERVER

A, B, C, GONE, ALSO_GONE = 600, 601, 602, 700, 701
SIGKILL, SIGSEGV, EXIT_1 = 9, 11, 1 << 8

INSTRUCTIONS = FailedAccess(unit="GCC", address=0x7F18_7B754000)
WILD_JUMP = FailedAccess(unit="GCC", address=0xFDFC_1C3E_0000_0000)
DATA = FailedAccess(unit="T1", address=0x7F00_0000_0000)


def gone(pid: int = GONE, before: float = 0.13, status: int | None = None, **more: bool) -> EarlyDisconnect:
    return EarlyDisconnect(pid=pid, seconds_before=before, wait_status=status, **more)


def fault(
    *affected: int,
    early_disconnects: tuple[EarlyDisconnect, ...] = (),
    access: FailedAccess | None = None,
    xids: tuple[int, ...] = (31,),
    named: int | None = A,
    in_reset: tuple[int, ...] = (),
    xid_pid: int | None = B,
    in_flight_work: tuple[InFlightWork, ...] = (),
) -> Incident:
    """A fault that hit these, as it is judged."""
    return rank_suspects(
        Incident(
            id="x",
            daemon=DAEMON,
            server=SERVER,
            started_at=AT,
            detected_at=AT,
            gpus=(GPU,),
            xids=tuple(IncidentXid(at=AT, number=each, gpu=GPU, pid=xid_pid, access=access) for each in xids),
            affected=affected,
            affected_confirmed=True,
            client_details={pid: ClientDetails(pid=pid, client=str(pid)) for pid in (*affected, GONE, ALSO_GONE)},
            clues=Clues(
                named=named, early_disconnects=early_disconnects, in_reset=in_reset, in_flight_work=in_flight_work
            ),
        )
    )


def busy(pid: int, seconds_since_launch: float | None = 0.3) -> InFlightWork:
    return InFlightWork(pid=pid, in_flight=True, seconds_since_launch=seconds_since_launch)


def idle(pid: int, seconds_since_launch: float | None = None) -> InFlightWork:
    return InFlightWork(pid=pid, in_flight=False, seconds_since_launch=seconds_since_launch)


def blame(hit: Iterable[int], **known: Any) -> dict[int, float]:
    """Of whoever may have done it, also where that is too little to be told."""
    return {pid: each.confidence for pid, each in rankings(fault(*hit, **known)).items()}


def confidences(incident: Incident) -> dict[int, float]:
    return {each.client.pid: each.confidence for each in incident.suspects}


class TestCutOff:
    """A client that goes with a kernel in flight takes the kernel's instructions along."""

    @pytest.mark.parametrize("status", [None, SIGKILL, SIGSEGV, EXIT_1, 0])
    def test_whoever_left_just_then_did_it_however_it_ended(self, status: int | None) -> None:
        """`exit(0)` in mid-kernel faults the others as SIGKILL does."""
        incident = fault(A, B, early_disconnects=(gone(status=status),), access=INSTRUCTIONS)
        assert incident.kind is FaultKind.CLIENT_KILLED
        assert incident.suspect is not None
        assert (incident.suspect.client.pid, incident.suspect.confidence >= 0.8) == (GONE, True)

    @pytest.mark.parametrize("access", [DATA, WILD_JUMP])
    def test_an_access_of_another_kind_clears_whoever_left(self, access: FailedAccess) -> None:
        """A living client's wild pointer, or wild jump."""
        incident = fault(A, B, early_disconnects=(gone(status=SIGKILL),), access=access)
        assert confidences(incident) == {A: 0.49, B: 0.49}
        assert incident.kind is FaultKind.MEMORY

    @pytest.mark.parametrize("before", [0.0, 0.08, 0.2, 0.4])
    def test_whoever_left_at_another_time_is_cleared(self, before: float) -> None:
        """The fault comes about 130 ms after."""
        assert GONE not in confidences(fault(A, B, early_disconnects=(gone(before=before),), access=INSTRUCTIONS))

    def test_whom_an_operator_ended_is_cleared(self) -> None:
        """`terminate_client` harms nobody else."""
        assert GONE not in confidences(fault(A, B, early_disconnects=(gone(terminated=True),), access=INSTRUCTIONS))

    def test_of_several_it_is_rather_the_one_that_was_killed(self) -> None:
        """Two trials say so, which is not enough to be very sure."""
        two = (gone(status=SIGKILL), gone(ALSO_GONE, status=0))
        sure = confidences(fault(A, B, early_disconnects=two, access=INSTRUCTIONS))
        assert sure[ALSO_GONE] < 0.5 < sure[GONE] < 0.8

    def test_several_that_are_alike_share_it(self) -> None:
        """Nothing tells them apart."""
        two = (gone(status=SIGKILL), gone(ALSO_GONE, status=SIGKILL))
        incident = fault(A, B, early_disconnects=two, access=INSTRUCTIONS)
        assert confidences(incident)[GONE] == confidences(incident)[ALSO_GONE] < 0.5
        assert incident.suspect is None


class TestByChance:
    """Where nobody tells which access failed, an exit at that time may be a coincidence."""

    @pytest.mark.parametrize("status", [None, SIGKILL, 0])
    def test_it_is_never_very_likely(self, status: int | None) -> None:
        """Planted, an ordinary exit looks the same."""
        incident = fault(A, B, C, early_disconnects=(gone(status=status),), access=None)
        assert incident.suspect is not None
        assert (incident.suspect.client.pid, incident.suspect.confidence < 0.8) == (GONE, True)

    def test_one_that_was_killed_is_likelier_than_one_that_exited(self) -> None:
        """And one of which nobody knows is in between."""
        sure = [
            confidences(fault(A, B, C, early_disconnects=(gone(status=each),)))[GONE] for each in (SIGKILL, None, 0)
        ]
        assert sure == sorted(sure, reverse=True)

    def test_the_kernels_word_that_it_killed_it_counts_as_a_signal(self) -> None:
        """For want of memory."""
        incident = fault(A, B, early_disconnects=(gone(out_of_memory=True),))
        assert Reason(ReasonCode.OUT_OF_MEMORY_KILLED) in incident.suspects[0].indications


class TestTrap:
    """The worker of a client that trapped is in reset when it leaves."""

    def test_it_is_very_likely(self) -> None:
        """Whoever left first or last."""
        incident = fault(A, B, C, xids=(43,), named=None, xid_pid=SERVER, in_reset=(C,))
        assert incident.kind is FaultKind.EXECUTION
        assert confidences(incident)[C] >= 0.8 > confidences(incident).get(A, 0.0)

    def test_in_a_memory_fault_it_says_nothing(self) -> None:
        """An assert of its own, by chance."""
        assert confidences(fault(A, B, in_reset=(B,), access=DATA)) == {A: 0.49, B: 0.49}

    def test_before_anybody_has_left_nobody_stands_out(self) -> None:
        """The Xid names the server, and the log nobody."""
        assert fault(A, B, C, xids=(43,), named=None, xid_pid=SERVER).suspect is None


class TestUnknown:
    """Of an illegal address among several, nothing says more than chance."""

    def test_those_who_are_named_are_no_likelier_than_the_others(self) -> None:
        """Neither by the log nor by the Xid, nor by both; but it is said."""
        incident = fault(A, B, C, named=A, xid_pid=A, access=DATA)
        assert incident.suspect is None
        assert set(confidences(incident).values()) == {0.32}
        assert Reason(ReasonCode.NAMED_BY_LOG) in incident.suspects[0].indications

    def test_the_only_one_is_likely_and_no_more(self) -> None:
        """It may be the victim of one that was not seen to leave."""
        incident = fault(A)
        assert confidences(incident) == {A: root_cause.ONLY_AFFECTED}
        assert {each.code for each in incident.suspects[0].indications} <= {
            ReasonCode.ONLY_AFFECTED_CLIENT,
            ReasonCode.NAMED_BY_LOG,
        }

    def test_one_of_very_many_is_not_worth_naming(self) -> None:
        """Of 48, each is as likely as the others."""
        assert fault(*range(1000, 1048)).suspects == ()


class TestInFlight:
    """A fault is a kernel's: whoever had none in flight hardly did it. How hardly is inferred, and not yet measured."""

    def test_the_only_one_that_had_is_likely_and_no_more(self) -> None:
        """Not as sure as a sign that was measured."""
        incident = fault(A, B, C, in_flight_work=(idle(A), busy(B), idle(C)), access=DATA)
        sure = confidences(incident)
        assert incident.suspect is not None
        assert (incident.suspect.client.pid, sure[B]) == (B, root_cause.ONLY_IN_FLIGHT)
        assert 0.5 < sure[B] < 0.8
        assert incident.suspect.indications[-1] == Reason(ReasonCode.ONLY_WORK_IN_FLIGHT)

    def test_the_idle_ones_keep_little_and_it_is_said_why(self) -> None:
        """They may have done it by a door that is not watched."""
        incident = fault(A, B, in_flight_work=(idle(A, 12), busy(B)), access=DATA)
        assert confidences(incident)[A] == 0.05
        assert Reason(ReasonCode.NO_WORK_IN_FLIGHT, seconds=12.0) in incident.suspects[-1].indications

    def test_those_who_had_share_what_the_idle_ones_lose(self) -> None:
        """In equal parts: nothing tells them apart."""
        sure = confidences(fault(A, B, C, in_flight_work=(busy(A), idle(B), busy(C)), access=DATA))
        assert sure[A] == sure[C] == 0.47
        assert sure.get(B, 0.0) < 0.05

    def test_one_of_whom_nothing_is_known_is_as_likely_as_one_that_had(self) -> None:
        """It may have had, too."""
        sure = confidences(fault(A, B, C, in_flight_work=(busy(A), idle(B)), access=DATA))
        assert sure[A] == sure[C]

    def test_where_all_were_busy_nobody_stands_out(self) -> None:
        """As without it; but it is said."""
        incident = fault(A, B, in_flight_work=(busy(A), busy(B)), access=DATA)
        assert (incident.suspect, confidences(incident)) == (None, {A: 0.49, B: 0.49})
        assert all(any(why.code is ReasonCode.WORK_IN_FLIGHT for why in each.indications) for each in incident.suspects)

    def test_where_all_were_idle_nobody_is_told_apart(self) -> None:
        """It was none of them, or by a door that nobody watches."""
        assert confidences(fault(A, B, in_flight_work=(idle(A), idle(B)), access=DATA)) == {A: 0.49, B: 0.49}

    def test_one_in_forty_eight_is_found(self) -> None:
        """However many were idle."""
        everybody = range(1000, 1048)
        incident = fault(*everybody, in_flight_work=(*(idle(pid) for pid in everybody[1:]), busy(1000)), access=DATA)
        assert confidences(incident) == {1000: root_cause.ONLY_IN_FLIGHT}

    def test_a_client_that_was_cut_off_keeps_its_own_rule(self) -> None:
        """It is not among those who were hit."""
        alone = fault(A, B, early_disconnects=(gone(status=SIGKILL),), access=INSTRUCTIONS)
        beside = fault(
            A, B, early_disconnects=(gone(status=SIGKILL),), access=INSTRUCTIONS, in_flight_work=(busy(A), idle(B))
        )
        assert confidences(beside)[GONE] == confidences(alone)[GONE]
        assert beside.kind is FaultKind.CLIENT_KILLED

    @given(st.data())
    @settings(max_examples=100)
    def test_it_never_makes_an_idle_one_likelier_nor_the_blame_more(self, data: st.DataObject) -> None:
        """Whatever else is known; and where several may have done it, none of the blame is lost."""
        hit = data.draw(st.lists(st.integers(600, 611), min_size=1, max_size=12, unique=True))
        known = data.draw(st.lists(st.sampled_from(hit), unique=True))
        in_flight_work = tuple(data.draw(st.sampled_from((idle, busy)))(pid) for pid in known)
        early_disconnects = (gone(status=SIGKILL),) if data.draw(st.booleans()) else ()
        access = data.draw(st.sampled_from((None, INSTRUCTIONS, DATA)))
        in_reset = tuple(data.draw(st.lists(st.sampled_from(hit), unique=True, max_size=2)))
        xids = data.draw(st.sampled_from(((31,), (43,), ())))
        evidence = {
            "early_disconnects": early_disconnects,
            "in_reset": in_reset,
            "access": access,
            "named": None,
            "xids": xids,
        }
        without, weighed = blame(hit, **evidence), blame(hit, in_flight_work=in_flight_work, **evidence)
        blameless = {each.pid for each in in_flight_work if not each.in_flight}
        assert weighed.keys() == without.keys()
        assert all(weighed[pid] <= without[pid] + 1e-9 for pid in blameless & without.keys())
        assert sum(weighed.values()) <= sum(without.values()) + 1e-9
        if len(set(hit) - blameless - set(in_reset)) > 1:
            assert sum(weighed.values()) == pytest.approx(sum(without.values()))


class TestHardware:
    """Where the hardware failed, nobody on it is to blame."""

    @pytest.mark.parametrize("number", [48, 63, 64, 74, 79, 94, 95, 119, 120, 140])
    def test_it_clears_everybody(self, number: int) -> None:
        """Whatever else there is."""
        incident = fault(A, B, xids=(31, number), early_disconnects=(gone(status=SIGKILL),), access=INSTRUCTIONS)
        assert (incident.kind, incident.suspects) == (FaultKind.HARDWARE, ())


class TestCalibration:
    """As sure as the lower end of the interval says."""

    def test_one_that_was_always_right_is_not_certain(self) -> None:
        """Ten of ten may be nine of ten."""
        assert root_cause.Calibration(10, 10).confidence == pytest.approx(0.722, abs=0.001)

    def test_a_coin_toss_is_less_than_a_half(self) -> None:
        """As often as not, in few trials."""
        assert root_cause.Calibration(5, 10).confidence == pytest.approx(0.237, abs=0.001)

    def test_no_confidences_add_up_to_more_than_one(self) -> None:
        """One of them did it, or somebody else."""
        for incident in (
            fault(A, B, C, early_disconnects=(gone(), gone(ALSO_GONE, status=SIGKILL)), access=INSTRUCTIONS),
            fault(A, B, C, early_disconnects=(gone(),)),
            fault(A, B, C, xids=(43,), named=None, in_reset=(A, B)),
        ):
            assert sum(confidences(incident).values()) <= 1.01
