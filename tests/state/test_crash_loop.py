"""Consecutive servers that exit before they are ready: one event and one count for each crash loop."""

from dataclasses import replace

import pytest

from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import Observation, ProcessState
from exporter.model.reason import Reason, ReasonCode
from exporter.state.servers import LOOP_END_SECONDS, LOOP_SECONDS, LOOP_STARTS
from tests.builders import (
    AT,
    CONTROL,
    DAEMON,
    active,
    at_work,
    control_log,
    daemon_process,
    exited,
    look,
    no_daemon,
    reduced,
    server_log,
    servers,
)

FIRST = 92
NO_DRIVER = "Driver initialization failed with: out of memory"
UP = reduced(*at_work()).node


def starts(server: int, *, at: float, uid: int = 1001) -> tuple[Observation, ...]:
    return control_log(f"Starting new server {server} for user {uid}", at=at)


def ready(server: int, *, at: float) -> tuple[Observation, ...]:
    return control_log(f"NEW SERVER {server}: Ready", at=at)


def exits(server: int, *, at: float, status: int = 1) -> tuple[Observation, ...]:
    """The daemon logs that the server exited."""
    return control_log(f"Server {server} exited with status {status}", at=at)


def fails(server: int, *, at: float) -> tuple[Observation, ...]:
    """The server fails to start (measured, R580). Its log is read before the daemon's."""
    words = ("Startup", "Initializing server process", NO_DRIVER, "Failed to start : out of memory")
    fatal = control_log("Server encountered a fatal exception. Shutting down", at=at + 0.1)
    own = server_log(*words, server=server, at=at)
    return (*own, *starts(server, at=at), *fatal, *exits(server, at=at + 0.1))


def failures(count: int, *, at: float = AT + 5, every: float = 0.13) -> tuple[Observation, ...]:
    """Failed starts as fast as daemons have tried (2024). Each PID is three higher."""
    return tuple(each for number in range(count) for each in fails(FIRST + 3 * number, at=at + number * every))


def loops(*seen: Observation, start: Node = UP) -> list[Event]:
    """Return the events, after a check that the counter agrees."""
    result = reduced(*seen, start=start)
    found = result.of(EventName.SERVER_CRASH_LOOP)
    assert result.daemon.totals.crash_loops - start.daemons[DAEMON].totals.crash_loops == len(found)
    return found


def test_reports_a_crash_loop_at_the_third_failed_start() -> None:
    assert loops(*failures(LOOP_STARTS - 1)) == []
    (loop,) = loops(*failures(LOOP_STARTS))
    assert (loop.daemon, loop.server, loop.pid) == (DAEMON, None, None)
    assert loop.reason == Reason(ReasonCode.SERVERS_EXITED_EARLY, seconds=1.0, count=3)
    assert loop.at == pytest.approx(AT + 5.36)


def test_reports_a_crash_loop_that_one_collection_reads() -> None:
    (loop,) = loops(*(replace(each, at=AT + 6) for each in failures(6, every=0.02)))
    assert (loop.at, loop.reason) == (AT + 6, Reason(ReasonCode.SERVERS_EXITED_EARLY, seconds=1.0, count=3))


def test_reports_a_long_crash_loop_once() -> None:
    assert len(loops(*failures(200))) == 1


def test_stores_a_bounded_number_of_starts() -> None:
    began = reduced(*failures(200), start=UP).daemon.connections.failed_starts.started_at
    assert len(began) == LOOP_STARTS


def test_few_failed_starts_in_a_minute_are_no_crash_loop() -> None:
    assert loops(*failures(10, every=LOOP_SECONDS / 2 + 1)) == []
    assert len(loops(*failures(10, every=LOOP_SECONDS / 2 - 1))) == 1


def test_reports_another_crash_loop_after_a_server_was_ready() -> None:
    again = (*starts(700, at=AT + 10), *ready(700, at=AT + 10.1), *failures(LOOP_STARTS, at=AT + 20))
    assert len(loops(*failures(LOOP_STARTS), *again)) == 2


