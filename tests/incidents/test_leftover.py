"""A kernel that a client left behind on a GPU without other clients: the next client there gets its fault.

The recording is of a job with a rank on each of two GPUs (H200, driver 580.159.04). A client of the first GPU fails,
and its rank with it. The other rank waits in its all-reduce until it is asked to leave. Two seconds later, a client
starts on the second GPU.
"""

import io
import re
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.incidents.leftover import remember
from exporter.model.daemon import Connections
from exporter.model.event import EventName
from exporter.model.incident import ClientDetails, EarlyDisconnect, Incident, IncidentKind, Leftover
from exporter.model.node import Node
from exporter.model.observation import KernelRecord, LogLine, Observation
from exporter.recording import Recording
from exporter.reducer import reduce_all
from tests.builders import Recorded

RECORDINGS = Path(__file__).parents[1] / "recordings"
RECORDED = Recorded(RECORDINGS / "leftover" / "rank_leaves_kernel.jsonl.gz")
START = Recording(io.StringIO(RECORDED.text)).header.node()
LEFT, NEXT = 2262, 2606
CLOSE, SECOND_FAULT = 0.5, 1796050115.1
"""A confidence that names a client, and a time before the first line of the second fault."""


def second_fault(*observations: Observation) -> Incident:
    """Return the incident of the next client."""
    last: Incident | None = None
    for _, events in reduce_all(START, observations):
        for event in events:
            if event.event is EventName.FAULT_RECOVERED and event.incident and NEXT in event.incident.affected:
                last = event.incident
    assert last is not None
    return last


def delayed(seconds: float) -> tuple[Observation, ...]:
    """Return the recording with the next client so many seconds later."""
    first = (each for each in RECORDED.observations if each.at < SECOND_FAULT)
    later = (replace(each, at=each.at + seconds) for each in RECORDED.observations if each.at >= SECOND_FAULT)
    return *first, *later


class TestTheNextClient:
    """It is affected, and no suspect."""

    @pytest.mark.parametrize("seconds", [-1.4, 0.0, 3600.0])
    def test_the_client_that_left_the_kernel_is_the_suspect(self, seconds: float) -> None:
        incident = second_fault(*delayed(seconds))
        assert incident.kind is IncidentKind.CLIENT_KILLED
        assert incident.affected == (NEXT,)
        assert [each.client.pid for each in incident.suspects] == [LEFT]
        assert incident.suspects[0].confidence > 0.9

    def test_nobody_is_suspected_if_the_end_of_that_client_is_unknown(self) -> None:
        known = (each for each in RECORDED.observations if not (isinstance(each, LogLine) and str(LEFT) in each.line))
        assert not second_fault(*known).suspects

    def test_an_xid_of_a_process_without_mps_names_nobody(self) -> None:
        """It can cause one when another process ends, and a client can use its address later."""

        def bypassing(each: Observation) -> Observation:
            forged = isinstance(each, KernelRecord) and replace(each, record=each.record.replace("pid=2135", "pid=999"))
            return forged or each

        assert not names(second_fault(*map(bypassing, RECORDED.observations)))

    def test_an_xid_of_a_process_without_mps_hides_no_earlier_kernel(self) -> None:
        observations = delayed(60.0)
        xid = next(each for each in observations if isinstance(each, KernelRecord) and "GCC" in each.record)
        record = xid.record.replace("pid=2135", "pid=999").replace("0x7f27", "0x7f28")
        other = replace(xid, at=xid.at + 10, record=record)
        assert names(second_fault(*sorted((*observations, other), key=lambda each: each.at))).keys() == {LEFT}

    def test_a_daemon_of_another_user_does_not_hide_the_client_that_left_the_kernel(self) -> None:
        *_, (node, _) = reduce_all(START, (each for each in RECORDED.observations if each.at < SECOND_FAULT - 1))
        (daemon,), ended = node.daemons.values(), node.deaths[LEFT].process
        assert daemon.runtime.process is not None
        assert ended is not None
        process = replace(daemon.runtime.process, uid=1001, pid=77)
        runtime = replace(daemon.runtime, process=process)
        other = replace(daemon, name="/other", servers={}, clients={}, connections=Connections(), runtime=runtime)
        daemons = {daemon.name: daemon, other.name: other}
        later = replace(node, at=node.at + 2, daemons=daemons, processes={**node.processes, LEFT: ended})
        (left,) = remember(node, later).xids.leftovers.values()
        assert [each.pid for each in left.exits] == [LEFT]

    def test_nobody_is_named_if_the_first_failure_is_unknown(self) -> None:
        incident = second_fault(*(each for each in RECORDED.observations if each.at >= SECOND_FAULT - 1))
        assert all(each.confidence < CLOSE for each in incident.suspects)


