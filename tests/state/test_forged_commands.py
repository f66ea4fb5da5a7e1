"""No command line of a client can forge an event, although the daemon writes it into control.log.

The reply to `ps` has the command lines of clients, and the daemon writes every reply into its log. A line break in a
command line begins a new line there.
"""

from dataclasses import replace
from itertools import product

import pytest

from exporter.model.event import EventName
from exporter.model.observation import LogLine
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    FAULT_BLOCK,
    GPU,
    SERVER,
    Reduced,
    active,
    at_work,
    connecting,
    control_log,
    daemon_process,
    look,
    no_daemon,
    reduced,
    reply,
    server_log,
    stamped,
    status,
)

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
    story = reduced(*fault, status("FAULT"), look("log", at=AT + 1), start=start.node)
    assert story.names() == [EventName.SERVER_STATE, EventName.FAULT]


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
