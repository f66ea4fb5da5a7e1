"""One fault is one incident, from any combination of sources. Other events are no incident."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.model.event import EventName
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import Node
from exporter.model.observation import GpuEvent, KernelRecord, LogLine, Observation
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    OTHER_GPU,
    SENSORS,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    daemon_process,
    exited,
    gpu_reading,
    look,
    no_daemon,
    node,
    process,
    reduced,
    reply,
    server_log,
    servers,
    status,
)

A, B, C = 600, 601, 602
LATE = 700

UP = reduced(
    *at_work(),
    daemon_process(),
    gpu_reading((A, B, C), **SENSORS),
    *(line for pid in (A, B, C) for line in server_log(active(pid))),
    *(process(pid) for pid in (A, B, C)),
).node
"""A server with three clients on the one GPU."""


def block(*victims: int, at: float = AT + 5, server: int = SERVER, **known: Any) -> tuple[Observation, ...]:
    """Return a fault block in the server's log and the daemon's confirmation."""
    return (*claimed(*victims, at=at, server=server, **known), status("FAULT", at=at, server=server))


def claimed(
    *victims: int, at: float = AT + 5, devices: tuple[int, ...] = (0,), server: int = SERVER
) -> tuple[Observation, ...]:
    """Return a fault block in the server's log."""
    return server_log(
        "Server is handling a fatal GPU error.",
        *(f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in victims),
        "The following devices will be reset:",
        *map(str, devices),
        "The following client process have a sticky error set:",
        *map(str, victims),
        at=at,
        server=server,
    )


def leaves(*pids: int, at: float) -> tuple[Observation, ...]:
    """Return the exits of clients: contexts, connections, processes."""
    return tuple(
        seen
        for pid in pids
        for seen in (
            *server_log(
                f"Client {{PID: {pid}, Context ID: 1}} exiting. Number of active client contexts is 2.",
                f"Client process {pid} disconnected",
                at=at,
            ),
            exited(pid, at=at),
        )
    )


def reset(at: float, *devices: int) -> tuple[LogLine, ...]:
    """Return the end of the contexts on each device."""
    return server_log(
        *(f"Destroy server context on device {device} (NVIDIA H200)" for device in devices or (0,)), at=at
    )


def refused(pid: int, at: float) -> tuple[Observation, ...]:
    """Return the refusal of a new client."""
    return server_log(
        f"Server teardown in progress. Refusing to accept new client {{PID: {pid}, Context ID: 0}}",
        f"Failed to accept client {{PID: {pid}, Context ID: 0}} with status 807",
        at=at,
    )


def xid(number: int, at: float, pid: int | None = None, place: str = "0000:00:06") -> KernelRecord:
    process = "" if pid is None else f"pid={pid}, name=train.py, "
    return KernelRecord(at=at, record=f"4,358,58747868,-;NVRM: Xid (PCI:{place}): {number}, {process}MMU Fault")


def time_passes(at: float) -> Observation:
    """Return a log collection without new lines."""
    return look("log", at=at)


def incidents(result: Reduced) -> list[Incident]:
    return [each for each in result.node.incidents.values() if each.is_fault]


def only(result: Reduced) -> Incident:
    (incident,) = incidents(result)
    return incident


def over(*seen: Observation, start: Node = UP) -> Reduced:
    """Return the result of a fault at 5 s: the affected clients exit at once, then more observations follow."""
    return reduced(
        *block(A, B, C), *leaves(A, B, C, at=AT + 5.03), *reset(AT + 5.1), *seen, time_passes(AT + 8), start=start
    )


@pytest.mark.parametrize(("at", "early"), [(4.4, False), (4.6, True), (5.0, True), (5.2, False)])
def test_a_client_that_is_not_affected_may_have_caused_it_if_it_left_just_before(at: float, early: bool) -> None:
    seen = (*leaves(C, at=AT + at), *block(A, B))
    result = reduced(*sorted(seen, key=lambda each: each.at), time_passes(AT + 8), start=UP)
    assert [each.pid for each in only(result).clues.early_disconnects] == ([C] if early else [])


