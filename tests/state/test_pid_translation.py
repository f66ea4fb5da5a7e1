"""PIDs of a daemon in another PID namespace are translated, or become negative."""

from dataclasses import fields, replace
from itertools import product
from typing import get_args, get_type_hints

import pytest

from exporter.model.event import EventName
from exporter.model.observation import ControlReply, LogLine, Observation
from exporter.parse import log_message
from exporter.parse.control_reply import translate_command
from exporter.parse.log_line import PID_FIELDS, LogEntry, numbers_in_line, pids_in_line, translate_entry, translate_pid
from tests.builders import AT, DAEMON, clients, reduced, servers, status

INNER = {7: 70_007, 20: 70_020, 31: 70_031}
NO_PIDS = {"uid", "context", "limit", "priority", "status", "value", "device", "protocol"}
"""Fields with numbers that are not PIDs."""


def entry(message: log_message.Message, pid: int = 7) -> LogEntry:
    return LogEntry("Control", pid, message)


def foreign_entry(*seen: Observation) -> list[Observation]:
    """The same from a daemon in another PID namespace."""
    return [replace(each, pids=INNER) if isinstance(each, LogLine | ControlReply) else each for each in seen]


def line(text: str, role: str = "Server", pid: int = 20) -> LogLine:
    file = "control.log" if role == "Control" else "server.log"
    return LogLine(
        at=AT, daemon=DAEMON, file=file, line=f"[2026-11-20 15:08:45.147 {role} {pid:5d}] {text}", pids=INNER
    )


# -- log lines ---------------------------------------------------------------------------------------------------------


def test_translates_the_pids_of_a_line() -> None:
    assert translate_entry(entry(log_message.ServerStarting(20, 1000)), INNER) == entry(
        log_message.ServerStarting(70_020, 1000), 70_007
    )
    assert translate_entry(entry(log_message.ClientActive(31)), INNER) == entry(
        log_message.ClientActive(70_031), 70_007
    )
    assert translate_entry(entry(log_message.ServerReady(None)), INNER) == entry(log_message.ServerReady(None), 70_007)


def test_does_not_translate_other_numbers() -> None:
    assert translate_entry(entry(log_message.ClientNotAccepted(31, 7)), INNER).message == log_message.ClientNotAccepted(
        70_031, 7
    )
    assert translate_entry(entry(log_message.ClientLimitReached(20)), INNER).message == log_message.ClientLimitReached(
        20
    )
    assert translate_entry(
        entry(log_message.ServerContextDestroyed(7)), INNER
    ).message == log_message.ServerContextDestroyed(7)
    assert translate_entry(entry(log_message.BareNumber(7)), INNER).message == log_message.BareNumber(7)


def test_an_unknown_pid_becomes_negative() -> None:
    assert translate_entry(entry(log_message.ClientActive(99), pid=98), INNER) == entry(
        log_message.ClientActive(-99), -98
    )


def test_pid_0_remains_0(subtests: pytest.Subtests) -> None:
    for pid, pids in product([0, -1_333_654_781], [None, INNER, {}]):
        with subtests.test(pid=pid, pids=pids):
            assert translate_entry(entry(log_message.ClientActive(pid)), pids).message == log_message.ClientActive(0)


def test_changes_nothing_in_this_namespace() -> None:
    here = entry(log_message.ServerStarting(20, 1000))

    assert translate_entry(here, None) is here


def message_classes(base: type[log_message.Message]) -> list[type[log_message.Message]]:
    return [base, *(each for kind in base.__subclasses__() for each in message_classes(kind))]


def test_every_number_of_a_message_is_known_to_be_a_pid_or_not() -> None:
    """A new message must show by field names which of its numbers are PIDs."""
    unknown = {
        (kind.__name__, part.name)
        for kind in message_classes(log_message.Message)
        for part in fields(kind)
        if int in (get_type_hints(kind)[part.name], *get_args(get_type_hints(kind)[part.name]))
        and part.name not in {*PID_FIELDS, *NO_PIDS}
    }
    assert unknown == set()


# -- PIDs that the collector translates --------------------------------------------------------------------------------


def test_finds_the_pids_of_a_line() -> None:
    assert pids_in_line(line("Client {PID: 31, Context ID: 1} connected").line) == (20, 31)
    assert pids_in_line(line("NEW CLIENT 31 from user 1000: Server already exists", "Control", 7).line) == (7, 31)
    assert pids_in_line(line("Status of client {PID: -5, Context ID: 1} is ACTIVE").line) == (20,)
    assert pids_in_line("no line of a log 31") == ()


