"""The exporter's commands must appear in the daemon's log. Otherwise the log is blocked and not followed."""

from collections.abc import Iterable
from typing import Any

import pytest

from exporter.model.daemon import Connections, DaemonState
from exporter.model.event import EventName
from exporter.model.node import Node
from exporter.model.observation import DaemonProcess, LogFile, LogGap, LogLine, Observation, SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.server import ServerState
from exporter.model.settings import PollIntervals
from exporter.model.values import replace
from exporter.reducer import reduce
from exporter.report.document_parts import Severity
from exporter.report.node_findings import findings
from exporter.report.problems import DaemonProblem, NodeProblem
from exporter.state import poll_schedule
from exporter.state.log_files import with_log_tail, without_reused_pids
from exporter.state.servers import in_crash_loop
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    HANGS,
    SERVER,
    UNREADABLE,
    Reduced,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    failure,
    look,
    process,
    reduced,
    refusal,
    reply,
    server_log,
    servers,
    stamped,
    status,
    with_fields,
)
from tests.state.test_poll_schedule import healthy
from tests.status import commands_of

# The tests state these values, so that they notice a change of the program's constants.
LOG_SECONDS = 1.0
LOOP_END_SECONDS = 300.0
LOOP_STARTS = 3

LIST = "get_server_list"
FOLLOWED = tuple(LogFile(at=AT, daemon=DAEMON, file=file) for file in ("control.log", "server.log"))
KNOWN = (*FOLLOWED, daemon_process(), process(SERVER, uid=0), *at_work(CLIENT), *control_log(f"Cmd:{LIST}"))
START = reduced(*KNOWN).node
"""A daemon with a followed log that has a command of the exporter."""


def missing(at: float) -> tuple[Observation, ...]:
    """A command is answered. Six seconds later, its line was not read."""
    return servers(SERVER, at=at), look("log", at=at + 6)


BLOCKED = (*missing(AT + 10), *missing(AT + 20))


def is_blocked(*seen: Observation, start: Node = START) -> bool:
    return reduced(*seen, start=start).daemon.log.own_commands.blocked_since is not None


def test_two_consecutive_missing_commands_show_a_blocked_log() -> None:
    result = reduced(*BLOCKED, start=START)
    assert result.names() == [EventName.LOG_BLOCKED]
    assert result.daemon.log.own_commands.blocked_since == AT + 26


def test_one_missing_command_proves_nothing() -> None:
    assert not is_blocked(*missing(AT + 10))
    assert not is_blocked(servers(SERVER, at=AT + 10), status("ACTIVE", at=AT + 10), look("log", at=AT + 16))


def test_a_late_line_counts_as_logged() -> None:
    for at in (AT + 9.9985, AT + 10, AT + 15):
        seen = sorted((servers(SERVER, at=AT + 10), *control_log(f"Cmd:{LIST}", at=at)), key=lambda each: each.at)
        assert not is_blocked(*missing(AT + 2), *seen, *missing(AT + 20))


def test_a_logged_command_shows_that_the_log_is_no_longer_blocked() -> None:
    result = reduced(*BLOCKED, *control_log(f"Cmd:{LIST}", at=AT + 40), start=START)
    assert result.names() == [EventName.LOG_BLOCKED, EventName.LOG_UNBLOCKED]
    assert result.daemon.log_followed


def test_other_lines_do_not_show_that_the_log_is_no_longer_blocked(subtests: pytest.Subtests) -> None:
    for line in [
        *control_log("Accepting connection...", at=AT + 40),
        *control_log("Cmd:quit", at=AT + 40),
        *control_log(f"Cmd:{LIST}", at=AT + 40, pid=CONTROL + 1),
        LogLine(at=AT + 40, daemon=DAEMON, file="server.log", line=stamped(f"Cmd:{LIST}")),
        LogLine(at=AT + 40, daemon=DAEMON, file="control.log", line=f"Cmd:{LIST}"),
        LogLine(at=AT + 40, daemon=DAEMON, file="control.log", line=stamped(f"Cmd:{LIST}", "Server", CONTROL)),
    ]:
        with subtests.test(line=line):
            assert is_blocked(*BLOCKED, line)


