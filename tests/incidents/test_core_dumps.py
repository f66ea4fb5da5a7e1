"""Faults with GPU core dumps: the cause may get success, and the kernel log names an uninvolved client."""

import io
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

import pytest

from exporter.incidents.root_cause import rank_suspects
from exporter.model.event import EventName
from exporter.model.incident import (
    ClientDetails,
    Clues,
    EarlyDisconnect,
    Incident,
    IncidentKind,
    IncidentXid,
    InFlightWork,
)
from exporter.model.node import Node
from exporter.model.reason import ReasonCode
from exporter.model.values import replace
from exporter.parse.kernel_log import is_of_core_dump, parse_xid
from exporter.parse.mps_variables import core_dumps
from exporter.recording import Mask, Recording
from exporter.reducer import reduce_all
from exporter.report.incident_status import incident_status
from exporter.report.incident_text import brief, details
from exporter.report.text import text_of
from tests.builders import AT, GPU, Recorded
from tests.builders import incident as open_incident
from tests.incidents.values import confidences

Line = dict[str, Any]
Change = Callable[[list[Line]], list[Line]]

FOLDER = Path(__file__).parents[1] / "recordings" / "cores"
DUMPED = Recorded(FOLDER / "neighbour_stays.jsonl.gz")
CULPRIT: int = DUMPED.truth["culprit"]
NEIGHBOURS: tuple[int, ...] = tuple(DUMPED.truth["victims"])
IN_XID = 1779
"""The neighbour that the late Xid 31 names."""
FIRST_SIGN = 1795886992.6749
MMU, ESR, SERVER_XID, LATE = range(4)
"""The records of the kernel log, in order."""

NOT_SEEN = "channel 0x0000000e, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 UNRECOGNIZED_CLIENT faulted @"
DUMP_ON = "CUDA_ENABLE_COREDUMP_ON_EXCEPTION"


def replayed(lines: Iterable[Line], recorded: Recorded = DUMPED) -> Node:
    header = recorded.text.splitlines()[0]
    recording = Recording(io.StringIO("\n".join((header, *map(json.dumps, lines)))))
    present = recording.header.node()
    for after, _ in reduce_all(present, recording.observations()):
        present = after
    return present


def incident_of(*changes: Change) -> Incident:
    """Return the incident of the recording with core dumps, after these changes of its lines."""
    lines = [dict(line) for line in DUMPED.raw]
    for change in changes:
        lines = change(lines)
    (found,) = replayed(lines).incidents.values()
    return found


def without_clients(*pids: int) -> Change:
    """Remove all that shows these clients, as if they had not been there."""
    words = re.compile(rf"\b({'|'.join(map(str, pids))})\b")

    def change(lines: list[Line]) -> list[Line]:
        remaining = []
        for line in lines:
            if line.get("pid") in pids or words.search(line.get("line", "")):
                continue
            if "record" in line:
                line["record"] = words.sub(str(IN_XID), line["record"])
            if "stdout" in line:
                line["stdout"] = words.sub("", line["stdout"]).replace("\n\n", "\n")
            for name in ("processes", "compute_processes", "mps_processes"):
                if name in line:
                    line[name] = [each for each in line[name] if each["pid"] not in pids]
            if "watched" in line:
                line["watched"] = [pid for pid in line["watched"] if pid not in pids]
            remaining.append(line)
        return remaining

    return change if pids else list


def without(wanted: Callable[[Line], bool]) -> Change:
    return lambda lines: [line for line in lines if not wanted(line)]


NOT_LISTED = without(
    lambda line: re.search(rf"\] {CULPRIT}$|{CULPRIT}\b.* torn down", line.get("line", "")) is not None
)
"""The log does not list the cause as affected."""
WITHOUT_PROBES = without(lambda line: line["source"] == "work")
WITHOUT_NVML_EVENTS = without(lambda line: line["source"] == "nvml_event")


def kernel_records(*remaining: int, at: Mapping[int, float] | None = None) -> Change:
    """Keep these records of the kernel log, which are read at these times after the first sign."""

    def change(lines: list[Line]) -> list[Line]:
        xids = [line for line in lines if "Xid" in line.get("record", "")]
        moved = [{**xids[each], "at": FIRST_SIGN + at[each] if at else xids[each]["at"]} for each in remaining]
        others = [line for line in lines if "Xid" not in line.get("record", "")]
        return sorted((*others, *moved), key=lambda line: line["at"])

    return change


