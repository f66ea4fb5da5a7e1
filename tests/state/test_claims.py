"""Forged lines in a daemon's logs have no effect while other sources contradict them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

import pytest

from exporter.incidents.root_cause import LOG_UNRELIABLE
from exporter.model.daemon import ClaimKind, DaemonState, LossReason
from exporter.model.event import EventName
from exporter.model.identity import ProcessIdentity
from exporter.model.incident import Incident, IncidentEnd
from exporter.model.node import CollectorName, Node
from exporter.model.observation import GpuEvent, KernelRecord, LogFile, LogGap, LogLine, Observation
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.reducer import reduce_all
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    GPU,
    SENSORS,
    SERVER,
    Reduced,
    active,
    at_work,
    clients,
    connecting,
    control_log,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    look,
    no_daemon,
    node,
    process,
    reduced,
    reply,
    server_log,
    servers,
    stamped,
    status,
)

# The tests state these values, so that they notice a change of the program's constants.
MAX_OF_A_KIND = 256
OPEN_SECONDS = 30.0
REFUTED_SECONDS = 2.0
UNCONFIRMED_SECONDS = 10.0

A, B, C = 600, 601, 602
UNLISTED = 801

UP = reduced(
    *at_work(A, B, C),
    daemon_process(),
    process(SERVER, uid=0, user="root"),
    *(process(pid) for pid in (A, B, C)),
    *(line for pid in (A, B, C) for line in server_log(active(pid))),
    gpu_reading((A, B, C), **SENSORS),
    gpu_reading((A, B, C), at=AT + 1, **SENSORS),
).node
"""A daemon whose process is known, with a server and three clients that NVML, the daemon and /proc show."""

LATER = AT + 5


def echoed(*lines: str, at: float = LATER) -> tuple[LogLine, ...]:
    """`ps` copies a client's arguments into control.log, where each of their line breaks starts a line."""
    header = control_log(
        "NEW UI", "Cmd:ps", "PID       ID        SERVER         DEVICE    NAMESPACE      COMMAND        ", at=at
    )
    raw = (LogLine(at=at, daemon=DAEMON, file="control.log", line=line) for line in lines)
    return (*header, *raw, *control_log("UI closed", at=at))


def block(*victims: int, named: int | None = None, at: float = LATER) -> tuple[Observation, ...]:
    """Return the fault block of these clients."""
    first = () if named is None else (f"Client {{PID: {named}, Context: 1}} encountered a fatal GPU error.",)
    return server_log(
        *first,
        "Server is handling a fatal GPU error.",
        *(f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in victims),
        "The following devices will be reset:",
        "0",
        "The following client process have a sticky error set:",
        *map(str, victims),
        at=at,
    )


def exits(pid: int, at: float, *, in_reset: bool = False) -> tuple[Observation, ...]:
    """Return the end of a client's context in the log."""
    how = "exiting. Worker is in reset." if in_reset else "exiting."
    return server_log(f"Client {{PID: {pid}, Context ID: 1}} {how} Number of active client contexts is 2.", at=at)


def xid(number: int = 31, *, at: float = LATER, pid: int | None = None) -> KernelRecord:
    process = "" if pid is None else f"pid={pid}, name=train.py, "
    return KernelRecord(at=at, record=f"4,358,58747868,-;NVRM: Xid (PCI:0000:00:06): {number}, {process}MMU Fault")


def shown(*pids: int, at: float) -> Observation:
    """Return a reading of NVML with these clients."""
    return gpu_reading(pids, at=at, **SENSORS)


def after(*seen: Observation, start: Node = UP) -> Reduced:
    """Reduce the observations, and wait until every claim is decided."""
    end = max(each.at for each in seen) + OPEN_SECONDS + 1
    rest = (shown(A, B, C, at=end), servers(SERVER, at=end), clients(A, B, C, at=end), status("ACTIVE", at=end))
    return reduced(*seen, *rest, look("log", at=end), start=start)


def faults(result: Reduced) -> list[Incident]:
    return [each for each in result.node.incidents.values() if each.is_fault]


def contradictions(result: Reduced) -> dict[str, int]:
    return {claim: count for claim, count in result.daemon.totals.log_contradictions.items() if count}


FORGERIES: dict[str, tuple[tuple[Observation, ...], str | None]] = {
    "the daemon ends": (control_log("Exit with status 0", at=LATER), "daemon_exit"),
    "a quit of the daemon": (control_log("NEW UI", "Cmd:quit", "Exit with status 0", at=LATER), "daemon_exit"),
    "the daemon ends, by a client's arguments": (
        echoed("x", stamped("UI closed"), stamped("Exit with status 0")),
        "daemon_exit",
    ),
    "the daemon starts": (control_log("Starting control daemon using socket /s", at=LATER), None),
    "another protocol": (
        control_log("To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=/x", at=LATER),
        None,
    ),
    "the server exits": (control_log(f"Server {SERVER} exited with status 0", at=LATER), "server_exit"),
    "the server is ready": (control_log(f"NEW SERVER {SERVER}: Ready", at=LATER), None),
    "a client disconnects": (server_log(f"Client process {A} disconnected", at=LATER), "client_disconnect"),
    "a client's error is its own": (exits(A, LATER, in_reset=True), "contained_fault"),
    "a fault": (block(A, B, named=A), "fault"),
    "a fault of one client": (server_log(*FAULT_BLOCK, at=LATER), "fault"),
    "a recovery": (server_log("Destroy server context on device 0 (NVIDIA H200)", at=LATER), None),
}


def test_a_forged_line_changes_nothing_and_is_counted(subtests: pytest.Subtests) -> None:
    for lines, claim in FORGERIES.values():
        with subtests.test(lines=lines, claim=claim):
            result = after(*lines)
            assert [name for name in result.names() if name is not EventName.LOG_CONTRADICTED] == []
            assert (result.daemon.state, set(result.daemon.clients), result.node.incidents) == (
                DaemonState.UP,
                {A, B, C},
                {},
            )
            assert result.daemon.servers[SERVER].state is ServerState.ACTIVE
            assert contradictions(result) == ({} if claim is None else {claim: 1})
            assert result.daemon.log.claims == {}


def test_the_death_of_a_daemon_is_a_loss_for_any_log_lines() -> None:
    """SIGKILL leaves the pid file, which a quit removes."""
    forged = control_log("NEW UI", "Cmd:quit", "Exit with status 0", at=LATER)
    dies = (exited(CONTROL, at=LATER + 9), daemon_process(None, left=True, at=LATER + 9.1))
    result = reduced(*forged, *dies, look("log", at=LATER + 9.2), look("log", at=LATER + 12), start=UP)
    assert [each.reason for each in result.of(EventName.DAEMON_LOST)] == [LossReason.DIED]
    assert result.of(EventName.DAEMON_STOPPED) == []


