"""Servers that exit before they are ready, again and again: an event and a count, once for each such time."""

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
    RECORDINGS,
    Recorded,
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
    """The daemon starts a server; it says so before the server is there."""
    return control_log(f"Starting new server {server} for user {uid}", at=at)


def ready(server: int, *, at: float) -> tuple[Observation, ...]:
    """A server serves."""
    return control_log(f"NEW SERVER {server}: Ready", at=at)


def exits(server: int, *, at: float, status: int = 1) -> tuple[Observation, ...]:
    """A server is no more."""
    return control_log(f"Server {server} exited with status {status}", at=at)


def fails(server: int, *, at: float) -> tuple[Observation, ...]:
    """A server begins and cannot start (measured, R580): its log is read before the daemon's."""
    words = ("Startup", "Initializing server process", NO_DRIVER, "Failed to start : out of memory")
    fatal = control_log("Server encountered a fatal exception. Shutting down", at=at + 0.1)
    own = server_log(*words, server=server, at=at)
    return (*own, *starts(server, at=at), *fatal, *exits(server, at=at + 0.1))


def failures(count: int, *, at: float = AT + 5, every: float = 0.13) -> tuple[Observation, ...]:
    """So many, as fast as daemons have tried (2024): each is three PIDs further."""
    return tuple(each for number in range(count) for each in fails(FIRST + 3 * number, at=at + number * every))


def loops(*seen: Observation, start: Node = UP) -> list[Event]:
    """The events; the count must be theirs."""
    story = reduced(*seen, start=start)
    found = story.of(EventName.SERVER_CRASH_LOOP)
    assert story.daemon.totals.crash_loops - start.daemons[DAEMON].totals.crash_loops == len(found)
    return found


def test_it_is_told_with_the_third_start_that_fails() -> None:
    assert loops(*failures(LOOP_STARTS - 1)) == []
    (loop,) = loops(*failures(LOOP_STARTS))
    assert (loop.daemon, loop.server, loop.pid) == (DAEMON, None, None)
    assert loop.reason == Reason(ReasonCode.SERVERS_EXITED_EARLY, seconds=1.0, count=3)
    assert loop.at == pytest.approx(AT + 5.36)


def test_that_may_all_be_read_at_one_look() -> None:
    (loop,) = loops(*(replace(each, at=AT + 6) for each in failures(6, every=0.02)))
    assert (loop.at, loop.reason) == (AT + 6, Reason(ReasonCode.SERVERS_EXITED_EARLY, seconds=1.0, count=3))


def test_none_of_its_lines_is_unrecognised() -> None:
    assert set(reduced(*failures(LOOP_STARTS), start=UP).daemon.totals.log_lines_unrecognized.values()) == {0}


def test_once_however_long_it_goes_on() -> None:
    assert len(loops(*failures(200))) == 1


def test_it_is_remembered_in_little_room() -> None:
    began = reduced(*failures(200), start=UP).daemon.connections.failed_starts.started_at
    assert len(began) == LOOP_STARTS


def test_few_in_a_minute_are_none() -> None:
    assert loops(*failures(10, every=LOOP_SECONDS / 2 + 1)) == []
    assert len(loops(*failures(10, every=LOOP_SECONDS / 2 - 1))) == 1


def test_it_is_another_one_after_a_server_got_ready() -> None:
    again = (*starts(700, at=AT + 10), *ready(700, at=AT + 10.1), *failures(LOOP_STARTS, at=AT + 20))
    assert len(loops(*failures(LOOP_STARTS), *again)) == 2


def test_and_after_the_starts_have_ceased_for_a_while() -> None:
    last = AT + 5.36
    assert len(loops(*failures(LOOP_STARTS), *failures(LOOP_STARTS, at=last + LOOP_END_SECONDS + 1))) == 2
    assert len(loops(*failures(LOOP_STARTS), *failures(LOOP_STARTS, at=last + LOOP_END_SECONDS - 1))) == 1


def life(between: str, number: int) -> tuple[Observation, ...]:
    """One server's, which exits for a reason other than that it could not start."""
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


@pytest.mark.parametrize("why", ["ready", "ready by its own log", "with a client", "shut down", "forced", "quit"])
def test_a_server_that_served_or_was_told_to_leave_has_not_failed(why: str) -> None:
    assert loops(*(each for number in range(4) for each in life(why, number))) == []


def test_servers_that_were_never_seen_to_start_tell_nothing() -> None:
    lists = (servers(*pids, at=AT + 5 + second) for second, pids in enumerate(((92,), (95,), (98,), (101,))))
    assert loops(*lists) == []


def test_it_does_not_matter_who_tells_that_they_are_gone() -> None:
    lives = (
        each
        for number in range(LOOP_STARTS)
        for each in (*starts(92 + number, at=AT + 5), exited(92 + number, at=AT + 6))
    )
    assert len(loops(*lives)) == 1


def test_servers_that_end_with_their_daemon_have_not_failed() -> None:
    seen = (*starts(92, at=AT + 5), *starts(95, at=AT + 5), *starts(98, at=AT + 5), no_daemon(at=AT + 6))
    assert loops(*seen) == []


def test_a_fault_that_is_over_is_no_new_start() -> None:
    """A server of another user may be well while one cannot start."""
    block = server_log("Server is handling a fatal GPU error.", "The following devices will be reset:", "0", at=AT + 6)
    over = server_log("Destroy server context on device 0", at=AT + 6.1)
    assert len(loops(*failures(LOOP_STARTS), *block, *over, *failures(LOOP_STARTS, at=AT + 7))) == 1


@pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)
def test_a_recording_has_one_where_a_server_could_not_start(recorded: Recorded) -> None:
    real = int(recorded.truth.get("fault_kind") == "crash-loop")
    assert len(recorded.story.of(EventName.SERVER_CRASH_LOOP)) == real
    assert recorded.story.daemon.totals.crash_loops == real


def test_a_loop_that_only_the_log_shows_is_none() -> None:
    """The daemon has waited for no child since: no server has ended."""
    present = reduced(daemon_process(), reaped(3), start=UP).node
    story = reduced(*failures(LOOP_STARTS), reaped(3, at=AT + 10), look("log", at=AT + 18), start=present)
    assert story.of(EventName.SERVER_CRASH_LOOP) == []
    assert story.daemon.totals.log_contradictions["crash_loop"] == 1


def test_a_loop_that_began_before_the_daemons_process_was_seen_contradicts_nothing() -> None:
    """An exporter that has just started reads the process a moment later than the log (measured, R580)."""
    present = reduced(daemon_process(), look("log", at=AT + 4), start=UP).node
    story = reduced(*failures(LOOP_STARTS), reaped(3, at=AT + 6.5), look("log", at=AT + 18), start=present)
    assert story.of(EventName.SERVER_CRASH_LOOP) == []
    assert story.daemon.totals.log_contradictions["crash_loop"] == 0


def test_a_loop_is_shown_by_the_page_faults_of_the_daemons_children() -> None:
    present = reduced(daemon_process(), reaped(3), start=UP).node
    story = reduced(*failures(LOOP_STARTS), reaped(5, at=AT + 6), start=present)
    assert len(story.of(EventName.SERVER_CRASH_LOOP)) == 1


def reaped(page_faults: int, at: float = AT) -> ProcessState:
    """The daemon's ended children had so many page faults."""
    return ProcessState(at=at, pid=CONTROL, start_ticks=CONTROL * 100, state="S", children_page_faults=page_faults)