def culprit_exits(code: int, after: float = 0.02) -> Change:
    """Let the cause exit right after its call has succeeded, before the server handles the fault."""

    def change(lines: list[Line]) -> list[Line]:
        at, stamp = FIRST_SIGN + after, f"[2026-11-28 17:29:52.{675 + round(after * 1000):03}"
        moved = []
        for line in lines:
            text = line.get("line", "")
            ends = f"{CULPRIT}" in text and re.search("exiting|disconnected|assuming client", text)
            if ends or (line["source"] == "process_exit" and line["pid"] == CULPRIT):
                line["at"] = at
                if ends:
                    line["line"] = stamp + text[24:]
                else:
                    line["wait_status"] = code << 8
            if line["source"] == "work" and line["at"] > at:
                line["watched"] = [pid for pid in line["watched"] if pid != CULPRIT]
            moved.append(line)
        return sorted(NOT_LISTED(moved), key=lambda line: line["at"])

    return change


def dumps_on(*pids: int, value: str = "1") -> Change:
    def change(lines: list[Line]) -> list[Line]:
        for line in lines:
            if line["source"] == "process" and line["pid"] in pids:
                line["environment"] = {**line["environment"], DUMP_ON: value}
        return lines

    return change


def neighbours_idle(*pids: int) -> Change:
    """Let the probes show that these clients never launched anything."""

    def change(lines: list[Line]) -> list[Line]:
        for line in lines:
            if line["source"] == "work":
                line["processes"] = [
                    {**each, **dict.fromkeys(("kernels", "syncs", "open_ns", "open_since_ns", "launched_ns"), 0)}
                    if each["pid"] in pids
                    else each
                    for each in line["processes"]
                ]
        return lines

    return change


def assert_no_innocent_is_named(incident: Incident) -> None:
    assert incident.core_dumps
    assert incident.kind is IncidentKind.MEMORY
    assert all(each < 0.5 for pid, each in confidences(incident).items() if pid != CULPRIT)
    leaders = incident_status(incident, AT).leading
    assert not leaders or CULPRIT in leaders or sum(confidences(incident)[pid] for pid in leaders) < 0.5


REMOVED: tuple[Collection[int], ...] = ((), NEIGHBOURS[2:], NEIGHBOURS[1:])
"""Four, three and two clients remain."""


class TestBusyNeighbours:
    """At the first sign all had work in flight. Their waits and that of the cause then succeeded."""

    @pytest.mark.parametrize("removed", REMOVED)
    @pytest.mark.parametrize(
        "change",
        [list, WITHOUT_PROBES, NOT_LISTED, culprit_exits(0), culprit_exits(1), WITHOUT_NVML_EVENTS],
        ids=["as recorded", "without probes", "cause not listed", "exits 0", "exits 1", "no NVML"],
    )
    def test_no_innocent_is_named(self, removed: Collection[int], change: Change) -> None:
        assert_no_innocent_is_named(incident_of(without_clients(*removed), change))

    def test_only_an_innocent_remains_known(self) -> None:
        incident = incident_of(without_clients(CULPRIT, *NEIGHBOURS[1:]))
        assert list(confidences(incident)) == [IN_XID]
        assert_no_innocent_is_named(incident)

    def test_the_cause_that_the_log_does_not_list_is_a_suspect(self) -> None:
        for change in (NOT_LISTED, culprit_exits(0)):
            incident = incident_of(without_clients(*NEIGHBOURS[1:]), change)
            assert incident.affected == (IN_XID,)
            assert confidences(incident) == {CULPRIT: 0.45, IN_XID: 0.45}
            assert {each.code for each in incident.suspects[1].indications} | {
                each.code for each in incident.suspects[0].indications
            } >= {ReasonCode.NOT_LISTED_AS_AFFECTED}
            assert not incident.clues.log_unreliable

    def test_process_in_the_xid_is_nobodys_indication(self) -> None:
        incident = incident_of()
        codes = {each.code for suspect in incident.suspects for each in suspect.indications}
        assert ReasonCode.NAMED_BY_XID not in codes
        assert IN_XID not in {xid.pid for xid in incident.xids}
        assert incident.clues.address is None