@pytest.mark.parametrize(("named", "affected"), [(A, (A, B)), (None, ())])
def test_an_xid_on_another_gpu_affects_no_client_there(named: int | None, affected: tuple[int, ...]) -> None:
    """A process without MPS may have caused it. Without the log and the process of an Xid, the clients are unknown."""
    first = gpu_reading((A, B), pci_bus_id="00000000:00:06.0"), gpu_reading((C,), gpu=OTHER_GPU, index=1)
    start = reduced(*at_work(A, B, C), *map(process, (A, B, C)), *first).node
    xids = xid(31, AT + 4.9, named), GpuEvent(at=AT + 4.95, type=8, xid=31, gpu=OTHER_GPU)
    states = status("FAULT", at=AT + 5), status("FAULT", at=AT + 6)
    for order in (xids, xids[::-1]):
        fault = only(reduced(*order, *states, time_passes(AT + 8), start=start))
        assert (fault.affected, GPU in fault.gpus, OTHER_GPU in fault.gpus) == (affected, True, not affected)


@pytest.mark.parametrize(("killed_on", "suspected"), [((OTHER_GPU,), False), ((GPU, OTHER_GPU), True)])
def test_a_client_that_was_killed_on_another_gpu_is_no_suspect(killed_on: tuple[str, ...], suspected: bool) -> None:
    """The ranks of a job that is cancelled are killed together, and one of them can fault its GPU."""
    on = {uuid: (*own, *((C,) if uuid in killed_on else ())) for uuid, own in ((GPU, (A, B)), (OTHER_GPU, ()))}
    listed = (gpu_reading(pids, gpu=uuid, index=index) for index, (uuid, pids) in enumerate(on.items()))
    has = reply("device_query --csv", f"0,00:00.0,{GPU},NVIDIA H200\n1,00:01.0,{OTHER_GPU},NVIDIA H200\n")
    killed = replace(exited(C, at=AT + 4.88), wait_status=9)
    start = reduced(*at_work(A, B, C), has, *map(process, (A, B, C)), *listed).node
    result = reduced(*leaves(C, at=AT + 4.87), killed, *block(A, B), time_passes(AT + 8), start=start)
    assert [each.client.pid == C for each in only(result).suspects] == ([True] if suspected else []) + [False, False]


def test_a_client_that_only_sees_the_gpu_does_not_contradict_the_log() -> None:
    """NVML lists it there without memory (measured, R580), so that the fault does not affect it."""
    for memory, unreliable in [(0, False), (1000, True)]:
        here = gpu_reading({A: 1000, B: 1000, C: memory}, **SENSORS)
        up = reduced(here, gpu_reading((C,), gpu=OTHER_GPU, index=1), start=UP).node
        assert only(reduced(*block(A, B), start=up)).clues.log_unreliable is unreliable


def test_a_client_is_named_once_its_process_is_known() -> None:
    seen = *server_log(active(LATE)), *block(A, B, C, LATE), process(LATE, at=AT + 6), time_passes(AT + 8)
    assert only(reduced(*seen, start=UP)).details_of(LATE).user == "alice"


def test_an_xid_of_a_gpu_of_others_belongs_to_no_fault_whose_gpus_are_unknown() -> None:
    third = GPU[:-1] + "0"
    others = [gpu_reading((), gpu=gpu, index=index, server=None) for index, gpu in enumerate((OTHER_GPU, third), 1)]
    of_two = replace(daemon_process(), environment={"CUDA_VISIBLE_DEVICES": f"{GPU},{third}"})
    for gpu, xids in ((GPU, [31]), (OTHER_GPU, [])):
        found = GpuEvent(at=AT + 5, type=8, xid=31, gpu=gpu)
        in_fault = status("FAULT", at=AT + 5), status("FAULT", at=AT + 7)
        result = reduced(
            of_two, gpu_reading((), server=None), *others, *at_work(), found, *in_fault, time_passes(AT + 9)
        )
        assert [xid.number for xid in only(result).xids] == xids


@pytest.mark.parametrize(("server", "unreliable"), [(SERVER, True), (SERVER + 1, False)])
def test_only_lines_of_its_own_server_that_come_twice_contradict_a_fault(server: int, unreliable: bool) -> None:
    text = f"Client {{PID: {LATE}, Context ID: 1}} exiting. Number of active client contexts is 0."
    twice = (line for at in (AT + 2, AT + 3) for line in server_log(text, at=at, server=server))
    known = servers(SERVER, SERVER + 1), *server_log(active(LATE), at=AT + 1, server=server)
    result = reduced(*known, *twice, *block(A, B, C), time_passes(AT + 8), start=UP)
    assert only(result).clues.log_unreliable is unreliable