def test_a_log_that_never_had_a_command_may_be_of_another_daemon() -> None:
    never = reduced(*FOLLOWED, daemon_process(), process(SERVER, uid=0), *at_work(CLIENT)).node
    assert not is_blocked(*BLOCKED, start=never)


def test_an_earlier_log_proves_nothing_about_the_next_daemon() -> None:
    """The next daemon may write elsewhere."""
    after = (exited(CONTROL, at=AT + 2), daemon_process(900, at=AT + 4), servers(SERVER, at=AT + 5))
    assert not is_blocked(process(CONTROL, uid=0), *after, *BLOCKED)


def test_the_first_logged_command_of_the_next_daemon_ends_the_block() -> None:
    """A new daemon creates a new fifo."""
    after = (exited(CONTROL, at=AT + 32), daemon_process(900, at=AT + 34), servers(at=AT + 35))
    blocked = reduced(process(CONTROL, uid=0), *BLOCKED, *after, start=START)
    assert not blocked.daemon.log_followed
    assert reduced(*control_log(f"Cmd:{LIST}", at=AT + 35.1, pid=900), start=blocked.node).daemon.log_followed


def test_does_not_expect_unanswered_commands_in_the_log(subtests: pytest.Subtests) -> None:
    for answer in [
        reply("-v", "version: 13000", at=AT + 20),
        reply("ps", "PID\n", at=AT + 20),
        reply("get_default_device_pinned_mem_limit 0", at=AT + 20),
        servers(at=AT + 20),
        refusal(at=AT + 20),
        reply(LIST, exit_code=None, seconds=5.0, at=AT + 20),
    ]:
        with subtests.test(answer=answer):
            assert not is_blocked(*missing(AT + 10), answer, look("log", at=AT + 26))


def test_expects_the_empty_list_of_an_idle_daemon_in_the_log() -> None:
    idle = reduced(*FOLLOWED, daemon_process(), servers(), *control_log(f"Cmd:{LIST}")).node
    seen = (servers(at=AT + 10), look("log", at=AT + 16), servers(at=AT + 20), look("log", at=AT + 26))
    assert is_blocked(*seen, start=idle)


def test_no_command_is_missing_while_lines_are_unread() -> None:
    """A flood of lines may delay the exporter."""
    behind = SourceReading(at=AT + 25, name="log", seconds=0.1, more=True)
    answered, looked = missing(AT + 20)
    assert not is_blocked(*missing(AT + 10), answered, behind, looked)
    assert is_blocked(*missing(AT + 10), answered, behind, looked, look("log", at=AT + 31))


def test_unread_lines_of_another_daemon_do_not_matter() -> None:
    answered, looked = missing(AT + 20)
    other = SourceReading(at=AT + 25, name="log", seconds=0.1, more=True, daemon="/other")
    assert is_blocked(*missing(AT + 10), answered, other, looked)


def test_no_command_is_missing_while_no_collection_ends() -> None:
    """The log directory may hang. A collection that began before is reported, and has read nothing."""
    hangs = SourceReading(at=AT + 40, name="log", seconds=19.0, problem=HANGS)
    assert not is_blocked(*missing(AT + 10), servers(SERVER, at=AT + 20), hangs)


def test_a_command_may_be_among_lost_lines() -> None:
    answered, looked = missing(AT + 20)
    assert not is_blocked(
        *missing(AT + 10), answered, LogGap(at=AT + 22, daemon=DAEMON, file="control.log", lines=9), looked
    )


@pytest.mark.parametrize("problem", [UNREADABLE, None])
def test_an_unreadable_log_is_not_blocked(problem: Reason | None) -> None:
    gone = LogFile(at=AT + 1, daemon=DAEMON, file="control.log", problem=problem, followed=problem is not None)
    assert not is_blocked(gone, *BLOCKED)


def test_missing_lines_of_the_journal_prove_nothing() -> None:
    line = replace(control_log(f"Cmd:{LIST}")[0], file="stdout")
    journal = reduced(LogFile(at=AT, daemon=DAEMON, file="stdout"), daemon_process(), *at_work(CLIENT)[1:], line).node
    assert not is_blocked(*BLOCKED, start=journal)