def test_reports_another_crash_loop_after_a_pause() -> None:
    last = AT + 5.36
    assert len(loops(*failures(LOOP_STARTS), *failures(LOOP_STARTS, at=last + LOOP_END_SECONDS + 1))) == 2
    assert len(loops(*failures(LOOP_STARTS), *failures(LOOP_STARTS, at=last + LOOP_END_SECONDS - 1))) == 1


def server_that_exits(between: str, number: int) -> tuple[Observation, ...]:
    """Lines of a server that exits for another reason than a failed start."""
    server, at = FIRST + 3 * number, AT + 5 + number
    what: dict[str, tuple[Observation, ...]] = {
        "ready": ready(server, at=at + 0.1),
        "ready by its own log": server_log("Server has started", server=server, at=at + 0.1),
        "with a client": server_log(active(), server=server, at=at + 0.1),
        "shut down": control_log(f"Try shutting down server {server}, backoff is disabled", at=at + 0.1),
        "forced": control_log(f"Force shutting down server {server}", at=at + 0.1),
        "quit": control_log("NEW UI", "Cmd:quit", at=at + 0.1),
    }
    return (*starts(server, at=at), *what[between], *exits(server, at=at + 0.2, status=0))


def test_a_server_that_was_ready_or_shut_down_is_no_failed_start(subtests: pytest.Subtests) -> None:
    for why in ["ready", "ready by its own log", "with a client", "shut down", "forced", "quit"]:
        with subtests.test(why=why):
            assert loops(*(each for number in range(4) for each in server_that_exits(why, number))) == []


def test_servers_without_a_logged_start_are_no_failed_starts() -> None:
    lists = (servers(*pids, at=AT + 5 + second) for second, pids in enumerate(((92,), (95,), (98,), (101,))))
    assert loops(*lists) == []


def test_any_source_may_report_the_exits() -> None:
    lives = (
        each
        for number in range(LOOP_STARTS)
        for each in (*starts(92 + number, at=AT + 5), exited(92 + number, at=AT + 6))
    )
    assert len(loops(*lives)) == 1


def test_servers_that_end_with_their_daemon_are_no_failed_starts() -> None:
    seen = (*starts(92, at=AT + 5), *starts(95, at=AT + 5), *starts(98, at=AT + 5), no_daemon(at=AT + 6))
    assert loops(*seen) == []


def test_recovery_from_a_fault_does_not_end_a_crash_loop() -> None:
    """A server of another user may recover while one cannot start."""
    block = server_log("Server is handling a fatal GPU error.", "The following devices will be reset:", "0", at=AT + 6)
    over = server_log("Destroy server context on device 0", at=AT + 6.1)
    assert len(loops(*failures(LOOP_STARTS), *block, *over, *failures(LOOP_STARTS, at=AT + 7))) == 1


def test_does_not_report_a_crash_loop_that_only_the_log_shows() -> None:
    """No child of the daemon has ended since."""
    present = reduced(daemon_process(), reaped(3), start=UP).node
    result = reduced(*failures(LOOP_STARTS), reaped(3, at=AT + 10), look("log", at=AT + 18), start=present)
    assert result.of(EventName.SERVER_CRASH_LOOP) == []
    assert result.daemon.totals.log_contradictions["crash_loop"] == 1


def test_a_crash_loop_before_the_first_process_reading_is_no_contradiction() -> None:
    """An exporter that has just started reads the process a moment later than the log (measured, R580)."""
    present = reduced(daemon_process(), look("log", at=AT + 4), start=UP).node
    result = reduced(*failures(LOOP_STARTS), reaped(3, at=AT + 6.5), look("log", at=AT + 18), start=present)
    assert result.of(EventName.SERVER_CRASH_LOOP) == []
    assert result.daemon.totals.log_contradictions["crash_loop"] == 0


def test_page_faults_of_the_daemons_children_confirm_a_crash_loop() -> None:
    present = reduced(daemon_process(), reaped(3), start=UP).node
    result = reduced(*failures(LOOP_STARTS), reaped(5, at=AT + 6), start=present)
    assert len(result.of(EventName.SERVER_CRASH_LOOP)) == 1


def reaped(page_faults: int, at: float = AT) -> ProcessState:
    """The page faults of the daemon's ended children."""
    return ProcessState(at=at, pid=CONTROL, start_ticks=CONTROL * 100, state="S", children_page_faults=page_faults)