class TestPartsOfTheSignature:
    """The records come in any order, late, and some are lost."""

    @pytest.mark.parametrize("removed", REMOVED[1:])
    def test_any_one_of_the_records_of_the_access_is_enough(
        self, removed: Collection[int], subtests: pytest.Subtests
    ) -> None:
        for count in (1, 2, 3):
            for remaining in combinations((MMU, ESR, SERVER_XID, LATE), count):
                if remaining == (SERVER_XID,):
                    continue
                with subtests.test(remaining=remaining):
                    changes = (without_clients(*removed), kernel_records(*remaining), WITHOUT_NVML_EVENTS)
                    assert_no_innocent_is_named(incident_of(*changes))

    def test_numbers_of_nvml_are_enough(self) -> None:
        assert_no_innocent_is_named(incident_of(without_clients(*NEIGHBOURS[1:]), kernel_records()))

    def test_records_are_read_late_and_in_any_order(self, subtests: pytest.Subtests) -> None:
        random = Random(5)
        for number in range(6):
            times = {record: round(random.uniform(0, 1.9), 3) for record in (MMU, ESR, SERVER_XID, LATE)}
            nvml = WITHOUT_NVML_EVENTS if number % 2 else list
            with subtests.test(times=times):
                changes = (without_clients(*REMOVED[1 + number % 2]), kernel_records(*times, at=times), nvml)
                assert_no_innocent_is_named(incident_of(*changes))

    def test_first_sign_has_the_time_of_the_kernel(self) -> None:
        """All but one record are read late."""
        times = {MMU: 1.5, ESR: 1.5, SERVER_XID: 0.1305, LATE: 1.5}
        assert incident_of(kernel_records(*times, at=times)).started_at == pytest.approx(FIRST_SIGN, abs=0.003)

    @pytest.mark.parametrize(
        ("text", "found"),
        [
            ("Graphics SM Warp Exception on (GPC 3, TPC 7, SM 0): MMU Fault", True),
            # Other drivers may name a process here too, and a name may have a comma.
            ("b, Graphics SM Warp Exception on (GPC 3, TPC 7, SM 0): MMU Fault", True),
            ("Graphics SM Warp Exception on (GPC 3, TPC 7, SM 0): Misaligned Address", False),
            ("Graphics Exception: ESR 0x53c730=0x8000017 0x53c734=0x0 0x53c728=0x1f81fb60 0x53c72c=0x1174", True),
            ("Graphics Exception: ESR 0x53c730=0x17 0x53c734=0x0 0x53c728=0x1f81fb60 0x53c72c=0x1174", True),
            ("Graphics Exception: ESR 0x53c730=0x117 0x53c734=0x0 0x53c728=0x1f81fb60 0x53c72c=0x1174", False),
            ("Graphics Exception: ESR 0x519730=0x503000f 0x519734=0x0 0x519728=0x1f81fb60 0x51972c=0x1174", False),
            (f"{NOT_SEEN} 0x1827fc_0003f801. Fault is of type UNRECOGNIZED_FAULT UNRECOGNIZED_ACCESS_TYPE", True),
            (f"{NOT_SEEN} 0x1827fc_0003f801.", True),
            (f"{NOT_SEEN.replace('GPC3', 'HUB')} 0x1827fc0003f801. Fault is of type UNRECOGNIZED_FAULT", True),
            (f"{NOT_SEEN} 0x7f00_00001000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_WRITE", False),
            ("MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_14 faulted @ 0x7f00_00001000. Fault is of type X", False),
            ("channel 0x0000000a", False),
        ],
    )
    def test_texts(self, text: str, found: bool) -> None:
        assert is_of_core_dump(text) is found

    def test_records_are_recognized_after_masking(self) -> None:
        masked = (
            parse_xid(Mask(b"key").text(line["record"].partition(";")[2])) for line in DUMPED.raw if "record" in line
        )
        assert [is_of_core_dump(xid.text) for xid in masked if xid] == [True, True, False, True]

    def test_late_record_is_no_address_in_an_unknown_form(self) -> None:
        assert replayed(DUMPED.raw).xids.addresses_unrecognized == 0