def test_forged_commands_hide_a_blocked_log_only_while_they_continue() -> None:
    """No process can write into a blocked log, because the daemon no longer reads the fifo."""
    forged = control_log(f"Cmd:{LIST}", at=AT + 11)
    assert not is_blocked(servers(SERVER, at=AT + 10), *forged, look("log", at=AT + 16), *missing(AT + 20))
    assert is_blocked(servers(SERVER, at=AT + 10), *forged, *missing(AT + 20), *missing(AT + 30))


# -- delays and queries ------------------------------------------------------------------------------------------------


def seconds_to_blocked(answer: str) -> float:
    """Return the time until the exporter's own queries show a blocked log. The log is collected every half second."""
    start = reduced(look("log", at=AT + 1), start=START).node
    present, at = start, AT + 1.0
    while present.daemons[DAEMON].log.own_commands.blocked_since is None:
        at += 0.5
        present = replace(present, at=at)
        for command in poll_schedule.commands(present, DAEMON, PollIntervals()):
            present, _ = reduce(present, replace(healthy(command, at), stdout=answer or healthy(command, at).stdout))
        present, _ = reduce(present, look("log", at=at))
        assert at < AT + 300
    return at - (AT + 1)


def test_a_blocked_log_is_reported_within_60_seconds() -> None:
    assert seconds_to_blocked("") <= 60


def test_sends_another_query_at_once_after_a_missing_line() -> None:
    after = reduced(*missing(AT + 10), start=START).node
    assert poll_schedule.commands(after, DAEMON, PollIntervals()) == (LIST,)
    again = reduced(servers(SERVER, at=AT + 16.5), start=after).node
    assert LIST not in poll_schedule.commands(again, DAEMON, PollIntervals())


def test_queries_a_daemon_with_a_blocked_log_as_one_without_a_log() -> None:
    blocked = reduced(*BLOCKED, status("ACTIVE", at=AT + 80), clients(CLIENT, at=AT + 80), start=START).node
    assert LIST in poll_schedule.commands(replace(blocked, at=AT + 81), DAEMON, PollIntervals())


# A log of which a part is lost or unread: the lines that were read count, and the others cause no suspect.


GAP = LogGap(at=AT + 1, daemon=DAEMON, file="server.log", lines=1)
UP = reduced(*at_work(CLIENT), daemon_process()).node


def states(result: Reduced) -> list[str | None]:
    return [event.state for event in result.of(EventName.SERVER_STATE)]


def test_a_fault_log_block_without_its_end_is_one_fault(subtests: pytest.Subtests) -> None:
    for read in range(1, len(FAULT_BLOCK) + 1):
        with subtests.test(read=read):
            cut = reduced(*server_log(*FAULT_BLOCK[:read]), status("FAULT"), GAP, start=UP)
            later = reduced(
                *server_log("Destroy server context on device 0", f"Client process {CLIENT} disconnected"),
                exited(CLIENT),
                start=cut.node,
            )

            assert states(cut) == ["fault"]
            assert cut.daemon.totals.log_lines_lost == {"server.log": 1}
            assert CLIENT not in later.daemon.clients


@pytest.mark.parametrize("unread", range(1, len(FAULT_BLOCK)))
def test_a_fault_log_block_without_its_beginning_has_no_suspect(unread: int) -> None:
    cut = reduced(GAP, *server_log(*FAULT_BLOCK[unread:]), start=UP)

    assert states(cut) == []
    assert cut.daemon.servers[SERVER].state is ServerState.ACTIVE
    assert set(cut.daemon.clients) == {CLIENT}


def test_the_next_fault_after_a_truncated_block_is_another_one() -> None:
    says_so = (status("FAULT"), GAP, *server_log("Destroy server context on device 0"), status("ACTIVE", at=AT + 0.5))
    first = reduced(*server_log(*FAULT_BLOCK[:3]), *says_so, start=UP)
    second = reduced(*server_log(*FAULT_BLOCK, at=AT + 60), status("FAULT", at=AT + 60), start=first.node)

    assert states(first) + states(second) == ["fault", "active", "fault"]
    assert second.daemon.totals.faults == 2


