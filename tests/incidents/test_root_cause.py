"""Root cause ranking: suspects, their confidence and indications. No confidence exceeds the measured rate."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.incidents import root_cause
from exporter.incidents.root_cause import rank_suspects, rankings
from exporter.model.incident import (
    AddressClue,
    AddressMatch,
    ClientDetails,
    Clues,
    EarlyDisconnect,
    FailedAccess,
    Incident,
    IncidentKind,
    IncidentXid,
    InFlightWork,
    Place,
)
from exporter.model.kernels import FaultKernels
from exporter.model.reason import Reason, ReasonCode
from tests.builders import AT, DAEMON, GPU, SERVER
from tests.incidents.values import confidences, fault_kernels, launched

A, B, C, LEFT, ALSO_LEFT = 600, 601, 602, 700, 701
SIGKILL, SIGSEGV, EXIT_1 = 9, 11, 1 << 8

INSTRUCTIONS = FailedAccess(unit="GCC", address=0x7F18_7B754000)
WILD_JUMP = FailedAccess(unit="GCC", address=0xFDFC_1C3E_0000_0000)
DATA = FailedAccess(unit="T1", address=0x7F00_0000_0000)


def early(pid: int = LEFT, before: float = 0.13, status: int | None = None, **more: bool) -> EarlyDisconnect:
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
    """Return the ranked incident of a fault that affected these clients."""
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
            client_details={pid: ClientDetails(pid=pid, client=str(pid)) for pid in (*affected, LEFT, ALSO_LEFT)},
            clues=Clues(
                named=named, early_disconnects=early_disconnects, in_reset=in_reset, in_flight_work=in_flight_work
            ),
        )
    )


def busy(pid: int, seconds_since_launch: float | None = 0.3) -> InFlightWork:
    return InFlightWork(pid=pid, in_flight=True, seconds_since_launch=seconds_since_launch)


def idle(pid: int, seconds_since_launch: float | None = None) -> InFlightWork:
    return InFlightWork(pid=pid, in_flight=False, seconds_since_launch=seconds_since_launch)


def ranked(hit: Iterable[int], **known: Any) -> dict[int, float]:
    """Return the confidence of each candidate, also of those below the reporting limit."""
    return {pid: each.confidence for pid, each in rankings(fault(*hit, **known)).items()}


class TestKilledDuringKernel:
    """If a client ends while its kernel runs, the instructions of the kernel are unmapped."""

    def test_client_that_disconnected_just_before_is_the_suspect(self, subtests: pytest.Subtests) -> None:
        """`exit(0)` during a kernel affects the other clients as SIGKILL does."""
        for status in [None, SIGKILL, SIGSEGV, EXIT_1, 0]:
            with subtests.test(status=status):
                incident = fault(A, B, early_disconnects=(early(status=status),), access=INSTRUCTIONS)
                assert incident.kind is IncidentKind.CLIENT_KILLED
                assert incident.suspect is not None
                assert (incident.suspect.client.pid, incident.suspect.confidence >= 0.8) == (LEFT, True)

    @pytest.mark.parametrize("access", [DATA, WILD_JUMP])
    def test_other_kind_of_access_excludes_the_disconnected_client(self, access: FailedAccess) -> None:
        """A connected client used an invalid pointer, or jumped to an invalid address."""
        incident = fault(A, B, early_disconnects=(early(status=SIGKILL),), access=access)
        assert confidences(incident) == {A: 0.49, B: 0.49}
        assert incident.kind is IncidentKind.MEMORY

    @pytest.mark.parametrize("before", [0.0, 0.08, 0.2, 0.4])
    def test_disconnect_at_another_time_excludes_the_client(self, before: float) -> None:
        """The fault occurs about 130 ms after the disconnect."""
        assert LEFT not in confidences(fault(A, B, early_disconnects=(early(before=before),), access=INSTRUCTIONS))

    def test_client_terminated_by_an_operator_is_excluded(self) -> None:
        """`terminate_client` does not affect other clients."""
        assert LEFT not in confidences(fault(A, B, early_disconnects=(early(terminated=True),), access=INSTRUCTIONS))

    def test_killed_client_ranks_above_one_that_exited(self) -> None:
        """Two trials are not enough for a high confidence."""
        two = (early(status=SIGKILL), early(ALSO_LEFT, status=0))
        ranking = confidences(fault(A, B, early_disconnects=two, access=INSTRUCTIONS))
        assert ranking[ALSO_LEFT] < 0.5 < ranking[LEFT] < 0.8

    @pytest.mark.parametrize("status", [SIGKILL, None])
    def test_similar_clients_share_the_confidence(self, status: int | None) -> None:
        """A client whose status is unknown may have been killed too."""
        two = (early(status=SIGKILL), early(ALSO_LEFT, status=status))
        incident = fault(A, B, early_disconnects=two, access=INSTRUCTIONS)
        assert confidences(incident)[LEFT] == confidences(incident)[ALSO_LEFT] < 0.5
        assert incident.suspect is None


class TestCoincidence:
    """If the failed access is unknown, an exit at that time may be a coincidence."""

    @pytest.mark.parametrize("status", [None, SIGKILL, 0])
    def test_confidence_stays_below_likely(self, status: int | None) -> None:
        incident = fault(A, B, C, early_disconnects=(early(status=status),), access=None)
        assert incident.suspect is not None
        assert (incident.suspect.client.pid, incident.suspect.confidence < 0.8) == (LEFT, True)

    def test_killed_client_ranks_above_unknown_and_normal_exits(self) -> None:
        ranking = [
            confidences(fault(A, B, C, early_disconnects=(early(status=each),)))[LEFT] for each in (SIGKILL, None, 0)
        ]
        assert ranking == sorted(ranking, reverse=True)

    def test_out_of_memory_kill_is_an_indication(self) -> None:
        """The kernel log reports it."""
        incident = fault(A, B, early_disconnects=(early(out_of_memory=True),))
        assert Reason(ReasonCode.OUT_OF_MEMORY_KILLED) in incident.suspects[0].indications


class TestTrap:
    """The worker of a client whose kernel trapped is in reset at the disconnect."""

    def test_client_in_reset_is_very_likely(self) -> None:
        """The order of the disconnects does not matter."""
        incident = fault(A, B, C, xids=(43,), named=None, xid_pid=SERVER, in_reset=(C,))
        assert incident.kind is IncidentKind.EXECUTION
        assert confidences(incident)[C] >= 0.8 > confidences(incident).get(A, 0.0)

    def test_reset_is_no_evidence_in_a_memory_fault(self) -> None:
        """An unrelated assert may cause the reset."""
        assert confidences(fault(A, B, in_reset=(B,), access=DATA)) == {A: 0.49, B: 0.49}

    def test_no_suspect_before_the_first_disconnect(self) -> None:
        """The Xid names the server, and the log names no client."""
        assert fault(A, B, C, xids=(43,), named=None, xid_pid=SERVER).suspect is None


class TestUnknown:
    """For an illegal address and several clients, no evidence is better than chance."""

    def test_named_clients_rank_like_the_others(self) -> None:
        """Names in the log or the Xid are reported, but do not change the confidence."""
        incident = fault(A, B, C, named=A, xid_pid=A, access=DATA)
        assert incident.suspect is None
        assert set(confidences(incident).values()) == {0.32}
        assert Reason(ReasonCode.NAMED_BY_LOG) in incident.suspects[0].indications

    def test_only_affected_client_is_likely(self) -> None:
        """The cause may be a client whose disconnect was not observed."""
        incident = fault(A)
        assert confidences(incident) == {A: root_cause.ONLY_POSSIBLE}
        assert {each.code for each in incident.suspects[0].indications} <= {
            ReasonCode.ONLY_AFFECTED_CLIENT,
            ReasonCode.NAMED_BY_LOG,
        }

    def test_no_suspects_among_very_many_clients(self) -> None:
        """All 48 clients are equally likely."""
        assert fault(*range(1000, 1048)).suspects == ()


class TestInFlight:
    """A client without a kernel in flight hardly caused the fault."""

    def test_only_client_with_work_in_flight_is_likely(self) -> None:
        """In all trials, the only client with work in flight was the cause."""
        incident = fault(A, B, C, in_flight_work=(idle(A), busy(B), idle(C)), access=DATA)
        ranking = confidences(incident)
        assert incident.suspect is not None
        assert (incident.suspect.client.pid, ranking[B]) == (B, round(root_cause.ONLY_IN_FLIGHT.confidence, 2))
        assert 0.7 < ranking[B] < 0.9
        assert incident.suspect.indications[-1] == Reason(ReasonCode.ONLY_WORK_IN_FLIGHT)

    def test_idle_clients_have_a_low_confidence_with_a_reason(self) -> None:
        """They may have launched through a function without a probe."""
        incident = fault(A, B, in_flight_work=(idle(A, 12), busy(B)), access=DATA)
        assert confidences(incident)[A] == 0.05
        assert Reason(ReasonCode.NO_WORK_IN_FLIGHT, seconds=12.0) in incident.suspects[-1].indications

    def test_busy_clients_share_the_confidence_of_idle_clients(self) -> None:
        """The shares are equal because no evidence distinguishes them."""
        ranking = confidences(fault(A, B, C, in_flight_work=(busy(A), idle(B), busy(C)), access=DATA))
        assert ranking[A] == ranking[C] == 0.47
        assert ranking.get(B, 0.0) < 0.05

    def test_unknown_client_ranks_like_a_busy_client(self) -> None:
        """It may have had work in flight, too."""
        ranking = confidences(fault(A, B, C, in_flight_work=(busy(A), idle(B)), access=DATA))
        assert ranking[A] == ranking[C]

    def test_a_client_of_which_nothing_is_known_is_less_likely_than_one_with_work_in_flight(self) -> None:
        """It is the only one that was not idle."""
        ranking = confidences(fault(A, B, in_flight_work=(idle(A),), access=DATA))
        assert ranking[B] == root_cause.ONLY_POSSIBLE

    def test_no_suspect_if_all_clients_were_busy(self) -> None:
        """The ranking does not change, but the work in flight is reported."""
        incident = fault(A, B, in_flight_work=(busy(A), busy(B)), access=DATA)
        assert (incident.suspect, confidences(incident)) == (None, {A: 0.49, B: 0.49})
        assert all(any(why.code is ReasonCode.WORK_IN_FLIGHT for why in each.indications) for each in incident.suspects)

    def test_ranking_does_not_change_if_all_clients_were_idle(self) -> None:
        """The cause was another client, or a launch through a function without a probe."""
        assert confidences(fault(A, B, in_flight_work=(idle(A), idle(B)), access=DATA)) == {A: 0.49, B: 0.49}

    def test_finds_one_busy_client_among_48(self) -> None:
        """The number of idle clients does not matter."""
        all_pids = range(1000, 1048)
        incident = fault(*all_pids, in_flight_work=(*(idle(pid) for pid in all_pids[1:]), busy(1000)), access=DATA)
        assert confidences(incident) == {1000: round(root_cause.ONLY_IN_FLIGHT.confidence, 2)}

    def test_work_in_flight_does_not_change_the_rank_of_a_killed_client(self) -> None:
        without_work = fault(A, B, early_disconnects=(early(status=SIGKILL),), access=INSTRUCTIONS)
        with_work = fault(
            A, B, early_disconnects=(early(status=SIGKILL),), access=INSTRUCTIONS, in_flight_work=(busy(A), idle(B))
        )
        assert confidences(with_work)[LEFT] == confidences(without_work)[LEFT]
        assert with_work.kind is IncidentKind.CLIENT_KILLED

    @given(st.data())
    @settings(max_examples=100)
    def test_work_in_flight_raises_neither_idle_clients_nor_the_total(self, data: st.DataObject) -> None:
        """If several clients remain possible, the total confidence does not change."""
        hit = data.draw(st.lists(st.integers(600, 611), min_size=1, max_size=12, unique=True))
        known = data.draw(st.lists(st.sampled_from(hit), unique=True))
        in_flight_work = tuple(data.draw(st.sampled_from((idle, busy)))(pid) for pid in known)
        early_disconnects = (early(status=SIGKILL),) if data.draw(st.booleans()) else ()
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
        without, weighed = ranked(hit, **evidence), ranked(hit, in_flight_work=in_flight_work, **evidence)
        idle_pids = {each.pid for each in in_flight_work if not each.in_flight}
        assert weighed.keys() == without.keys()
        assert all(weighed[pid] <= without[pid] + 1e-9 for pid in idle_pids & without.keys())
        assert sum(weighed.values()) <= sum(without.values()) + 1e-9
        # Of a failed fetch without an exit, none is named, which limits each.
        is_limited = access is INSTRUCTIONS and not early_disconnects
        if len(set(hit) - idle_pids - set(in_reset)) > 1 and not is_limited:
            assert sum(weighed.values()) == pytest.approx(sum(without.values()))


class TestNewKernel:
    """A client with the only new kernel in flight may be innocent: any client can avoid to launch new ones."""

    @pytest.mark.parametrize("place", Place)
    @pytest.mark.parametrize("number", [2, 3, 4, 8])
    def test_of_clients_with_the_same_ranges_it_names_none(self, number: int, place: Place) -> None:
        pids = range(600, 600 + number)
        match = AddressMatch(
            pid=A, share=0.97 / number, place=place, distance=0, range_bytes=1 << 30, alike=tuple(pids)
        )
        alike = tuple(replace(match, pid=pid, alike=tuple({*pids} - {pid})) for pid in pids)
        of = fault(*pids)
        clues = replace(of.clues, address=AddressClue(address=1 << 44, matches=alike, candidates=tuple(pids)))
        found = rankings(replace(of, clues=replace(clues, kernels=with_new(B, *pids))))
        assert max(each.confidence for each in found.values()) < 0.5
        assert max(found, key=lambda pid: found[pid].confidence) == B

    @pytest.mark.parametrize(
        "others",
        [
            {"early_disconnects": (early(),), "access": INSTRUCTIONS},
            {"early_disconnects": (early(), early(ALSO_LEFT))},
            {"in_reset": (A,), "named": None, "xids": (43,)},
        ],
    )
    def test_it_takes_nothing_from_a_stronger_sign(self, others: dict[str, Any]) -> None:
        of = fault(A, B, C, **others)
        found = rankings(replace(of, clues=replace(of.clues, kernels=with_new(C, A, B, C))))
        assert max(found, key=lambda pid: found[pid].confidence) != C
        assert sum(each.confidence for each in found.values()) <= 1

    @pytest.mark.parametrize(("known", "preferred"), [((A, B, C), True), ((A, B), False)])
    def test_it_is_no_sign_if_the_kernels_of_another_are_unknown(self, known: tuple[int, ...], preferred: bool) -> None:
        of = fault(A, B, C)
        found = rankings(replace(of, clues=replace(of.clues, kernels=with_new(B, *known))))
        assert (found[B].confidence > found[A].confidence) is preferred


def with_new(new: int, *pids: int) -> tuple[FaultKernels, ...]:
    """Return the kernels of clients of which only one has none that completed before."""
    return tuple(fault_kernels(pid, launched("k", completed=0 if pid == new else 9)) for pid in pids)


class TestHardware:
    """If the hardware failed, no client is a suspect."""

    def test_hardware_xid_removes_all_suspects(self, subtests: pytest.Subtests) -> None:
        """Other evidence does not matter."""
        for number in [48, 63, 64, 74, 79, 94, 95, 119, 120, 140, 167, 173, 175, 177, 179, 185]:
            with subtests.test(number=number):
                incident = fault(
                    A, B, xids=(31, number), early_disconnects=(early(status=SIGKILL),), access=INSTRUCTIONS
                )
                assert (incident.kind, incident.suspects) == (IncidentKind.HARDWARE, ())

    def test_an_unknown_xid_neither_exonerates_nor_blames(self) -> None:
        """Nor does it show what kind of fault it is."""
        for xids in ((), (31,)):
            known, unknown = (
                rank_suspects(replace(fault(A, B, xids=numbers, named=None), affected_confirmed=False))
                for numbers in (xids, (*xids, 178, 186))
            )
            assert (unknown.kind, unknown.suspects) == (known.kind, known.suspects)


class TestCalibration:
    """The confidence is the lower end of the confidence interval."""

    def test_evidence_that_was_always_right_is_not_certain(self) -> None:
        """The true rate behind ten of ten may be nine of ten."""
        assert root_cause.Calibration(10, 10).confidence == pytest.approx(0.722, abs=0.001)

    def test_evidence_that_was_right_half_the_time_is_below_a_half(self) -> None:
        """Few trials give a wide interval."""
        assert root_cause.Calibration(5, 10).confidence == pytest.approx(0.237, abs=0.001)

    def test_total_confidence_is_at_most_one(self) -> None:
        """Only one client caused the fault, and it may be an unknown one."""
        for incident in (
            fault(A, B, C, early_disconnects=(early(), early(ALSO_LEFT, status=SIGKILL)), access=INSTRUCTIONS),
            fault(A, B, C, early_disconnects=(early(),)),
            fault(A, B, C, xids=(43,), named=None, in_reset=(A, B)),
        ):
            assert sum(confidences(incident).values()) <= 1.01