def test_a_daemon_that_a_signal_ended_was_not_stopped_by_a_quit() -> None:
    forged = control_log("NEW UI", "Cmd:quit", at=LATER)
    dies = replace(exited(CONTROL, at=LATER + 1), wait_status=9)
    traces = daemon_process(None, left=False, at=LATER + 1.1)
    result = reduced(*forged, dies, traces, look("log", at=LATER + 4), start=UP)
    assert len(result.of(EventName.DAEMON_LOST)) == 1


# -- clients -----------------------------------------------------------------------------------------------------------


def test_a_disconnect_in_the_log_counts_if_nvml_confirms_it() -> None:
    """The process may continue."""
    result = reduced(*server_log(f"Client process {A} disconnected", at=LATER), shown(B, C, at=LATER + 1), start=UP)
    (left,) = result.of(EventName.CLIENT_DISCONNECTED)
    assert (left.pid, left.at) == (A, LATER)


def test_a_disconnect_in_the_log_does_not_count_if_nvml_contradicts_it() -> None:
    """At first NVML's reading may be older than the line."""
    line = server_log(f"Client process {A} disconnected", at=LATER)
    fresh = reduced(*line, shown(A, B, C, at=LATER + REFUTED_SECONDS - 0.1), start=UP)
    assert (set(fresh.daemon.clients), contradictions(fresh)) == ({A, B, C}, {})
    later = reduced(shown(A, B, C, at=LATER + REFUTED_SECONDS + 0.1), start=fresh.node)
    assert (set(later.daemon.clients), contradictions(later)) == ({A, B, C}, {"client_disconnect": 1})


def test_a_client_that_only_the_log_shows_is_withdrawn_when_the_daemon_does_not_list_it() -> None:
    """A real one is in NVML's list within a second."""
    seen = (clients(A, B, C, at=LATER + 3), look("log", at=LATER + 6))
    result = reduced(*server_log(active(UNLISTED), at=LATER), *seen, start=UP)
    assert UNLISTED not in result.daemon.clients
    assert contradictions(result) == {"client_connect": 1}


LOST = LogGap(at=LATER + 1, daemon=DAEMON, file="server.log", lines=40)
NOT_LISTED = (clients(A, B, C, at=LATER + 3), look("log", at=LATER + 6))


def test_a_client_whose_end_may_be_among_lost_lines_contradicts_nothing() -> None:
    """It was gone before its process was read. Lines are lost in a flood, or when the file is truncated."""
    result = reduced(*server_log(active(UNLISTED), at=LATER), LOST, *NOT_LISTED, start=UP)
    assert (set(result.daemon.clients), contradictions(result)) == ({A, B, C}, {})
    assert result.daemon.log.claims == {}


@pytest.mark.parametrize("read_at", [None, LATER + 5])
def test_a_client_whose_end_may_be_unread_contradicts_nothing(read_at: float | None) -> None:
    """The exporter reads the log late on a busy machine, or if the log's directory hangs."""
    late = LogFile(at=LATER, daemon=DAEMON, file="server.log", size=1 << 20, unread=1 << 19)
    hung = look("log", at=LATER + 1, problem=Reason(ReasonCode.STILL_RUNNING, seconds=1.0))
    for began, ended in ((late, replace(late, unread=0)), (replace(hung, daemon=DAEMON), look("log"))):
        end = () if read_at is None else (replace(ended, at=read_at, daemon=DAEMON),)
        result = reduced(*server_log(active(UNLISTED), at=LATER), began, NOT_LISTED[0], *end, NOT_LISTED[1], start=UP)
        assert (set(result.daemon.clients), contradictions(result)) == ({A, B, C}, {})


def test_lines_lost_long_before_a_forged_client_do_not_excuse_it() -> None:
    lost = replace(LOST, at=LATER - OPEN_SECONDS - 1)
    result = reduced(lost, *server_log(active(UNLISTED), at=LATER), *NOT_LISTED, start=UP)
    assert contradictions(result) == {"client_connect": 1}


def test_before_r580_a_client_that_disconnects_without_its_name_contradicts_nothing() -> None:
    """A forger cannot write such a line of a later server."""
    lines = server_log(active(UNLISTED), "Volta MPS: Client process disconnected", at=LATER)
    for version, expected in (("11040", {}), ("13000", {"client_connect": 1})):
        start = control_log(f"CUDA MPS Control binary version: {version}", at=LATER)
        assert contradictions(reduced(*start, *lines, *NOT_LISTED, start=UP)) == expected


def test_a_refusal_after_lost_lines_is_no_contradiction_and_names_no_other_client() -> None:
    """The limit of the server is 48, but the lines of most of its clients were lost."""
    refused = server_log("Failed to accept new client. Maximum number of clients (48) reached.", at=LATER + 2)
    result = reduced(*server_log(connecting(UNLISTED), at=LATER), LOST, *refused, start=UP)
    assert contradictions(result) == {}
    assert result.daemon.servers[SERVER].connecting == frozenset()


def test_forged_clients_do_not_displace_real_ones() -> None:
    """Their number is bounded, and the daemon's own list is not."""
    forged = (line for pid in range(5000, 7000) for line in server_log(active(pid), at=LATER))
    result = reduced(*forged, clients(A, B, C, 700, at=LATER + 1), start=UP)
    assert {A, B, C, 700} <= set(result.daemon.clients)
    assert len(result.daemon.log.claims) <= MAX_OF_A_KIND


# -- servers -----------------------------------------------------------------------------------------------------------


def test_a_server_that_only_the_log_shows_is_withdrawn() -> None:
    line = control_log("Starting new server 999 for user 0", at=LATER)
    lists = (servers(SERVER, at=LATER + 2), servers(SERVER, at=LATER + 6))
    result = reduced(*line, *lists, start=UP)
    assert set(result.daemon.servers) == {SERVER}
    assert contradictions(result) == {"server_start": 1}


def test_a_start_that_no_source_can_show_is_accepted_in_time() -> None:
    """An open claim would have the daemon queried again and again."""
    line, end = control_log("Starting new server 999 for user 0", at=LATER), look("log", at=LATER + OPEN_SECONDS + 1)
    assert reduced(*line, start=UP).daemon.claimed(ClaimKind.SERVER_START, 999)
    daemon = reduced(*line, end, start=UP).daemon
    assert (999 in daemon.servers, daemon.claimed(ClaimKind.SERVER_START, 999)) == (True, False)