class TestIdleNeighbours:
    """The probes show that a client launched nothing for some seconds until after the first sign."""

    def test_cause_is_named_if_all_others_launched_nothing(self) -> None:
        for idle in (NEIGHBOURS, NEIGHBOURS[:1]):
            gone = [pid for pid in NEIGHBOURS if pid not in idle]
            incident = incident_of(without_clients(*gone), neighbours_idle(*idle))
            assert incident.suspect is not None
            assert (incident.suspect.client.pid, incident.suspect.confidence) == (CULPRIT, 0.75)

    @pytest.mark.parametrize("change", [NOT_LISTED, culprit_exits(0), culprit_exits(1)])
    def test_busy_innocent_beside_idle_ones_is_not_named(self, change: Change) -> None:
        """The cause has exited, or is not listed."""
        assert_no_innocent_is_named(incident_of(neighbours_idle(*NEIGHBOURS[1:]), change))

    def test_without_the_first_sign_work_in_flight_is_no_evidence(self) -> None:
        """The server handles the fault seconds after the access. The cause has exited long before."""
        late = kernel_records(SERVER_XID, LATE)
        assert_no_innocent_is_named(incident_of(without_clients(CULPRIT), neighbours_idle(*NEIGHBOURS[1:]), late))

    def test_unconfirmed_clients_exonerate_nobody(self) -> None:
        """Without the log, the cause may be unknown."""
        idle, busy = (InFlightWork(pid=pid, in_flight=pid == 601) for pid in (600, 601))
        assert rank((600, 601), Clues(in_flight_work=(idle, busy)), affected_confirmed=False)[601] < 0.5


def rank(affected: tuple[int, ...], clues: Clues, **known: Any) -> dict[int, float]:
    pids = (*affected, *clues.unlisted, *(each.pid for each in clues.early_disconnects))
    fault = open_incident(
        at=AT,
        gpus=(GPU,),
        xids=(IncidentXid(at=AT, number=13, gpu=GPU, core_dump=True),),
        affected=affected,
        client_details={pid: ClientDetails(pid=pid, client=str(pid)) for pid in pids},
        clues=clues,
        **{"affected_confirmed": True, **known},
    )
    ranked = rank_suspects(fault)
    assert ranked.kind is IncidentKind.MEMORY
    return confidences(ranked)


class TestOtherEvidence:
    """What names a client in other faults is no evidence here."""

    @pytest.mark.parametrize("status", [None, 0, 1 << 8, 9])
    def test_exit_at_the_right_time_is_no_kill(self, status: int | None) -> None:
        early = EarlyDisconnect(pid=700, seconds_before=0.13, wait_status=status)
        assert max(rank((600,), Clues(early_disconnects=(early,), unlisted=(700,))).values()) < 0.5

    def test_worker_in_reset_is_no_trap(self) -> None:
        assert max(rank((600, 601), Clues(in_reset=(600,))).values()) < 0.5

    def test_work_in_flight_alone_names_nobody(self) -> None:
        """The wait of the cause may have ended."""
        busy = InFlightWork(pid=600, in_flight=True)
        assert max(rank((600,), Clues(in_flight_work=(busy,))).values()) < 0.5
        assert max(rank((600, 601), Clues(in_flight_work=(busy,))).values()) < 0.5
        assert max(rank((600,), Clues(in_flight_work=(busy,), unlisted=(601,))).values()) < 0.5


class TestWithoutTheKernelLog:
    """NVML has the numbers of Xids only. Without them, the environment of a client is all that shows the core dumps."""

    @pytest.mark.parametrize("nvml", [(), (31,), (43,)])
    @pytest.mark.parametrize("enabled", [CULPRIT, IN_XID])
    def test_an_environment_is_enough(self, enabled: int, nvml: Collection[int]) -> None:
        lost = without(lambda line: line["source"] == "nvml_event" and line["xid"] not in nvml)
        for removed in REMOVED:
            found = incident_of(without_clients(*removed), kernel_records(), lost, dumps_on(enabled))
            assert found.core_dumps
            assert found.kind is (IncidentKind.MEMORY if 31 in nvml else IncidentKind.UNKNOWN)
            assert max(confidences(found).values()) < 0.5
            assert not incident_status(found, AT).leading

    def test_a_client_that_exited_at_the_right_time_leaves_less_than_half_to_others(self) -> None:
        """Nothing shows the core dumps, and no Xid is known."""
        clues = Clues(early_disconnects=(EarlyDisconnect(pid=700, seconds_before=0.13, wait_status=0),))
        known = {pid: ClientDetails(pid=pid, client=str(pid)) for pid in (600, 700)}
        fault = open_incident(at=AT, affected=(600,), affected_confirmed=True, client_details=known, clues=clues)
        assert not fault.core_dumps
        assert confidences(rank_suspects(fault)) == {700: 0.5, 600: 0.47}

    def test_ordinary_xids_of_the_kernel_log_show_no_core_dumps(self) -> None:
        """The driver words its Xid 31 in another way, and another client's channel is reset."""
        on = {600: ClientDetails(pid=600, client="600", core_dumps=True)}
        xids = tuple(IncidentXid(at=AT, number=number, gpu=GPU) for number in (31, 43))
        assert open_incident(at=AT, xids=xids).core_dumps
        read = tuple(replace(each, kernel_seconds=1.0) for each in xids)
        assert not open_incident(at=AT, xids=read, client_details=on).core_dumps