def test_every_number_of_a_line_except_its_time_may_be_a_pid() -> None:
    assert numbers_in_line(line("peculiar 31 of 4").line) == (20, 31, 4)
    assert numbers_in_line("31") == (31,)


def test_translates_the_pids_of_a_command(subtests: pytest.Subtests) -> None:
    for command, spoken in [
        ("get_server_list", "get_server_list"),
        ("get_server_status 70020", "get_server_status 20"),
        ("get_client_list -44", "get_client_list 44"),
        ("get_server_status 99", "get_server_status 0"),
        ("terminate_client 70020 70031", "terminate_client 20 31"),
        ("get_device_pinned_mem_limit 70020 0", "get_device_pinned_mem_limit 20 0"),
        ("get_default_device_pinned_mem_limit 0", "get_default_device_pinned_mem_limit 0"),
        ("set_active_thread_percentage 70020 40", "set_active_thread_percentage 20 40"),
        ("set_device_pinned_mem_limit 70020 0 2G", "set_device_pinned_mem_limit 20 0 2G"),
    ]:
        with subtests.test(command=command, spoken=spoken):
            inner = {70_020: 20, 70_031: 31, -44: 44}

            assert translate_command(command, inner.get) == spoken


# -- the reducer -------------------------------------------------------------------------------------------------------


def test_the_node_has_pids_of_this_namespace() -> None:
    story = reduced(
        *foreign_entry(
            servers(20),
            status("ACTIVE", server=70_020, at=AT + 1),
            clients(31, server=70_020, at=AT + 2),
        )
    )

    assert set(story.daemon.servers) == {70_020}
    assert {pid: client.server for pid, client in story.daemon.clients.items()} == {70_031: 70_020}


def test_logs_and_lists_identify_the_same_clients() -> None:
    story = reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 31, Context ID: 1} is ACTIVE"),
        *foreign_entry(clients(31, server=70_020, at=AT + 2)),
    )

    assert set(story.daemon.clients) == {70_031}
    assert len(story.of(EventName.CLIENT_CONNECTED)) == 1


def test_counts_a_client_with_an_unknown_pid() -> None:
    story = reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 99, Context ID: 1} is ACTIVE"),
    )
    assert set(story.daemon.clients) == {-99}

    story = reduced(line("Client process 99 disconnected"), start=story.node)
    assert story.daemon.clients == {}
    assert story.daemon.totals.disconnected["exit"] == 1


def test_translates_the_affected_clients_of_a_fault() -> None:
    """A bare number is a PID in the list of clients, but not in the list of devices."""
    start = reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 31, Context ID: 1} is ACTIVE"),
    )
    story = reduced(
        line("Client {PID: 31, Context: 1} encountered a fatal GPU error."),
        line("Server is handling a fatal GPU error."),
        line("Client {PID: 31, Context ID: 1} on device 7 to be torn down"),
        line("The following devices will be reset:"),
        line("7"),
        line("The following client process have a sticky error set:"),
        line("31"),
        line("99"),
        start=start.node,
    )
    block = story.daemon.servers[70_020].fault_block
    assert block is not None
    assert (block.named, block.torn_down, block.sticky_error) == (70_031, {70_031}, (70_031, -99))
    assert block.devices == story.daemon.servers[70_020].devices_to_reset == {7}


def test_translates_disconnected_clients() -> None:
    start = reduced(
        line("Starting new server 20 for user 0", "Control", 20),
        line("NEW SERVER 20: Ready", "Control", 7),
        line("Status of client {PID: 31, Context ID: 1} is ACTIVE"),
    )
    story = reduced(
        line("MPS server requesting client {PID: 31, Context ID: 1} to exit"),
        line("Client {PID: 31, Context ID: 1} exiting. Number of active client contexts is 1."),
        line("Client {PID: 99, Context ID: 1} exiting. Worker is in reset. Number of active client contexts is 0."),
        start=start.node,
    )
    leavings = story.daemon.connections.disconnects
    assert {pid: each.server for pid, each in leavings.items()} == {70_031: 70_020, -99: 70_020}
    assert leavings[70_031].terminated
    assert story.of(EventName.CLIENT_FAULT_CONTAINED) == []


def test_translates_a_missing_server() -> None:
    story = reduced(*foreign_entry(servers(20), status("Server 20 not found", server=70_020, at=AT + 1)))

    assert story.daemon.servers == {}


def test_does_not_confuse_a_foreign_pid_with_a_process_here() -> None:
    assert translate_pid(441, {}) == -441
    assert translate_pid(441, None) == 441