# -- faults ------------------------------------------------------------------------------------------------------------

CONFIRMED = {
    "an Xid that names a client": (xid(pid=A),),
    "an Xid that names the server": (xid(43, pid=SERVER),),
    "an Xid of NVML, which names no process": (GpuEvent(at=LATER, type=8, xid=31, gpu=GPU),),
    "the daemon": (status("FAULT", at=LATER + 0.1),),
    "the end of several victims": (exited(A, at=LATER + 0.1), exited(B, at=LATER + 0.1)),
    "the end of several victims, where Xids cannot be read": (
        look(CollectorName.NVML_EVENTS, at=LATER - 1, problem=failure("Not Supported")),
        exited(A, at=LATER + 0.1),
        exited(B, at=LATER + 0.1),
    ),
    "several victims that leave NVML's list": (exited(A, at=LATER + 0.1), shown(C, at=LATER + 1)),
}


def test_its_block_and_another_source_make_one(subtests: pytest.Subtests) -> None:
    for confirms in CONFIRMED.values():
        with subtests.test(confirms=confirms):
            result = reduced(*sorted((*block(A, B), *confirms), key=lambda each: each.at), start=UP)
            (incident,) = result.node.incidents.values()
            assert set(incident.affected) == {A, B}
            assert contradictions(result) == {}


ENDS = (exited(A, at=LATER + 0.1), exited(B, at=LATER + 0.1))

NOT_CONFIRMED = {
    "an Xid of a bypassing process": (xid(pid=UNLISTED),),
    "an Xid that is too old": (xid(pid=A, at=LATER - 3),),
    "an Xid that comes long after it": (xid(pid=A, at=LATER + 0.4),),
    "the end of several victims, while Xids are read and there is none": (
        look(CollectorName.NVML_EVENTS, at=LATER - 1),
        *ENDS,
    ),
    "the end of one victim": (exited(A, at=LATER + 0.1),),
    "the daemon, asked before": (status("ACTIVE", at=LATER + 0.5),),
}


def test_nothing_else_makes_one(subtests: pytest.Subtests) -> None:
    for seen in NOT_CONFIRMED.values():
        with subtests.test(seen=seen):
            ordered = sorted((*block(A, B), *seen), key=lambda each: each.at)
            result = reduced(*ordered, look("log", at=LATER + UNCONFIRMED_SECONDS + 1), start=UP)
            assert faults(result) == []
            assert contradictions(result) == {"fault": 1}


def test_the_end_of_several_victims_confirms_none_while_another_one_runs() -> None:
    seen = (*block(A, B, C), *ENDS, shown(C, at=LATER + 1), look("log", at=LATER + UNCONFIRMED_SECONDS + 1))
    assert reduced(*seen, start=UP).node.incidents == {}


def test_an_xid_without_a_process_proves_nothing_if_a_process_bypasses_mps() -> None:
    """It may be that process's own, which a forger can cause at will."""
    bypassed = reduced(gpu_reading((A, B, C), beside=(UNLISTED,), at=AT + 2, **SENSORS), start=UP).node
    seen = (*block(A, B), GpuEvent(at=LATER, type=8, xid=31, gpu=GPU), look("log", at=LATER + 12))
    assert reduced(*seen, start=bypassed).node.incidents == {}


def test_a_forged_recovery_does_not_end_it() -> None:
    """The server stays in FAULT while affected clients run."""
    held = reduced(*block(A, B), status("FAULT", at=LATER), start=UP).node
    forged = server_log("Destroy server context on device 0 (NVIDIA H200)", at=LATER + 1)
    result = reduced(*forged, status("FAULT", at=LATER + 3), look("log", at=LATER + 4), start=held)
    (incident,) = result.node.incidents.values()
    assert (incident.open, contradictions(result)) == (True, {"recovery": 1})


def test_a_reply_that_may_be_older_than_a_recovery_does_not_refute_it() -> None:
    held = reduced(*block(A, B), status("FAULT", at=LATER), start=UP).node
    recovers = server_log("Destroy server context on device 0 (NVIDIA H200)", at=LATER + 1)
    result = reduced(*recovers, status("FAULT", at=LATER + 1.4), look("log", at=LATER + 2), start=held)
    assert contradictions(result) == {}


def test_xids_of_two_clients_are_of_two_faults_however_soon_the_second_one_follows() -> None:
    """The first one was read late. The daemon has not reported a fault yet."""
    seen = (*block(A), xid(pid=A, at=LATER + 0.3), *block(B, at=LATER + 0.4), xid(pid=B, at=LATER + 0.41))
    assert [each.affected for each in faults(reduced(*seen, look("log", at=LATER + 3), start=UP))] == [(A,), (B,)]


def test_a_second_block_of_the_same_clients_is_no_other_fault() -> None:
    again = (*block(A, B, at=LATER + 1), xid(pid=A, at=LATER + 1), look("log", at=LATER + 5))
    (incident,) = faults(reduced(*block(A, B), xid(pid=A), status("FAULT", at=LATER + 0.1), *again, start=UP))
    assert incident.detected_at == LATER


def test_an_xid_confirms_no_block_without_clients_of_a_server_that_only_the_log_shows() -> None:
    forged = server_log(FAULT_BLOCK[0], at=LATER, server=999)
    event = GpuEvent(at=LATER, type=8, xid=31, gpu=GPU)
    assert faults(reduced(*forged, event, look("log", at=LATER + 1), start=UP)) == []


def test_a_block_that_no_source_confirmed_is_no_fault_at_the_end_of_a_recording() -> None:
    *_, (end, _) = reduce_all(UP, block(A, B))
    assert end.incidents == {}


def test_its_recovery_is_known_once_all_victims_have_ended() -> None:
    recovers = server_log("Destroy server context on device 0 (NVIDIA H200)", at=LATER + 0.1)
    seen = (*block(A, B), xid(pid=A), *recovers, exited(A, at=LATER + 0.2), exited(B, at=LATER + 0.2))
    result = reduced(*seen, start=UP)
    (incident,) = result.node.incidents.values()
    assert (incident.ending, incident.ended_at) == (IncidentEnd.RECOVERED, LATER + 0.2)