class TestTrials:
    """Trials of a node in which the call of the cause succeeded, and the fault came late or never."""

    def test_access_without_a_fault_of_the_server_is_no_incident(self) -> None:
        """The clients went on without an error until they were asked to leave."""
        recorded = Recorded(FOLDER / "no_fault.jsonl.gz")
        assert not recorded.replayed.node.incidents
        xids = [each for each in recorded.replayed.events if each.event is EventName.GPU_XID]
        assert [(each.xid, each.pid) for each in xids] == [(13, None), (13, None), (31, None)]

    @pytest.mark.parametrize(
        ("name", "xids"), [("all_leave_before_fault", {13, 31, 43}), ("culprit_leaves_before_fault", {13, 31})]
    )
    def test_clients_that_left_before_the_fault_are_suspects_too(self, name: str, xids: Collection[int]) -> None:
        recorded = Recorded(FOLDER / f"{name}.jsonl.gz")
        (incident,) = recorded.replayed.node.incidents.values()
        assert incident.core_dumps
        assert {xid.number for xid in incident.xids} == xids
        assert set(incident.affected) == set(recorded.truth["victims"])
        assert confidences(incident) == dict.fromkeys(map(int, recorded.truth["exit_codes"]), 0.24)
        assert not incident_status(incident, AT).leading


class TestOrdinaryFaults:
    """Core dumps in the cause alone, or in none: the kernel log has the address."""

    @pytest.mark.parametrize("name", ["culprit_exits", "none_stays"])
    def test_they_have_no_core_dumps(self, name: str) -> None:
        recorded = Recorded(FOLDER / f"{name}.jsonl.gz")
        (incident,) = recorded.replayed.node.incidents.values()
        assert not incident.core_dumps
        assert not incident_status(incident, AT).core_dumps
        assert all(each < 0.5 for each in confidences(incident).values())


class TestText:
    """What a person and a program read."""

    def test_incident_names_the_core_dumps(self) -> None:
        status = incident_status(incident_of(dumps_on(IN_XID)), AT)
        assert [each.code for each in status.core_dumps] == ["with_core_dumps", "core_dumps_on"]
        assert "memory fault with GPU core dumps" in brief(status)
        text = text_of(details(status))
        assert "calls of the cause may have succeeded" in text
        assert f"they are on in the environment of PID {IN_XID}\n" in text

    def test_the_number_of_all_clients_with_core_dumps_is_stated(self) -> None:
        assert "they are on in the environment of PIDs 1779, 1781, 1780 and of 1 client more" in text_of(
            details(incident_status(incident_of(dumps_on(CULPRIT, *NEIGHBOURS)), AT))
        )

    def test_unknown_environment_is_stated(self) -> None:
        lost = incident_of()
        lost = replace(
            lost, client_details={pid: replace(each, core_dumps=None) for pid, each in lost.client_details.items()}
        )
        assert "the environment of 4 clients is not known" in [
            each.text for each in incident_status(lost, AT).core_dumps
        ]

    @pytest.mark.parametrize(
        ("variables", "expected"),
        [
            (None, None),
            ({}, False),
            ({DUMP_ON: "1"}, True),
            ({DUMP_ON: "0"}, False),
            ({DUMP_ON: ""}, False),
            ({DUMP_ON: "yes"}, None),
            ({"CUDA_ENABLE_USER_TRIGGERED_COREDUMP": "1", DUMP_ON: "0"}, True),
            ({"CUDA_ENABLE_LIGHTWEIGHT_COREDUMP": "1"}, False),
        ],
    )
    def test_environment(self, variables: Mapping[str, str] | None, expected: bool | None) -> None:
        assert core_dumps(variables) is expected