def test_an_unread_part_of_the_log_may_report_a_quit() -> None:
    ended = AT + 10
    unread = replace(look("log", at=ended + 0.2), more=True)
    result = reduced(exited(CONTROL, at=ended), unread, start=UP)
    assert not result.of(EventName.DAEMON_LOST)

    traces = daemon_process(None, left=False, at=ended + 0.4)
    quit_told = reduced(*control_log("Exit with status 0", at=ended + 0.3), traces, start=result.node)
    assert quit_told.names(EventName.SERVER_EXITED, EventName.CLIENT_DISCONNECTED) == [EventName.DAEMON_STOPPED]


# The log of a daemon in the foreground: in the journal, lines are late or missing; in a file they are not.


BY_JOURNAL = LogFile(at=AT, daemon=DAEMON, file="stdout")


def line(text: str, at: float = AT) -> LogLine:
    return LogLine(at=at, daemon=DAEMON, file="stdout", line=stamped(text))


def test_a_quit_in_the_journal_counts_after_the_daemon_ended() -> None:
    """The log files, which do not exist, were collected long before."""
    ended = AT + 10
    result = reduced(
        BY_JOURNAL,
        *at_work(),
        daemon_process(),
        exited(CONTROL, at=ended),
        look("log", at=ended + 0.2),
        line("Cmd:quit", at=ended + 0.3),
        line("Exit with status 0", at=ended + 0.3),
        daemon_process(None, left=False, at=ended + 0.4),
    )
    assert result.daemon.state is DaemonState.STOPPED
    assert not result.of(EventName.DAEMON_LOST)


def test_without_a_quit_the_daemon_is_lost_after_a_delay() -> None:
    ended = AT + 10
    start = reduced(BY_JOURNAL, *at_work(), daemon_process(), exited(CONTROL, at=ended), look("log", at=ended + 0.2))
    assert not start.of(EventName.DAEMON_LOST)
    result = reduced(look("log", at=ended + LOG_SECONDS + 0.1), start=start.node)
    assert [each.at for each in result.of(EventName.DAEMON_LOST)] == [ended]


def test_follows_a_journal_without_files() -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    assert not reduced(absent, BY_JOURNAL).daemon.log_followed
    assert reduced(absent, BY_JOURNAL, line("UI closed")).daemon.log_followed


def test_does_not_follow_an_unreadable_journal() -> None:
    refused = LogFile(at=AT + 1, daemon=DAEMON, file="stdout", problem=failure("no permission"))
    daemon = reduced(BY_JOURNAL, line("UI closed"), refused).daemon
    assert not daemon.log_followed
    assert not daemon.in_journal


def test_counts_lost_lines_from_0() -> None:
    assert reduced(BY_JOURNAL).daemon.totals.log_lines_lost == {"stdout": 0}
    gaps = (LogGap(at=AT, daemon=DAEMON, file="stdout", lines=lines) for lines in (71, 1))
    assert reduced(BY_JOURNAL, *gaps).daemon.totals.log_lines_lost == {"stdout": 72}


def test_reports_no_missing_files_if_stdout_is_a_file() -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    process = replace(daemon_process(), foreground=True, stdout_in_file=True)
    daemon = reduced(absent, process, LogFile(at=AT, daemon=DAEMON, file="stdout.log"), process).daemon

    assert daemon.log.problems == {"stdout.log": None}
    assert not daemon.in_journal


def to_pipe(**changes: Any) -> DaemonProcess:
    """Return a foreground daemon that writes to a pipe, with these changes."""
    usual = {"foreground": True, "stdout_in_file": False, "stdout_in_journal": False}
    return replace(daemon_process(), **usual | changes)


@pytest.mark.parametrize("unit", [None, "user@1000.service", "mps.service"])
def test_reports_a_log_that_goes_to_a_pipe_as_not_followed(unit: str | None) -> None:
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    daemon = reduced(*at_work(), absent, to_pipe(unit=unit)).daemon

    assert daemon.log.problems == {"stdout": Reason(ReasonCode.LOG_TO_STDOUT)}
    assert not daemon.log_followed


def test_reports_no_lost_log_of_another_daemon(subtests: pytest.Subtests) -> None:
    for written in [
        to_pipe(unit="mps.service", stdout_in_journal=True),
        to_pipe(unit="mps.service", stdout_in_journal=None),
        to_pipe(stdout_in_file=None, stdout_in_journal=None),
        to_pipe(stdout_in_file=True),
        to_pipe(foreground=False),
    ]:
        with subtests.test(process=written):
            assert not any(reduced(*at_work(), written).daemon.log.problems.values())