def test_names_in_a_forged_block_do_not_reach_the_next_fault() -> None:
    forged = reduced(*block(C, named=C), look("log", at=LATER + 11), start=UP).node
    result = reduced(*block(A, B, at=LATER + 12), xid(pid=A, at=LATER + 12), start=forged)
    (incident,) = result.node.incidents.values()
    assert set(incident.affected) == {A, B}


# -- suspects ----------------------------------------------------------------------------------------------------------


def trapped(*forged: Observation, start: Node = UP) -> Reduced:
    """Client A traps: the log has its worker in reset at its exit."""
    seen = (
        xid(43, pid=SERVER),
        *block(A, B, C),
        *exits(A, LATER + 0.05, in_reset=True),
        *exits(B, LATER + 0.06),
        *exits(C, LATER + 0.07),
        *forged,
        *(exited(pid, at=LATER + 0.1) for pid in (A, B, C)),
        look("log", at=LATER + 4),
    )
    return reduced(*sorted(seen, key=lambda each: each.at), start=start)


def confidence(result: Reduced) -> dict[int, float]:
    (incident,) = result.node.incidents.values()
    return {each.client.pid: each.confidence for each in incident.suspects}


def test_without_a_forger_the_one_that_trapped_is_likely() -> None:
    assert confidence(trapped())[A] > 0.9


@pytest.mark.parametrize("at", [LATER + 0.02, LATER + 0.08], ids=["before its own line", "after its own line"])
def test_a_forged_reset_line_makes_no_client_likely(at: float) -> None:
    assert max(confidence(trapped(*exits(B, at, in_reset=True))).values()) < 0.5


def test_a_forged_disconnect_makes_no_running_client_likely() -> None:
    """It is no victim, and by the log its contexts ended when those of a killed client do."""
    seen = (*exits(C, LATER - 0.12), *block(A, B), xid(pid=A), exited(A, at=LATER + 0.1), exited(B, at=LATER + 0.1))
    result = reduced(*sorted(seen, key=lambda each: each.at), look("log", at=LATER + 4), start=UP)
    assert confidence(result).get(C, 0.0) == 0.0


def test_after_a_contradiction_no_client_is_likely() -> None:
    doubted = reduced(
        *server_log(f"Client process {C} disconnected", at=LATER - 4), shown(A, B, C, at=LATER - 1), start=UP
    )
    result = trapped(start=doubted.node)
    assert max(confidence(result).values()) < 0.5
    (incident,) = result.node.incidents.values()
    assert any(LOG_UNRELIABLE in each.indications for each in incident.suspects)


def test_a_flood_that_excuses_a_contradiction_makes_no_client_likely() -> None:
    """A user can cause one. Lines about the cause may be among the lost ones, and others be forged."""
    seen = (replace(LOST, at=LATER - 5), *server_log(f"Client process {C} disconnected", at=LATER - 4))
    doubted = reduced(*seen, shown(A, B, C, at=LATER - 1), start=UP)
    assert contradictions(doubted) == {}
    assert max(confidence(trapped(start=doubted.node)).values()) < 0.5


def test_the_unreliable_log_of_an_earlier_run_is_known_after_a_restart() -> None:
    doubted = reduced(
        *server_log(f"Client process {C} disconnected", at=LATER - 4),
        shown(A, B, C, at=LATER - 1),
        xid(pid=A),
        *block(A, B),
        start=UP,
    )
    assert confidence(doubted)
    restarted = replace(node(), incidents=doubted.node.incidents)
    result = reduced(
        *at_work(at=LATER + 1)[:3], status("FAULT", at=LATER + 1), look("log", at=LATER + 9), start=restarted
    )
    assert max(confidence(result).values()) < 0.5


def test_a_forged_block_with_unknown_clients_is_no_incident_beside_an_unused_xid() -> None:
    """Its first line names no client. The Xid may be of a fault of which no line was read."""
    result = reduced(xid(pid=None), *block(UNLISTED), look("log", at=LATER + 12), start=UP)
    assert faults(result) == []


def test_no_client_is_likely_if_the_log_omits_a_running_client() -> None:
    """A fault hits all clients on its GPU (measured, R580): the block is forged, or lacks lines."""
    result = reduced(xid(pid=A), *block(A), exited(A, at=LATER + 0.1), look("log", at=LATER + 4), start=UP)
    assert 0 < max(confidence(result).values()) < 0.5


def test_no_client_is_likely_if_lines_of_disconnected_clients_are_missing() -> None:
    """A forger that reads the fifo can remove its own lines."""
    seen = (
        xid(43, pid=SERVER),
        *block(A, B, C),
        *exits(B, LATER + 0.06, in_reset=True),
        *exits(C, LATER + 0.07),
        *(exited(pid, at=LATER + 0.1) for pid in (A, B, C)),
        look("log", at=LATER + 4),
    )
    result = reduced(*sorted(seen, key=lambda each: each.at), start=UP)
    assert max(confidence(result).values()) < 0.5


def test_contradictions_in_a_row_are_one_event_a_minute_and_all_counted() -> None:
    seen: list[Observation] = []
    for seconds in (0, 10, 30, 50, 70, 131):
        seen += server_log(f"Client process {A} disconnected", at=LATER + seconds)
        seen.append(shown(A, B, C, at=LATER + seconds + 2.5))
    result = reduced(*seen, start=UP)
    assert contradictions(result) == {"client_disconnect": 6}
    assert [each.at - LATER for each in result.of(EventName.LOG_CONTRADICTED)] == [2.5, 133.5]


def test_the_counter_of_every_kind_exists_before_its_first_event() -> None:
    assert set(reduced(*at_work()).daemon.totals.log_contradictions) == set(ClaimKind)


@pytest.mark.parametrize("after", [0.25, 1.5], ids=["at once", "after its recovery"])
def test_what_explains_a_real_fault_does_not_confirm_a_forged_one_right_after_it(after: float) -> None:
    """The Xid, the daemon's FAULT and the end of the victims are those of the first."""
    at = LATER + after
    real = (*block(A, B), xid(pid=A), status("FAULT", at=LATER + 0.05))
    ends = (exited(A, at=LATER + 0.1), exited(B, at=LATER + 0.1), status("ACTIVE", at=LATER + 0.2))
    forged = (*block(A, B, C, at=at), look("log", at=at + 12))
    result = reduced(*real, *ends, *forged, start=UP)
    (incident,) = result.node.incidents.values()
    assert set(incident.affected) == {A, B}
    assert contradictions(result) == {"fault": 1}