def incidents(start: Node, observations: Iterable[Observation]) -> tuple[Incident, ...]:
    """Return the incidents at the end, the oldest first."""
    *_, (node, _) = reduce_all(start, observations)
    return tuple(node.incidents.values())


def names(incident: Incident) -> dict[int, float]:
    return {each.client.pid: each.confidence for each in incident.suspects if each.confidence >= CLOSE}


class TestALaterFault:
    """An address comes again: clients that were forked after CUDA has chosen its addresses have the same."""

    SECONDS = 3.0
    LATER = 2706

    def later(self, observation: Observation) -> Observation | None:
        """Return the same for another client some seconds later."""

        def text(value: str) -> str:
            value = value.replace(str(NEXT), str(self.LATER)).replace("4,378,184529460", "4,379,187529460")
            return re.sub(r"14:48:3([4-6])", lambda found: f"14:48:3{int(found[1]) + 3}", value)

        match observation:
            case LogLine(line=line) if "Server" in line and "Control" not in line:
                return replace(observation, at=observation.at + self.SECONDS, line=text(line))
            case KernelRecord(record=record):
                return replace(observation, at=observation.at + self.SECONDS, record=text(record))
            case _:
                return None

    def test_a_kernel_that_was_left_behind_fails_only_once_more(self) -> None:
        fault = (each for each in RECORDED.observations if SECOND_FAULT - 0.4 <= each.at < SECOND_FAULT + 0.2)
        observations = (*RECORDED.observations, *filter(None, map(self.later, fault)))
        *_, second, third = incidents(START, sorted(observations, key=lambda each: each.at))
        assert set(names(second)) == {LEFT}
        assert third.affected == (self.LATER,)
        assert third.xids
        assert not names(third)

    def test_a_client_that_ends_in_mid_kernel_stays_the_likely_cause(self) -> None:
        killed = Recorded(RECORDINGS / "h200_killed_in_mid_kernel.jsonl.gz")
        start = Recording(io.StringIO(killed.text)).header.node()
        (fault,) = incidents(start, killed.observations)
        xid = next(each for each in fault.xids if each.access is not None)
        assert xid.gpu is not None
        assert xid.access is not None
        exits = (EarlyDisconnect(pid=LEFT, seconds_before=0.1, wait_status=0),)
        details = {LEFT: ClientDetails(pid=LEFT, client="a")}
        left = Leftover(at=xid.at - 3600, address=xid.access.address, exits=exits, details=details)
        start = replace(start, xids=replace(start.xids, leftovers={xid.gpu: left}))
        (again,) = incidents(start, killed.observations)
        assert names(again).keys() == names(fault).keys()

    def test_an_affected_client_with_the_pid_of_the_one_that_ended_is_no_suspect(self) -> None:
        recording = Recording(io.StringIO(RECORDED.text.replace(str(NEXT), str(LEFT))))
        *_, second = incidents(recording.header.node(), recording.observations())
        assert second.kind is IncidentKind.CLIENT_KILLED
        assert second.affected == (LEFT,)
        assert not second.suspects

    def test_nobody_is_named_by_a_log_that_was_unreliable_then(self) -> None:
        """An hour later, the doubt about the line of the client that ended is as old as that line."""
        first = (each for each in RECORDED.observations if each.at < SECOND_FAULT)
        *_, (node, _) = reduce_all(START, first)
        (name,) = node.daemons
        log = replace(node.daemons[name].log, doubted_at=node.at)
        node = replace(node, daemons={name: replace(node.daemons[name], log=log)})
        later = (each for each in delayed(3600.0) if each.at >= SECOND_FAULT + 3600)
        *_, second = incidents(node, later)
        assert second.clues.leftover is not None
        assert not names(second)