def test_a_daemon_that_logs_to_a_file_replaces_one_that_logged_to_a_pipe() -> None:
    later = to_pipe(foreground=False, at=AT + 1, pid=CONTROL + 1)

    assert reduced(*at_work(), to_pipe(), later).daemon.log.problems == {}


def test_removes_files_that_are_not_logs_of_the_daemon() -> None:
    """Even if they were collected once more."""
    absent = LogFile(at=AT, daemon=DAEMON, file="control.log", problem=failure("control.log does not exist"))
    left = replace(absent, problem=None, followed=False)

    assert reduced(BY_JOURNAL, absent, left).daemon.log.problems == {"stdout": None}


def test_a_file_of_a_removed_daemon_does_not_restore_it() -> None:
    result = reduced(LogFile(at=AT, daemon="gone", file="control.log", followed=False))

    assert "gone" not in result.node.daemons


# What `status` without a service and `doctor` learn from the end of a log: failed starts, and waiting clients.


UP_TAIL = reduced(*at_work()).node
BUSY = reduced(*at_work(CLIENT), process()).node
Lines = list[tuple[str, str]]


def control(*texts: str, at: float = AT, role: str = "Control") -> Lines:
    return [("control.log", stamped(text, role, at=at)) for text in texts]


def fails(server: int, *, at: float = AT, uid: int = 1001) -> Lines:
    """A server starts and exits, with the lines of a node on which none could start (2024)."""
    return control(
        f"Starting new server {server} for user {uid}",
        "Server encountered a fatal exception. Shutting down",
        f"Server {server} exited with status 1",
        at=at,
    )


def failures(count: int = 6) -> Lines:
    return [line for number in range(count) for line in fails(92 + 3 * number, at=AT + 0.1 * number)]


def tail(lines: Iterable[tuple[str, str]], node: Node = UP_TAIL) -> Connections:
    return with_log_tail(node, DAEMON, lines).daemons[DAEMON].connections