def test_a_new_client_with_a_running_process_stays_until_nvml_is_read() -> None:
    """It connected a moment ago: NVML and the daemon have not shown it yet."""
    forged = (
        *server_log(active(UNLISTED), f"Client process {UNLISTED} disconnected", at=LATER),
        look("log", at=LATER + 1),
    )
    result = reduced(process(UNLISTED, at=LATER - 1), *forged, start=UP)
    assert UNLISTED in result.daemon.clients
    shown_later = reduced(shown(A, B, C, UNLISTED, at=LATER + 2.5), start=result.node)
    assert (UNLISTED in shown_later.daemon.clients, contradictions(shown_later)) == (True, {"client_disconnect": 1})
    assert UNLISTED not in reduced(shown(A, B, C, at=LATER + 2), start=result.node).daemon.clients


def test_a_client_whose_end_is_read_after_the_list_that_lacks_it_contradicts_nothing() -> None:
    seen = (process(UNLISTED, at=LATER), clients(A, B, C, at=LATER + 1), exited(UNLISTED, at=LATER + 1.01))
    result = reduced(*server_log(active(UNLISTED), at=LATER), *seen, look("log", at=LATER + 9), start=UP)
    assert contradictions(result) == {}


@pytest.mark.parametrize(("after", "refuted"), [(-0.1, {}), (0.1, {"server_start": 1})])
def test_a_start_is_no_contradiction_if_the_server_ends_soon_after_a_list_without_it(
    after: float, refuted: dict[str, int]
) -> None:
    listed = LATER + 2
    end = exited(999, at=listed + REFUTED_SECONDS + after)
    server = process(999, command="nvidia-cuda-mps-server", at=LATER)
    seen = (server, *control_log("Starting new server 999 for user 0", at=LATER))
    result = reduced(
        *seen, servers(SERVER, at=listed), look("log", at=end.at), end, look("log", at=LATER + 9), start=UP
    )
    assert contradictions(result) == refuted


def test_an_xid_of_another_servers_fault_confirms_none() -> None:
    """A new server runs, of which a forger claims a fault soon after the real one of the server before."""
    fault = (*block(A, B), GpuEvent(at=LATER, type=8, xid=31, gpu=GPU))
    new, other = SERVER + 1, UNLISTED
    started = (servers(new, at=LATER + 0.5), clients(other, server=new, at=LATER + 0.5))
    forged = server_log(*FAULT_BLOCK[:-1], str(other), at=LATER + 0.8, server=new)
    result = reduced(*fault, *started, *forged, look("log", at=LATER + 12), start=UP)
    assert [each.server for each in faults(result)] == [SERVER]
    assert contradictions(result)["fault"] == 1


def test_one_xid_confirms_one_of_two_blocks() -> None:
    """The forger's comes first. Which of them is forged is not known, so no client is likely."""
    both = (GpuEvent(at=LATER - 0.05, type=8, xid=31, gpu=GPU), *block(C), *block(A, B, at=LATER + 0.3))
    result = reduced(*both, look("log", at=LATER + 3), start=UP)
    (incident,) = result.node.incidents.values()
    assert all(each.confidence < 0.5 for each in incident.suspects)
    assert contradictions(reduced(look("log", at=LATER + 12), start=result.node)) == {"fault": 1}


def test_an_xid_from_before_its_server_started_confirms_none() -> None:
    new = SERVER + 1
    started = replace(process(new, uid=0, user="root"), started=LATER - 0.5)
    before = (GpuEvent(at=LATER - 1.5, type=8, xid=31, gpu=GPU), started, servers(new, at=LATER - 0.4))
    listed = clients(UNLISTED, server=new, at=LATER - 0.3)
    forged = server_log(*FAULT_BLOCK[:-1], str(UNLISTED), at=LATER, server=new)
    result = reduced(*before, listed, *forged, look("log", at=LATER + 12), start=UP)
    assert faults(result) == []


def test_a_client_that_only_the_log_shows_did_not_leave_before_a_fault() -> None:
    """NVML and the daemon never showed it, and no process of that PID ended."""
    unlisted = UNLISTED
    came = (*server_log(active(unlisted), at=LATER - 1), *exits(unlisted, LATER - 0.1))
    seen = (*came, *block(A, B), xid(), status("FAULT", at=LATER + 0.1), shown(A, B, C, at=LATER + 0.5))
    (incident,) = reduced(*seen, start=UP).node.incidents.values()
    assert [each.client.pid for each in incident.suspects if each.client.pid == unlisted] == []


def test_an_xid_at_the_end_of_another_server_confirms_none() -> None:
    """That server was killed in its fault, before it could write of it."""
    new = SERVER + 1
    ended = replace(exited(SERVER, at=LATER - 0.3), start_ticks=SERVER * 100)
    before = (ended, servers(new, at=LATER - 0.2), clients(UNLISTED, server=new, at=LATER - 0.2))
    event = GpuEvent(at=LATER - 0.15, type=8, xid=31, gpu=GPU)
    forged = server_log(*FAULT_BLOCK[:-1], str(UNLISTED), at=LATER, server=new)
    result = reduced(*before, event, *forged, look("log", at=LATER + 12), start=UP)
    assert faults(result) == []
    assert contradictions(result)["fault"] == 1


# -- Xids of the forger's own process ---------------------------------------------------------------------------------

OWN = 900
"""A process of the forger, without MPS. The log names it as a client."""

ALL = (A, B, C)
ACTIVE = server_log(active(OWN), at=LATER - 0.3)
OUTSIDE = tuple(gpu_reading(ALL, beside=(OWN,), at=LATER - before, **SENSORS) for before in (0.25, 0.1))
OWN_XID = xid(pid=OWN)


def attacked(*forged: Observation, ends: float = LATER + 12, start: Node = UP) -> Reduced:
    return reduced(*sorted((*forged, look("log", at=ends)), key=lambda each: each.at), start=start)


def test_a_process_that_nvml_shows_outside_mps_is_no_client_for_any_log_lines() -> None:
    """Neither its Xid nor one without a process confirms a forged fault, and it is reported as bypassing."""
    for number, error in enumerate((OWN_XID, GpuEvent(at=LATER, type=8, xid=31, gpu=GPU))):
        for victims in (ALL, (*ALL, OWN), ()):
            result = attacked(*ACTIVE, *OUTSIDE, error, *block(*victims))
            assert (number, faults(result)) == (number, [])
            assert contradictions(result)["fault"] == 1
    later = gpu_reading(ALL, beside=(OWN,), at=LATER + 2, **SENSORS)
    assert [each.pid for each in attacked(*ACTIVE, *OUTSIDE, later).of(EventName.PROCESS_BYPASSING)] == [OWN]