def test_an_xid_belongs_to_the_faults_of_both_servers_on_its_gpu() -> None:
    """Their blocks are read at the same time."""
    other = SERVER + 1
    seen = servers(SERVER, other), gpu_reading((A, B, C, LATE), **SENSORS), *server_log(active(LATE), server=other)
    both = (*block(A, B, C), *block(LATE, server=other))
    result = reduced(*seen, process(LATE), xid(31, AT + 4.9), *both, time_passes(AT + 8), start=UP)
    assert [(each.server, len(each.xids)) for each in incidents(result)] == [(SERVER, 1), (other, 1)]


class TestOne:
    """One fault is one incident for any number of lines. Two faults are two incidents."""

    def test_a_fault_that_ends_before_any_poll(self) -> None:
        """If all clients exit at once, a fault takes 0.1 s."""
        result = over()
        incident = only(result)
        assert (incident.ending, incident.affected, incident.gpus) == (IncidentEnd.RECOVERED, (A, B, C), (GPU,))
        assert incident.seconds == pytest.approx(0.1)
        assert [each.event for each in result.events if each.incident] == [EventName.FAULT, EventName.FAULT_RECOVERED]

    def test_the_event_follows_when_the_affected_clients_are_known(self) -> None:
        """By then the log has the devices, too."""
        result = reduced(*block(A, B, C), start=UP)
        (opening,) = result.of(EventName.FAULT)
        assert (opening.at, opening.daemon, opening.server) == (AT + 5, DAEMON, SERVER)
        assert opening.as_json()["gpus"] == [GPU]

    def test_a_block_that_is_read_twice(self) -> None:
        assert only(over(*block(A, B, C))).ending is IncidentEnd.RECOVERED
        assert only(reduced(*block(A, B, C), *block(A, B, C), start=UP)).affected == (A, B, C)

    def test_the_state_and_the_block_are_one_incident(self) -> None:
        result = reduced(
            status("FAULT", at=AT + 4.9),
            *block(A, B),
            status("FAULT", at=AT + 5.5),
            clients(A, B, at=AT + 5.6),
            start=UP,
        )
        assert only(result).affected == (A, B)

    def test_the_block_replaces_the_inferred_affected_clients(self) -> None:
        result = reduced(status("FAULT", at=AT + 4), status("FAULT", at=AT + 4.9), *block(A, B), start=UP)
        assert only(result).affected == (A, B)

    def test_two_in_a_row(self) -> None:
        """A new client causes a fault 0.3 s later."""
        again = (
            *server_log(active(LATE), at=AT + 5.3),
            *block(LATE, at=AT + 5.4),
            xid(31, AT + 5.4, LATE),
            *leaves(LATE, at=AT + 5.45),
            *reset(AT + 5.5),
        )
        result = over(*again)
        assert [each.affected for each in incidents(result)] == [(A, B, C), (LATE,)]
        assert result.daemon.totals.faults == len(result.of(EventName.FAULT_RECOVERED)) == 2

    @pytest.mark.parametrize("devices", [(0,), (1,)])
    def test_two_that_are_read_in_one_collection(self, devices: tuple[int, ...]) -> None:
        """In sequence, or on two GPUs at the same time: these are two incidents."""
        first = (*block(A), *(leaves(A, at=AT + 5.1) + reset(AT + 5.1) if devices == (0,) else ()))
        second = (*block(B, C, at=AT + 5.6, devices=devices), xid(31, AT + 5.6, B))
        result = reduced(*(replace(each, at=AT + 5.7) for each in (*first, *second)), time_passes(AT + 6.3), start=UP)
        assert [each.affected for each in incidents(result)] == [(A,), (B, C)]
        assert result.daemon.totals.faults == len(result.of(EventName.FAULT)) == 2

    def test_one_client_that_faults_both_its_gpus_makes_one(self) -> None:
        """It exited during a kernel on each GPU, and no other client uses both."""
        seen = (*block(A), *block(B, at=AT + 5.037, devices=(1,)), *leaves(A, B, at=AT + 5.08), *reset(AT + 5.1, 1))
        result = reduced(*seen, start=UP)
        assert (only(result).affected, only(result).open) == ((A, B), True)
        assert only(reduced(*reset(AT + 5.2, 0), start=result.node)).ending is IncidentEnd.RECOVERED

    def test_a_removed_incident_is_not_opened_again(self) -> None:
        """The server still has its fault block."""
        later = (*server_log(active(LATE), at=AT + 8000), servers(SERVER, at=AT + 9000), status("ACTIVE", at=AT + 9001))
        result = reduced(*later, start=over().node)
        assert (incidents(result), result.daemon.totals.faults) == ([], 1)
        again = reduced(status("FAULT", at=AT + 9500), status("FAULT", at=AT + 9510), start=result.node)
        assert (only(again).block_timestamp, only(again).detected_at) == (None, AT + 9510)

    def test_a_fault_of_other_clients_while_the_first_is_open(self) -> None:
        result = reduced(*block(A), *claimed(B, at=AT + 6, devices=(1,)), xid(31, AT + 6, B), start=UP)
        assert [each.affected for each in incidents(result)] == [(A,), (B,)]

    def test_a_second_block_that_nothing_else_confirms_is_no_other_fault(self) -> None:
        result = reduced(*block(A), *block(B, at=AT + 6, devices=(1,)), time_passes(AT + 17), start=UP)
        assert [each.affected for each in incidents(result)] == [(A,)]
        assert result.daemon.totals.log_contradictions["fault"] == 1

    def test_a_second_block_with_the_same_clients_is_the_same_fault(self) -> None:
        """A client with the error cannot be affected again."""
        assert only(reduced(*block(A, B), *block(B, at=AT + 6), start=UP)).affected == (A, B)


