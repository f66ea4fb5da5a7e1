"""What `status` without a service and `doctor` learn from the end of a log: failed starts, and waiting clients."""

from collections.abc import Iterable

import pytest

from exporter.model.daemon import Connections
from exporter.model.node import Node
from exporter.model.server import ServerState
from exporter.model.values import replace
from exporter.report.findings import findings
from exporter.report.problem import FindingCode, Severity
from exporter.state.log_files import with_log_tail, without_reused_pids
from exporter.state.servers import LOOP_END_SECONDS, LOOP_STARTS, in_crash_loop
from tests.builders import AT, CLIENT, DAEMON, SERVER, at_work, process, reduced, servers, stamped, with_fields

UP = reduced(*at_work()).node
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


def tail(lines: Iterable[tuple[str, str]], node: Node = UP) -> Connections:
    return with_log_tail(node, DAEMON, lines).daemons[DAEMON].connections


def queued(pid: int, uid: int) -> Lines:
    return control(f"NEW CLIENT {pid} from user {uid}: Server is not ready, push client to pending list")


def forwarded(pid: int, uid: int) -> Lines:
    return control(f"NEW CLIENT {pid} from user {uid}: Server already exists")


STAYS = control(f"Server {SERVER} has 1 active worker threads. Server will not shutdown.")
OWN_QUERY = ("NEW UI", "Cmd:get_server_list", "UI closed")


def test_reports_servers_that_exited_before_they_were_ready() -> None:
    reason = [("server.log", stamped("Failed to start : invalid argument", "Legacy Server", pid=92 + 3 * 5))]
    node = with_log_tail(UP, DAEMON, (*reason, *failures(6), *control(*OWN_QUERY, at=AT + 20)))

    failed = node.daemons[DAEMON].connections.failed_starts
    assert (failed.count, failed.uid, failed.words) == (6, 1001, "Failed to start : invalid argument")
    assert failed.last_exit_at == pytest.approx(node.at - 19.5)
    (finding,) = findings(node, node.at)
    assert (finding.code, finding.severity, finding.fails) == (
        FindingCode.SERVER_CRASH_LOOP,
        Severity.CRITICAL,
        True,
    )
    assert "6 in a row, the last one for UID 1001: Failed to start : invalid argument" in finding.text
    assert finding.commands == ("cuda-mps-exporter doctor",)


def test_an_old_crash_loop_is_remembered_and_not_reported() -> None:
    node = with_log_tail(UP, DAEMON, (*failures(), *control(*OWN_QUERY, at=AT + LOOP_END_SECONDS + 10)))

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
    assert [each.code for each in findings(node, node.at)] == [FindingCode.CLIENTS_WAITING]


def test_a_pid_of_another_process_is_no_waiting_client() -> None:
    lines = (*queued(CLIENT, 1001), *queued(601, 1002), *queued(0, 1003), *STAYS)
    for node, uids in ((BUSY, [1001, 1003]), (reduced(process(uid=7), start=BUSY).node, [1003])):
        kept = without_reused_pids(with_log_tail(node, DAEMON, lines)).daemons[DAEMON].connections
        assert sorted(kept.queued.values()) == uids
        assert kept.waiting == kept.queued.keys()


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