FORGED_SERVERS = {
    "once": control_log(f"Starting new server {OWN} for user 0", at=LATER - 0.3),
    "as ready": control_log(f"NEW SERVER {OWN}: Ready", at=LATER - 0.3),
    "again and again": control_log(
        *(
            text
            for _ in range(5)
            for text in (f"Starting new server {OWN} for user 0", f"Server {OWN} exited with status 0")
        ),
        at=LATER - 0.3,
    ),
}


@pytest.mark.parametrize("forged", FORGED_SERVERS.values(), ids=FORGED_SERVERS)
@pytest.mark.parametrize("lists", [(), (servers(SERVER, at=LATER + 1),)], ids=["no list", "a list"])
@pytest.mark.parametrize("read", [LATER - 1, LATER + 1.5], ids=["known before", "known after"])
def test_a_process_that_the_log_names_as_a_server_is_reported_as_bypassing(
    forged: Sequence[Observation], lists: Sequence[Observation], read: float
) -> None:
    shown = (gpu_reading(ALL, beside=(OWN,), at=LATER + after, **SENSORS) for after in (0, 2, 4))
    result = attacked(process(OWN, at=read), *forged, *lists, *shown)
    assert [each.pid for each in result.of(EventName.PROCESS_BYPASSING)] == [OWN]
    assert set(result.daemon.servers) == {SERVER}


def test_a_forged_server_is_a_contradiction_as_soon_as_its_process_is_known() -> None:
    result = reduced(*FORGED_SERVERS["once"], process(OWN, at=LATER), start=UP)
    assert contradictions(result) == {"server_start": 1}


def test_a_process_with_the_pid_of_a_server_that_exited_is_reported_as_bypassing() -> None:
    lists = (servers(SERVER, OWN, at=LATER - 3), servers(SERVER, at=LATER - 1))
    shown = (gpu_reading(ALL, beside=(OWN,), at=LATER + after, **SENSORS) for after in (0, 2, 4))
    result = attacked(*lists, process(OWN, at=LATER - 0.5), *shown)
    assert [each.pid for each in result.of(EventName.PROCESS_BYPASSING)] == [OWN]


PARENT = ProcessIdentity(pid=CONTROL, start_ticks=CONTROL * 100)
OTHERS_SERVERS = {
    "its process cannot be read": (),
    "its executable is unknown": (process(OWN, at=LATER - 1, command="nvidia-cuda-mps"),),
    "its program is unknown": (replace(process(OWN, at=LATER - 1), command=None),),
    "the program has another name": (replace(process(OWN, at=LATER - 1, command="mps.real"), parent=PARENT),),
}


@pytest.mark.parametrize("seen", OTHERS_SERVERS.values(), ids=OTHERS_SERVERS)
def test_a_server_that_only_the_log_shows_does_not_bypass_mps(seen: Sequence[Observation]) -> None:
    shown = (gpu_reading(ALL, beside=(OWN,), at=LATER + after, **SENSORS) for after in (0, 2, 4))
    result = attacked(*seen, *FORGED_SERVERS["once"], *shown, ends=LATER + 5)
    assert not result.of(EventName.PROCESS_BYPASSING)
    assert contradictions(result) == {}


def test_a_listed_server_with_another_name_does_not_bypass_mps() -> None:
    shown = (gpu_reading(ALL, beside=(OWN,), at=LATER + after, **SENSORS) for after in (0, 2, 4))
    result = attacked(process(OWN, at=LATER - 1), servers(SERVER, OWN, at=LATER - 0.3), *shown)
    assert not result.of(EventName.PROCESS_BYPASSING)


ENDS_NOW = tuple(exited(pid, at=LATER + 0.05) for pid in (*ALL, OWN))
QUEUED = control_log(f"NEW CLIENT {OWN} from user 1001: Server already exists", at=LATER - 0.3)

ATTACKS: dict[str, tuple[Observation, ...]] = {
    "it names all clients": (*ACTIVE, OWN_XID, *block(*ALL)),
    "it names its own process too": (*ACTIVE, OWN_XID, *block(*ALL, OWN)),
    "it names no client": (*ACTIVE, OWN_XID, *server_log("Server is handling a fatal GPU error.", at=LATER)),
    "a client that waits": (*QUEUED, *ACTIVE, OWN_XID, *block(*ALL)),
    "only the end of a context": (*exits(OWN, LATER - 0.1), OWN_XID, *block(*ALL)),
    "the end of an innocent client": (*ACTIVE, *exits(A, LATER - 0.14), OWN_XID, *block(B, C)),
    "the kernel log cannot be read": (GpuEvent(at=LATER, type=8, xid=31, gpu=GPU), *block(*ALL)),
    "all clients exit by themselves": (*ACTIVE, OWN_XID, *block(*ALL), *ENDS_NOW),
    "a process that no list has": (process(OWN), *ACTIVE, *server_log(active(77), at=LATER), OWN_XID, *block(*ALL)),
}
"""NVML has not shown the process yet. So its Xid confirms a fault, as that of a client that has just connected."""


@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("innocents", [ALL, (A,)], ids=["three clients", "one client"])
def test_an_xid_of_a_process_that_only_the_log_shows_makes_no_client_likely(
    attack: str, innocents: tuple[int, ...]
) -> None:
    start, seen = UP, ATTACKS[attack]
    if innocents == (A,):
        others = (exited(B, at=AT + 2), exited(C, at=AT + 2), shown(A, at=AT + 2.5), look("log", at=AT + 4.5))
        start = reduced(*others, clients(A, at=AT + 4.5), shown(A, at=AT + 4.6), start=UP).node
        seen = tuple(each for each in seen if getattr(each, "pid", None) not in (B, C) and not _names(each, B, C))
    result = attacked(*seen, ends=LATER + 4, start=start)
    for incident in faults(result):
        assert all(each.confidence < 0.5 for each in incident.suspects if each.client.pid != OWN)
    active_again = (status("ACTIVE", at=LATER + 1), status("ACTIVE", at=LATER + 2))
    ends = attacked(*seen, *active_again, ends=LATER + 4, start=start)
    assert not any(each.open for each in faults(ends))


def _names(line: Observation, *pids: int) -> bool:
    return isinstance(line, LogLine) and any(str(pid) in line.line for pid in pids)