class TestAffected:
    """Affected clients: those with the sticky error in the log, else those that share the GPU."""

    def test_every_part_of_the_block_counts(self) -> None:
        """The log names each of them two or three times."""
        whole = claimed(A, B)
        for cut in range(2, len(whole) + 1):
            seen = (*whole[:cut], status("FAULT", at=AT + 5), *reset(AT + 6), time_passes(AT + 8))
            incident = only(reduced(*seen, start=UP))
            assert set(incident.affected) <= {A, B}
            assert A in incident.affected

    def test_without_a_list_they_are_all_clients_of_the_gpu(self) -> None:
        result = reduced(status("FAULT", at=AT + 4), status("FAULT", at=AT + 5), start=UP)
        assert (set(only(result).affected), only(result).affected_confirmed) == ({A, B, C}, False)

    def test_the_details_of_each_client_are_stored(self) -> None:
        result = over(*(exited(pid, at=AT + 6) for pid in (A, B, C)))
        faulted_client = only(result).client_details[A]
        assert (faulted_client.user, faulted_client.command, faulted_client.memory_bytes.keys()) == (
            "alice",
            "train.py",
            {GPU},
        )

    def test_it_counts(self) -> None:
        assert over().daemon.totals.fault_affected == 3

    def test_a_client_that_was_inferred_wrongly_is_removed(self) -> None:
        """It does not count as blocking either."""
        inferred = (status("FAULT", at=AT + 3.9), status("FAULT", at=AT + 4.9), time_passes(AT + 6))
        result = reduced(*inferred, *block(A, at=AT + 6.1), time_passes(AT + 9), start=UP)
        assert set(only(result).blockers) == set(only(result).affected) == {A}
        assert result.daemon.totals.fault_affected == 1

    def test_a_late_log_corrects_the_clients_and_counts_none_twice(self) -> None:
        """A counter never decreases, so it has the largest number."""
        inferred = (status("FAULT", at=AT + 3.9), status("FAULT", at=AT + 4.9), time_passes(AT + 8))
        late = block(A, B, at=AT + 9)
        first = reduced(*inferred, *late[:-2], late[-1], time_passes(AT + 10), start=UP)
        whole = reduced(*inferred, *late, time_passes(AT + 12), start=UP)
        assert set(only(first).affected) <= set(only(whole).affected) == {A, B}
        assert first.daemon.totals.fault_affected == whole.daemon.totals.fault_affected == 3