def queued(pid: int, uid: int) -> Lines:
    return control(f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")


def forwarded(pid: int, uid: int) -> Lines:
    return control(f"NEW CLIENT {pid} from user {uid}: Server already exists")


STAYS = control(f"Server {SERVER} has 1 active worker threads. Server will not shutdown.")
OWN_QUERY = ("NEW UI", "Cmd:get_server_list", "UI closed")


def test_reports_servers_that_exited_before_they_were_ready() -> None:
    reason = [("server.log", stamped("Failed to start : invalid argument", "Legacy Server", pid=92 + 3 * 5))]
    node = with_log_tail(UP_TAIL, DAEMON, (*reason, *failures(6), *control(*OWN_QUERY, at=AT + 20)))

    failed = node.daemons[DAEMON].connections.failed_starts
    assert (failed.count, failed.uid, failed.words) == (6, 1001, "Failed to start : invalid argument")
    assert failed.last_exit_at == pytest.approx(node.at - 19.5)
    (finding,) = findings(node, node.at)
    assert (finding.problem, finding.severity) == (DaemonProblem.SERVER_CRASH_LOOP, Severity.CRITICAL)
    assert "6 in a row, the last one for UID 1001: Failed to start : invalid argument" in finding.text
    assert commands_of(finding)[0].startswith(f"tail -n 30 {DAEMON}/log/server.log ")


def test_an_old_crash_loop_is_remembered_and_not_reported() -> None:
    node = with_log_tail(UP_TAIL, DAEMON, (*failures(), *control(*OWN_QUERY, at=AT + LOOP_END_SECONDS + 10)))

    assert node.daemons[DAEMON].connections.failed_starts.reported
    assert not in_crash_loop(node.daemons[DAEMON], node.at)
    assert findings(node, node.at) == ()


def test_reports_no_crash_loop(subtests: pytest.Subtests) -> None:
    for lines in [
        failures(LOOP_STARTS - 1),
        [*failures(), *control("Starting new server 700 for user 1001", "NEW SERVER 700: Ready")],
        [*failures(), *control("Starting control daemon using socket /tmp/nvidia-mps/control")],
        control(*(line[35:] for _, line in failures()), role="Server"),
        [("server.log", line) for _, line in failures()],
        [*control("Cmd:ps"), *failures()],
        [*control("Cmd:quit"), *failures()],
        [("control.log", "\0" * 50), ("control.log", "")],
    ]:
        with subtests.test(lines=lines):
            assert not tail(lines).failed_starts.reported


def test_reads_the_reason_in_the_only_log_of_a_foreground_daemon() -> None:
    lines = failures(LOOP_STARTS)
    words = stamped("MPS is only supported on 64-bit Linux platforms", "Server", pid=92 + 3 * (LOOP_STARTS - 1))
    lines[-1:-1] = [("stdout.log", words)]

    assert tail(("stdout.log", line) for _, line in lines).failed_starts.words.startswith("MPS is only supported on")


def test_clients_are_admitted_when_their_server_is_ready() -> None:
    ready = control(f"Starting new server {SERVER} for user 1001", f"NEW SERVER {SERVER}: Ready")

    assert tail(queued(600, 1001)).queued == {600: 1001}
    assert tail((*queued(600, 1001), *ready)).queued == {}
    assert tail((*queued(600, 1001), *ready, *queued(601, 1002), *forwarded(602, 1001))).queued == {601: 1002}
    assert tail((*queued(601, 1002), *forwarded(601, 1002))).queued == {}
    assert tail((*queued(601, 1002), *control("Start"))).queued == {}


def test_reports_clients_that_wait_for_another_users_clients() -> None:
    waiting = tail((*queued(0, 1000), *queued(0, 1000), *STAYS, *queued(0, 1002)))

    assert sorted(waiting.queued.values()) == [1000, 1000, 1002]
    assert len(waiting.waiting) == 2
    node = with_log_tail(BUSY, DAEMON, (*queued(0, 1000), *STAYS))
    assert [each.problem for each in findings(node, node.at)] == [NodeProblem.CLIENTS_WAITING]


@pytest.mark.parametrize(
    ("changed", "waits"),
    [
        ({}, True),
        ({"runtime__protocol": 2}, True),
        ({"runtime__protocol": 3}, False),
        ({"runtime__process": replace(daemon_process(), options=("-M",))}, False),
    ],
)
def test_users_wait_for_each_other_only_if_the_daemon_has_one_server_for_one_user(
    changed: dict[str, object], waits: bool
) -> None:
    daemon = with_fields(UP_TAIL.daemons[DAEMON], **changed)
    found = tail((*queued(600, 1002), *STAYS), replace(UP_TAIL, daemons={DAEMON: daemon}))
    assert (found.queued, found.waiting.keys()) == ({600: 1002}, {600} if waits else set())


def test_the_queue_has_a_bound() -> None:
    many = [line for pid in range(600, 600 + 1030) for line in queued(pid, 1002)]
    assert tail(many).queued.keys() == set(range(600, 600 + 1024))


def test_a_pid_of_another_process_is_no_waiting_client() -> None:
    lines = (*queued(CLIENT, 1001), *queued(601, 1002), *queued(0, 1003), *STAYS)
    for node, uids in ((BUSY, [1001, 1003]), (reduced(process(uid=7), start=BUSY).node, [1003])):
        kept = without_reused_pids(with_log_tail(node, DAEMON, lines)).daemons[DAEMON].connections
        assert sorted(kept.queued.values()) == uids
        assert kept.waiting.keys() == kept.queued.keys()


def test_pids_of_another_namespace_identify_no_process() -> None:
    foreign = replace(BUSY, daemons={DAEMON: with_fields(BUSY.daemons[DAEMON], runtime__in_foreign_namespace=True)})
    found = tail((*failures(), *queued(CLIENT, 1002), *STAYS), foreign)

    assert [(pid < 0, uid) for pid, uid in found.queued.items()] == [(True, 1002)]
    assert found.failed_starts.reported


def test_changes_nothing_else() -> None:
    before = reduced(servers(SERVER), start=BUSY).node
    lines = (*failures(), *control("Status of client {PID: 9, Context ID: 1} is ACTIVE", role="Server"), *STAYS)
    after = with_log_tail(before, DAEMON, lines)

    daemons = before.daemons[DAEMON], after.daemons[DAEMON]
    assert replace(daemons[1], connections=daemons[0].connections) == daemons[0]
    assert daemons[1].servers[SERVER].state is ServerState.ACTIVE