def test_a_process_that_turns_away_from_mps_is_no_proof() -> None:
    """It executes another program: its PID and start time remain those of the client that NVML showed."""
    was = reduced(shown(*ALL, OWN, at=AT + 2), clients(*ALL, OWN, at=AT + 2), start=UP).node
    left = (*server_log(f"Client process {OWN} disconnected", at=LATER - 1), shown(*ALL, at=LATER - 0.9))
    for claim in (ACTIVE, ()):
        for incident in faults(attacked(*left, *claim, OWN_XID, *block(A, B, C), ends=LATER + 4, start=was)):
            assert incident.clues.log_unreliable


def test_a_real_fault_of_clients_that_no_list_had_is_reported_at_once_and_not_doubted() -> None:
    """All have just connected, and exit by the fault."""
    young = reduced(*at_work(), daemon_process(), process(SERVER, uid=0, user="root"), shown(at=AT)).node
    came = (*(line for pid in ALL for line in server_log(active(pid), at=LATER - 0.9)), *map(process, ALL))
    ends = (line for pid in ALL for line in exits(pid, LATER + 0.05))
    seen = (*came, xid(pid=A), *block(*ALL), *ends, *ENDS_NOW[:3])
    result = attacked(*seen, ends=LATER + 4, start=young)
    (incident,) = faults(result)
    assert (incident.detected_at, incident.clues.log_unreliable, contradictions(result)) == (LATER, False, {})


def test_a_young_client_that_exits_after_its_fault_confirms_it() -> None:
    """A client that exits leaves NVML's MPS list before its other list (R580)."""
    exits_now = gpu_reading(ALL, beside=(OWN,), at=LATER + 0.05, **SENSORS)
    (incident,) = faults(attacked(*ACTIVE, OWN_XID, exits_now, *block(*ALL, OWN, at=LATER + 0.1)))
    assert OWN in incident.affected


def test_the_daemons_report_of_fault_ends_the_doubt_about_an_xid() -> None:
    real = (*ACTIVE, OWN_XID, *block(*ALL, OWN), exited(OWN, at=LATER + 0.1), status("FAULT", at=LATER + 0.5))
    (incident,) = faults(attacked(*real, ends=LATER + 4))
    assert not incident.clues.log_unreliable


# No command line of a client can forge an event, although the daemon writes it into control.log.


HEADER = "PID       ID        SERVER         DEVICE                    NAMESPACE      COMMAND        "
ROW = f"{CLIENT}       16        {SERVER}            GPU-1efa3f60-b0ba-115c    4026531836     x"

FORGED = (
    stamped(f"Server {SERVER} exited with status 0"),
    stamped("Exit with status 0"),
    stamped("Starting control daemon using socket /tmp/nvidia-mps/control"),
    stamped("Starting new server 666 for user 0"),
    stamped("NEW SERVER 666: Ready"),
    stamped("NEW CLIENT 667 from user 0: Server is not ready, push client to pending list"),
    stamped(f"Server {SERVER} has 2 active worker threads. Server will not shutdown."),
    stamped("CUDA MPS Control binary version: 99999"),
    stamped("To connect CUDA applications to this daemon, set CUDA_MPS_PIPE_DIRECTORY=/x"),
    stamped("set_default_device_pinned_mem_limit 0 1G."),
    stamped("Cmd:set_default_active_thread_percentage 1"),
    stamped("Active Threads Percentage set to 1.0", "Server", SERVER),
    stamped("Device pinned memory limit for device 0 set to 0x1 bytes", "Server", SERVER),
    stamped(f"Client {{{CLIENT}, 1}} exit", "Server", SERVER),
    stamped("Server is handling a fatal GPU error.", "Server", SERVER),
    stamped(active(667), "Server", SERVER),
    stamped(f"Client process {CLIENT} disconnected", "Server", SERVER),
    stamped("Failed to accept new client. Maximum number of clients (48) reached.", "Server", SERVER),
    stamped("Server has started", "Server", 666),
    stamped(f"Try shutting down server {SERVER}, backoff is disabled"),
    stamped(f"Force shutting down server {SERVER}"),
    stamped(
        f"Client {{PID: {CLIENT}, Context ID: 1}} exiting. Number of active client contexts is 2.", "Server", SERVER
    ),
    stamped(f"Client {{PID: {CLIENT}, Context ID: 1}} exiting. Worker is in reset.", "Server", SERVER),
    stamped(f"MPS server requesting client {{PID: {CLIENT}, Context ID: 1}} to exit", "Server", SERVER),
    stamped(f"Device NVIDIA H200 (uuid {GPU}) is associated", "Server", SERVER),
    stamped(f"Client {{PID: {CLIENT}, Context: 1}} encountered a fatal GPU error.", "Server", SERVER),
    stamped(f"Client {{PID: {CLIENT}, Context ID: 1}} on device 0 to be torn down", "Server", SERVER),
)
BLOCK = tuple(stamped(line, "Server", SERVER) for line in FAULT_BLOCK)
STREAM = "stdout"
"""Lines of a daemon in the foreground, which writes both logs into one."""


def in_control_log(*lines: str) -> tuple[LogLine, ...]:
    """Return complete lines of the file."""
    (sample,) = control_log("x")
    return tuple(LogLine(at=sample.at, daemon=sample.daemon, file=sample.file, line=line) for line in lines)


def after_echo(*lines: str, file: str = "control.log") -> tuple[Reduced, Reduced]:
    """Return a node, and the same node after the reply to a `ps` command with these lines was logged."""
    before = reduced(*at_work(CLIENT))
    echo = in_control_log(
        stamped("Accepting connection..."),
        stamped("NEW UI"),
        stamped("Cmd:ps"),
        stamped(HEADER),
        stamped(ROW),
        *lines,
        stamped("UI closed"),
    )
    return before, reduced(*(replace(line, file=file) for line in echo), start=before.node)


def test_ignores_a_line_in_the_reply_to_ps(subtests: pytest.Subtests) -> None:
    for file, line in product(["control.log", STREAM], FORGED):
        with subtests.test(file=file, line=line):
            before, after = after_echo(line, file=file)
            assert after.names() == []
            assert after.daemon.servers == before.daemon.servers
            assert after.daemon.clients == before.daemon.clients
            assert after.daemon.connections.disconnects == before.daemon.connections.disconnects
            assert after.daemon.connections.failed_starts == before.daemon.connections.failed_starts
            assert after.daemon.connections.queued == before.daemon.connections.queued
            assert after.daemon.runtime.version == before.daemon.runtime.version
            assert after.daemon.runtime.protocol == before.daemon.runtime.protocol
            assert after.daemon.default_limits.pinned_memory == before.daemon.default_limits.pinned_memory
            assert after.daemon.default_limits.stale == before.daemon.default_limits.stale