class TestXids:
    """An Xid joins the fault of its time and GPU, and proves none by itself."""

    @pytest.mark.parametrize("at", [AT + 3.1, AT + 4.98, AT + 5.05, AT + 6.9])
    def test_one_within_two_seconds_belongs_to_it(self, at: float) -> None:
        """Before or after the block."""
        seen = sorted((*block(A, B, C), *reset(AT + 5.1), xid(31, at, A)), key=lambda each: each.at)
        result = reduced(*seen, time_passes(AT + 8), start=UP)
        assert [(each.number, each.pid) for each in only(result).xids] == [(31, A)]
        assert only(result).started_at == min(at, AT + 5)

    @pytest.mark.parametrize("at", [AT + 2.9, AT + 7.1])
    def test_one_that_is_further_away_does_not(self, at: float) -> None:
        seen = sorted(
            (*block(A, B, C), *reset(AT + 5.1), xid(31, at, A), time_passes(AT + 8)), key=lambda each: each.at
        )
        assert only(reduced(*seen, start=UP)).xids == ()

    def test_one_alone_is_no_fault(self) -> None:
        """No client has an error."""
        assert incidents(reduced(xid(31, AT + 5, A), time_passes(AT + 8), start=UP)) == []

    def test_an_xid_of_a_bypassing_process_does_not_count(self) -> None:
        bypassed = reduced(gpu_reading((A, B, C), beside=(801,), at=AT + 1), start=UP).node
        assert only(over(xid(31, AT + 5.2, 801), start=bypassed)).xids == ()

    def test_one_of_another_gpu_does_not(self) -> None:
        """It has other clients."""
        other = reduced(gpu_reading((), gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"), start=UP).node
        assert only(over(xid(31, AT + 5.2, place="0000:00:07"), start=other)).xids == ()

    def test_of_two_faults_in_a_row_each_has_its_own(self) -> None:
        """Evidence of one fault must not count for the other."""
        again = (*server_log(active(LATE), at=AT + 5.9), *block(LATE, at=AT + 6.4), xid(13, AT + 6.5))
        again = (*again, *refused(LATE + 1, AT + 6.5), *reset(AT + 6.6))
        result = reduced(*block(A), xid(31, AT + 5.1), *leaves(A, at=AT + 5.2), *reset(AT + 5.3), *again, start=UP)
        assert [[each.number for each in one.xids] for one in incidents(result)] == [[31], [13]]
        assert [one.refused_count for one in incidents(result)] == [0, 1]

    def test_one_of_another_gpu_moments_before_does_not(self) -> None:
        """It belongs to a fault on the server's other GPU."""
        other = reduced(gpu_reading((LATE,), gpu=OTHER_GPU, index=1, pci_bus_id="00000000:00:07.0"), start=UP).node
        result = reduced(xid(31, AT + 4, place="0000:00:07"), *block(A, B, C), start=other)
        assert (only(result).xids, only(result).gpus, only(result).started_at) == ((), (GPU,), AT + 5)


class TestRecovery:
    """A server stays in FAULT until the last affected client exits."""

    HELD = reduced(*block(A, B, C), *leaves(A, at=AT + 5.1), time_passes(AT + 6.2), start=UP)

    def test_a_client_that_stays_for_a_second_blocks_recovery(self) -> None:
        assert set(only(self.HELD).blockers) == {B, C}
        assert not only(reduced(*block(A, B, C), start=UP)).blockers

    def test_the_duration_of_each_is_stored(self) -> None:
        left = reduced(*leaves(B, at=AT + 9), *leaves(C, at=AT + 15), *reset(AT + 15), start=self.HELD.node)
        blocking = only(left).blocking
        assert {pid: (stay.since, stay.until) for pid, stay in blocking.items()} == {
            B: (AT + 5, AT + 9),
            C: (AT + 5, AT + 15),
        }
        assert not only(left).blockers

    def test_each_change_is_one_event(self) -> None:
        left = reduced(
            time_passes(AT + 7.5), *leaves(B, at=AT + 9), *leaves(C, at=AT + 15), *reset(AT + 15), start=self.HELD.node
        )
        changes = [*self.HELD.of(EventName.FAULT_CHANGED), *left.of(EventName.FAULT_CHANGED)]
        assert [each.reason for each in changes] == ["blocking", "suspects", "blocking", "blocking"]

    def test_new_clients_are_refused_during_the_fault(self) -> None:
        seen = (*refused(LATE, AT + 7), *leaves(B, C, at=AT + 9), *reset(AT + 9), time_passes(AT + 9.5))
        result = reduced(*seen, start=self.HELD.node)
        assert [each.pid for each in only(result).refused] == [LATE]
        assert result.of(EventName.FAULT_RECOVERED)[0].as_json()["refused"] == [LATE]

    def test_many_new_clients_are_refused(self) -> None:
        """All are counted. A user can start any number, so only the first ones are listed."""
        seen = (line for pid in range(LATE, LATE + 300) for line in refused(pid, AT + 7 + pid / 1000))
        incident = only(reduced(*seen, start=self.HELD.node))
        assert (incident.refused_count, incident.refused[0].pid) == (300, LATE)
        assert len(incident.refused) < 300

    def test_the_end_of_the_server_ends_it(self) -> None:
        result = reduced(exited(SERVER, at=AT + 9), servers(at=AT + 10), servers(at=AT + 12), start=self.HELD.node)
        assert only(result).ending is IncidentEnd.SERVER_GONE
        assert result.daemon.totals.fault_recoveries.count == 0

    def test_the_end_of_the_daemon_ends_it(self) -> None:
        result = reduced(exited(441, at=AT + 9), no_daemon(at=AT + 9.1), start=self.HELD.node)
        assert only(result).ending is IncidentEnd.DAEMON_GONE

    def test_the_replacement_of_the_daemon_ends_it(self) -> None:
        """Before the new daemon lists its servers."""
        result = reduced(daemon_process(442, at=AT + 9), start=self.HELD.node)
        assert not only(result).open

    def test_a_server_in_fault_without_clients_is_stuck(self) -> None:
        """It refuses all clients until it is ended."""
        result = reduced(*leaves(B, at=AT + 7), *leaves(C, at=AT + 8), time_passes(AT + 17.9), start=self.HELD.node)
        assert not only(result).stuck
        late = reduced(time_passes(AT + 18.1), start=result.node)
        assert (only(late).stuck, [each.reason for each in late.of(EventName.FAULT_CHANGED)]) == (True, ["stuck"])
        assert not only(reduced(*reset(AT + 20), start=late.node)).stuck

    def test_its_time_is_counted(self) -> None:
        recoveries = over().daemon.totals.fault_recoveries
        assert (recoveries.count, recoveries.within[0], recoveries.seconds) == (1, 1, pytest.approx(0.1))

    def test_its_time_is_not_negative_if_the_log_has_earlier_times(self) -> None:
        early = (replace(line, at=AT + 5.1) for line in reset(AT + 4.9))
        result = reduced(*block(A), *leaves(A, at=AT + 5.03), *early, time_passes(AT + 8), start=UP)
        assert result.daemon.totals.fault_recoveries.seconds == pytest.approx(0.1)


class TestRestart:
    """An incident that was open when the exporter ended continues."""

    def restarted(self) -> Node:
        """Return the node at the start of the next run."""
        before = TestRecovery.HELD.node
        return replace(reduced().node, incidents=before.incidents)

    def test_a_fault_that_continues_is_the_same_incident(self) -> None:
        seen = (*at_work()[:3], status("FAULT", at=AT + 20), clients(B, C, at=AT + 20), status("FAULT", at=AT + 25))
        result = reduced(*seen, start=self.restarted())
        assert set(only(result).blockers) == {B, C}
        assert result.of(EventName.FAULT) == []
        assert result.daemon.totals.faults == 0

    def test_a_fault_that_ended_in_between_ends(self) -> None:
        result = reduced(*at_work(), start=self.restarted())
        assert only(result).ending is IncidentEnd.RECOVERED

    def test_a_server_that_ended_in_between_ends_it(self) -> None:
        """The daemon does not list it."""
        seen = (servers(at=AT + 20), servers(at=AT + 22))
        assert only(reduced(*seen, start=self.restarted())).ending is IncidentEnd.SERVER_GONE

    def test_its_daemon_can_have_another_name(self) -> None:
        """The new configuration names it. It is the same fault."""
        held = replace(node("main"), incidents=TestRecovery.HELD.node.incidents)
        seen = (
            *at_work(daemon="main")[:3],
            status("FAULT", at=AT + 20, daemon="main"),
            clients(B, C, at=AT + 20, daemon="main"),
        )
        goes_on = reduced(*seen, start=held)
        assert (only(goes_on).daemon, only(goes_on).open, goes_on.of(EventName.FAULT)) == ("main", True, [])
        well = reduced(status("ACTIVE", at=AT + 30, daemon="main"), start=goes_on.node)
        assert only(well).ending is IncidentEnd.RECOVERED

    def test_another_server_with_that_pid_is_another(self) -> None:
        known = reduced(process(SERVER, ticks=1), start=UP).node
        before = reduced(*block(A), start=known).node.incidents
        held = replace(node("main"), incidents=before)
        seen = (process(SERVER, ticks=2, at=AT + 20), *at_work(daemon="main", at=AT + 21))
        assert only(reduced(*seen, start=held)).daemon == DAEMON

    def test_nothing_ends_before_the_first_collection(self) -> None:
        assert only(reduced(time_passes(AT + 20), start=self.restarted())).open


class TestBounds:
    """Incidents of one daemon are bounded and displace none of another daemon."""

    OTHER = "/tmp/mine"

    def noisy(self, start: Node = UP, begin: float = AT + 100) -> Node:
        """Return many open and many ended incidents of one daemon."""
        here = reduced(*(line for pid in range(64) for line in self.fault(9000 + pid, begin)), start=start)
        return here.node

    def fault(self, server: int, at: float) -> tuple[Observation, ...]:
        lines = ("Server is handling a fatal GPU error.", "Client {PID: 5, Context ID: 1} on device 0 to be torn down")
        says_so = status("FAULT", server=server, daemon=self.OTHER, at=at)
        return (*server_log(active(5), *lines, server=server, daemon=self.OTHER, at=at), says_so)

    def over(self, server: int, at: float) -> tuple[Observation, ...]:
        """End it, and wait until it is final."""
        well = status("ACTIVE", server=server, daemon=self.OTHER, at=at + 1)
        return (*self.fault(server, at), replace(well, seconds=0.0), time_passes(at + 3))

    def test_many_open_incidents_displace_none_of_another_daemon(self) -> None:
        """They can displace those of their own daemon."""
        noisy = reduced(*self.fault(9000, AT + 99), start=self.noisy()).node
        result = reduced(*block(A, at=AT + 101), start=noisy)
        assert [each.affected for each in incidents(result) if each.daemon == DAEMON] == [(A,)]
        assert len(incidents(result)) == 65

    def test_many_ended_incidents_displace_none_of_another_daemon(self) -> None:
        seen = [each for number in range(80) for each in self.over(9000, AT + 100 + 10 * number)]
        result = reduced(*seen, start=over().node)
        assert [each.affected for each in incidents(result) if each.daemon == DAEMON] == [(A, B, C)]
        assert (len(incidents(result)), incidents(result)[-1].started_at) == (64, AT + 890)

    def test_the_lists_of_clients_are_bounded(self) -> None:
        forged = [
            line
            for pid in range(100_000, 101_500)
            for line in server_log(f"Client {{PID: {pid}, Context ID: 1}} exiting. Worker is in reset.", at=AT + 5.5)
        ]
        (incident,) = incidents(reduced(*block(A), *forged, start=UP))
        assert len(incident.clues.in_reset) <= 1024


class TestNoFault:
    """Exits, ended servers and collisions are no incidents."""

    def test_nothing(self, subtests: pytest.Subtests) -> None:
        for seen in [
            leaves(A, B, C, at=AT + 5),
            (status("FAULT", at=AT + 5), status(f"Server {SERVER} not found", at=AT + 5.1)),
            (exited(SERVER, at=AT + 5),),
            (exited(441, at=AT + 5), no_daemon(at=AT + 5)),
            refused(LATE, AT + 5),
            server_log("Server is handling", "The following client process have a sticky error set:", "600", at=AT + 5),
        ]:
            with subtests.test(seen=seen):
                assert incidents(reduced(*seen, time_passes(AT + 8), start=UP)) == []