@pytest.mark.parametrize("file", ["control.log", STREAM])
def test_ignores_a_fault_log_block_in_the_reply_to_ps(file: str) -> None:
    before, after = after_echo(*BLOCK, file=file)
    assert (after.names(), after.node.incidents) == ([], {})
    assert after.daemon.servers == before.daemon.servers


def test_ignores_lines_of_servers_in_control_log_and_of_daemons_in_server_log(subtests: pytest.Subtests) -> None:
    """Neither writes into the other's file, unless the daemon runs in the foreground."""
    for line in [*BLOCK[:1], *FORGED]:
        with subtests.test(line=line):
            before = reduced(*at_work(CLIENT))
            (sample,) = control_log("x")
            file = "server.log" if " Control " in line else "control.log"
            after = reduced(replace(sample, file=file, line=line), start=before.node)
            assert (after.names(), after.daemon.servers) == ([], before.daemon.servers)
            assert (after.daemon.clients, after.daemon.connections.disconnects) == (before.daemon.clients, {})


def test_ignores_a_line_that_only_resembles_one_of_a_server(subtests: pytest.Subtests) -> None:
    for text in [
        "unknown Client {PID: 600, Context ID: 1} exiting. Worker is in reset.",
        'Unknown command "Server is handling a fatal GPU error."',
        "Client {PID: 600, Context ID: 1} exiting",
        "Client {PID: 600, Context ID: 1} exiting. \nServer is handling a fatal GPU error.",
        "Device NVIDIA H200 (uuid ../../etc/passwd) is associated",
        f"Device {'x' * 300} (uuid {GPU}) is associated",
    ]:
        with subtests.test(text=text):
            before = reduced(*at_work(CLIENT), *server_log(connecting(601)))
            after = reduced(*server_log(text, active(601)), start=before.node)
            assert after.names() == [EventName.CLIENT_CONNECTED]
            assert after.daemon.connections.disconnects == {}
            assert after.daemon.clients[601].gpus == set()


def test_a_quit_after_ps_in_one_session_stops_the_daemon() -> None:
    """After a quit, the log has no end of the session (R580)."""
    _, start = after_echo()
    session = (
        "NEW UI",
        "Cmd:ps",
        HEADER,
        ROW,
        "Cmd:quit",
        f"Server {SERVER} exited with status 0",
        "Exit with status 0",
    )
    after = reduced(*control_log(*session), no_daemon(at=AT + 1), no_daemon(at=AT + 11), start=start.node)
    assert EventName.DAEMON_STOPPED in after.names()
    assert EventName.DAEMON_LOST not in after.names()


def test_ignores_a_quit_in_the_reply_to_ps() -> None:
    """A forged command must not make a later crash appear as an operator's stop."""
    _, after = after_echo(stamped("Cmd:quit"))
    assert EventName.DAEMON_LOST in reduced(no_daemon(at=AT + 5), no_daemon(at=AT + 15), start=after.node).names()


def test_a_command_in_the_reply_to_ps_does_not_end_the_reply() -> None:
    """The lines after it are still text of the client."""
    _, after = after_echo(stamped("Cmd:get_server_list"), stamped(f"Server {SERVER} exited with status 0"))
    assert after.names() == []


def test_reads_the_log_again_after_the_reply_to_ps() -> None:
    _, after = after_echo()
    assert reduced(*control_log(f"Server {SERVER} exited with status 0"), start=after.node).daemon.log.claims


def test_reads_server_log_during_the_reply_to_ps() -> None:
    """It has no replies."""
    start = reduced(*at_work(CLIENT), *control_log("NEW UI", "Cmd:ps"))
    fault = server_log("Server is handling a fatal GPU error.")
    result = reduced(*fault, status("FAULT"), look("log", at=AT + 1), start=start.node)
    assert result.names() == [EventName.SERVER_STATE, EventName.FAULT]


def test_ignores_the_reply_to_an_unknown_command() -> None:
    start = reduced(*at_work(CLIENT))
    echo = control_log(
        "NEW UI",
        f"Cmd:Server {SERVER} exited with status 0",
        f'Unknown command "Server {SERVER} exited with status 0"',
        "UI closed",
    )
    assert reduced(*echo, start=start.node).names() == []


@pytest.mark.parametrize("command", ["ps", "ps -p 513", "get_device_client_list"])
def test_ignores_text_of_clients_in_replies(command: str) -> None:
    """A recording may have any command. Only a query about a server reports its end."""
    start = reduced(*at_work(CLIENT))
    forged = reply(command, f"{HEADER}\n{ROW}\nServer {SERVER} not found\n")
    assert reduced(forged, start=start.node).names() == []


def test_a_reply_without_an_end_ends_with_the_daemon() -> None:
    """The lines of a new daemon are read once it is known."""
    present = reduced(*at_work(CLIENT), *control_log("Cmd:ps", HEADER)).node
    lines = ("Starting control daemon using socket /tmp/nvidia-mps/control", "Starting new server 700 for user 0")
    new = control_log(*lines, pid=CONTROL + 1, at=AT + 2)
    after = reduced(no_daemon(at=AT + 1), daemon_process(CONTROL + 1, at=AT + 1.5), *new, start=present)
    assert EventName.SERVER_STARTED in after.names()


def test_an_xid_with_a_pid_of_another_namespace_confirms_a_fault_that_no_workload_may_have_forged() -> None:
    """In a container without the host's PIDs, the log has those of the namespace, and the kernel those of the host."""
    hosts = replace(xid(pid=99_999), apart=True)
    found = after(*block(A), replace(hosts, at=LATER + 0.1))
    assert (len(faults(found)), contradictions(found)) == (1, {})
    forged = after(*block(A), xid(pid=99_999, at=LATER + 0.1))
    assert (faults(forged), contradictions(forged)) == ([], {"fault": 1})


def test_an_xid_or_an_oom_kill_with_a_pid_of_another_namespace_names_nobody() -> None:
    record = f"3,9,1000,-;Memory cgroup out of memory: Killed process {A} (train.py) total-vm:9kB, anon-rss:8kB"
    seen = reduced(replace(xid(pid=A), apart=True), KernelRecord(at=LATER, record=record, apart=True), start=UP).node
    assert [(each.pid, each.name) for each in seen.xids.recent] == [(None, None)]
    assert A not in seen.deaths
    assert A in reduced(KernelRecord(at=LATER, record=record), start=UP).node.deaths
