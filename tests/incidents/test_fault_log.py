"""Fault blocks in a server's log, complete or incomplete."""

from collections.abc import Iterable

import pytest

from exporter.model.event import EventName
from exporter.model.observation import GpuEvent, LogLine
from exporter.model.server import BlockSection, FaultLogBlock, Server
from exporter.parse.log_line import Pids, parse_log_line, translate_entry
from exporter.state.log_lines import has_new_block, read_block_line
from tests.builders import (
    AT,
    CLIENT,
    DAEMON,
    GPU,
    RECORDINGS,
    SERVER,
    Recorded,
    Reduced,
    at_work,
    clients,
    exited,
    look,
    reduced,
    scenario,
    server_log,
    stamped,
    status,
)

# The tests state these values, so that they notice a change of the program's constants.
MOST_DEVICES = 64
LONGEST_SECONDS = 10.0
NAMED_BEFORE_SECONDS = 1.0
MOST_CLIENTS = 1024

A, B, C = 2045, 2046, 2047

BEGIN = "Server is handling a fatal GPU error."
R580 = (
    f"Client {{PID: {A}, Context: 1}} encountered a fatal GPU error.",
    BEGIN,
    f"Client {{PID: {B}, Context ID: 1}} on device 0 to be torn down",
    f"Client {{PID: {A}, Context ID: 1}} on device 0 to be torn down",
    f"All clients belonging to error trigging process {B} will be torn down",
    f"Client {{PID: {B}, Context ID: 1}} on the error-trigging process {B} to be torn down",
    f"All clients belonging to error trigging process {A} will be torn down",
    f"Client {{PID: {A}, Context ID: 1}} on the error-trigging process {A} to be torn down",
    "The following devices will be reset:",
    "0",
    "1",
    "The following client process have a sticky error set:",
    str(B),
    str(A),
)
"""A block of 2026 with one client on each of two devices."""

R515 = (
    f"Volta MPS: {BEGIN}",
    f"Volta MPS: status of client {{{A}, 1}} is INACTIVE",
    f"Volta MPS: status of client {{{B}, 1}} is INACTIVE",
    "Volta MPS: The following devices",
    "0",
    "1",
    "Volta MPS: The following clients have a sticky error set:",
    str(B),
    str(A),
)
"""A block of 2022 (NVIDIA's guide), which names no client."""


def after(*texts: str, at: float = AT, start: Server | None = None, pids: Pids = None) -> Server:
    server = Server(pid=SERVER, started_at=AT - 60) if start is None else start
    for text in texts:
        entry = parse_log_line(stamped(text, "Server", SERVER, at))
        assert entry is not None
        server = read_block_line(server, at, translate_entry(entry, pids), pids)
    return server


def block_of(server: Server) -> FaultLogBlock:
    assert server.fault_block is not None
    return server.fault_block


def lists(block: FaultLogBlock) -> tuple[set[int], tuple[int, ...]]:
    """Return the devices, and the affected clients in the order of the log."""
    return set(block.devices), block.sticky_error


# -- whole ---------------------------------------------------------------------------------------------------------


def test_reads_named_and_affected_clients_and_devices() -> None:
    block = block_of(after(*R580))
    assert (block.at, block.stamp) == (AT, "2026-11-20 15:08:45.147")
    assert (block.named, block.torn_down) == (A, {A, B})
    assert lists(block) == ({0, 1}, (B, A))


def test_reads_a_block_of_2022() -> None:
    block = block_of(after(*R515))
    assert (block.named, block.torn_down) == (None, set())
    assert lists(block) == ({0, 1}, (B, A))


def faults(recorded: Recorded) -> list[FaultLogBlock]:
    """Return all blocks of a recording in their final form."""
    last: dict[tuple[float, str], FaultLogBlock] = {}
    servers: dict[int, Server] = {}
    for seen in recorded.observations:
        entry = parse_log_line(seen.line) if isinstance(seen, LogLine) else None
        if entry is None or entry.by_daemon:
            continue
        known = servers.get(entry.pid, Server(pid=entry.pid, started_at=seen.at))
        servers[entry.pid] = read_block_line(known, seen.at, entry)
        block = servers[entry.pid].fault_block
        if block is not None:
            last[block.at, block.stamp] = block
    return list(last.values())


@pytest.mark.parametrize("recorded", RECORDINGS, ids=repr)
def test_a_recording_has_a_block_for_each_fault_with_the_clients_that_had_the_error(
    recorded: Recorded,
) -> None:
    """Affected clients, and the cause if it was alive. An assert, a kill between kernels and an exit write no block."""
    truth = recorded.truth
    victims = set(truth["victims"]) if "fault_kind" in truth else set()
    if not victims:
        assert faults(recorded) == []
        return
    culprits = {truth["culprit"], *truth.get("also_culprits", ())}
    alive = {pid for pid in culprits if truth["clients"][str(pid)].get("cuda_errors")}
    assert {pid for block in faults(recorded) for pid in block.sticky_error} == victims | alive
    for block in faults(recorded):
        assert block.torn_down == set(block.sticky_error)
        assert block.named is None or block.named in block.sticky_error
    none_named = any(block.named is None for block in faults(recorded))
    assert none_named == (truth["fault_kind"] in ("trap", "misaligned", "kill, then trap"))


def test_on_two_gpus_both_are_reset() -> None:
    (block,) = faults(scenario("two_gpus_fault_on_both"))
    assert block.devices == {0, 1}


# -- in pieces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [R580, R515], ids=["R580", "R515"])
def test_an_incomplete_block_has_what_was_written(lines: tuple[str, ...]) -> None:
    for end in range(len(lines)):
        block = after(*lines[:end]).fault_block
        if block is not None:
            assert block.devices <= {0, 1}
            assert block.torn_down | set(block.sticky_error) <= {A, B}
        assert (block is None) == (not any(BEGIN in line for line in lines[:end]))


@pytest.mark.parametrize("lines", [R580, R515], ids=["R580", "R515"])
def test_duplicated_lines_change_nothing(lines: tuple[str, ...]) -> None:
    assert after(*(line for line in lines for _ in range(2))) == after(*lines)
    assert after(*lines, *lines).fault_block == after(*lines).fault_block


def test_a_lost_line_adds_no_client(subtests: pytest.Subtests) -> None:
    """Without the list of affected clients, those to be torn down count. PIDs and devices are not mixed up."""
    for missing in range(len(R580)):
        with subtests.test(missing=missing):
            block = block_of(after(*R580[:missing], *R580[missing + 1 :]))
            assert block.named in (None, A)
            assert block.torn_down == {A, B}
            assert set(block.sticky_error) <= {A, B}
            assert block.devices <= {0, 1}


def test_without_its_first_line_it_starts_with_the_clients_to_be_torn_down() -> None:
    before = after(R580[0])
    server = after(R580[2], start=before)
    assert has_new_block(before, server)
    assert block_of(server).named == A
    assert lists(block_of(after(*R580[3:], start=server))) == ({0, 1}, (B, A))


@pytest.mark.parametrize("rest", [R580[8:], R515[3:]], ids=["R580", "R515"])
def test_lists_alone_are_no_block(rest: tuple[str, ...]) -> None:
    assert after(*rest).fault_block is None


def test_lines_after_a_truncation_are_not_part_of_its_lists() -> None:
    block = block_of(after(*R580[:10], "Client process 9 disconnected", "1", str(B)))
    assert lists(block) == ({0}, ())


def test_empty_lines_do_not_end_a_list() -> None:
    request = "Received new client request for {PID: 4, Context ID: 669254896}"
    lines = (line for text in R580 for line in (text, request))
    assert lists(block_of(after(*lines))) == ({0, 1}, (B, A))


def test_a_number_before_and_after_the_lists_is_in_neither() -> None:
    block = block_of(after(*R580[:2], "3", *R580[2:], f"Client process {B} disconnected", "4711"))
    assert lists(block) == ({0, 1}, (B, A))
    assert block.section is BlockSection.NOTHING


# -- one after another ---------------------------------------------------------------------------------------------


def test_a_first_line_that_is_read_again_starts_no_block() -> None:
    server = after(*R580)
    again = after(BEGIN, start=server)
    assert not has_new_block(server, again)
    assert lists(block_of(again)) == lists(block_of(server))


def test_a_later_first_line_starts_an_empty_block() -> None:
    block = block_of(after(BEGIN, at=AT + 0.4, start=after(*R580)))
    assert lists(block) == (set(), ())
    assert (block.named, block.torn_down) == (None, set())


def test_lines_long_after_a_block_do_not_belong_to_it() -> None:
    """The first lines of a later fault may be lost."""
    server = after(*R580)
    later = after(*R580[8:11], R580[11], "9", at=AT + LONGEST_SECONDS + 1, start=server)
    assert later.fault_block == server.fault_block


def test_a_named_client_belongs_to_the_fault_that_follows_at_once() -> None:
    """The first line of its own fault may be lost."""
    named = f"Client {{PID: {C}, Context: 1}} encountered a fatal GPU error."
    before = after(named)
    assert block_of(after(BEGIN, at=AT + NAMED_BEFORE_SECONDS, start=before)).named == C
    assert block_of(after(BEGIN, at=AT + NAMED_BEFORE_SECONDS + 0.1, start=before)).named is None
    assert block_of(after(BEGIN, at=AT - 1, start=before)).named is None


def test_a_named_client_belongs_to_one_fault_only() -> None:
    assert block_of(after(BEGIN, at=AT + 0.3, start=after(*R580))).named is None


# -- bounds and strangers ------------------------------------------------------------------------------------------


def test_the_number_of_clients_in_a_block_is_bounded() -> None:
    torn = (f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in range(1, 3000))
    block = block_of(after(BEGIN, *torn, R580[8], *map(str, range(3000)), R580[11], *map(str, range(1, 3000))))
    assert (len(block.torn_down), len(block.devices), len(block.sticky_error)) == (
        MOST_CLIENTS,
        MOST_DEVICES,
        MOST_CLIENTS,
    )


def test_an_invalid_pid_is_not_affected() -> None:
    invalid = "Client {PID: -1333654781, Context ID: 1} on device 0 to be torn down"
    block = block_of(after(BEGIN, invalid, R580[8], "0", R580[11], "0", pids={}))
    assert (block.torn_down, block.sticky_error, block.devices) == (set(), (), {0})
    assert after("Client {PID: 0, Context: 1} encountered a fatal GPU error.", pids={}).fatal_error is None


def test_pids_of_another_namespace_are_translated_and_devices_are_not() -> None:
    """Both lists have bare numbers, so a device can equal a PID."""
    block = block_of(after(*R580, pids={A: 70_000, 0: 66, 1: 77}))
    assert (block.named, block.torn_down) == (70_000, {70_000, -B})
    assert lists(block) == ({0, 1}, (-B, 70_000))


# -- what a server becomes by it -----------------------------------------------------------------------------------


def wrote(*texts: str, at: float = AT + 5, start: Reduced | None = None) -> Reduced:
    """Return these lines, an Xid that confirms the fault, and the exits of the affected clients."""
    present = reduced(*at_work(A, B, CLIENT)) if start is None else start
    xid = GpuEvent(at=at, type=8, xid=31, gpu=GPU)
    return reduced(xid, *server_log(*texts, at=at), *(exited(pid, at=at) for pid in (A, B)), start=present.node)


def states(stories: Iterable[Reduced]) -> list[str | None]:
    return [event.state for result in stories for event in result.of(EventName.SERVER_STATE)]


RESET = ("Destroy server context on device 0 (NVIDIA H200)", "Destroy server context on device 1 (NVIDIA H200)")


@pytest.mark.parametrize("lines", [R580, R515], ids=["R580", "R515"])
def test_the_server_recovers_when_the_contexts_on_all_devices_are_destroyed(lines: tuple[str, ...]) -> None:
    faulted = wrote(*lines)
    half = wrote(RESET[0], at=AT + 6, start=faulted)
    assert states((faulted, half)) == ["fault"]
    assert states([wrote(RESET[1], at=AT + 7, start=half)]) == ["active"]


def test_lines_that_are_read_again_do_not_delay_recovery() -> None:
    half = wrote(*R580, RESET[0])
    assert states([wrote(*R580, RESET[1], start=half)]) == ["active"]


def test_lines_of_an_ended_fault_do_not_start_it_again() -> None:
    over = wrote(*R580, *RESET)
    again = wrote(*R580, start=over)
    assert states((over, again)) == ["fault", "active"]


def test_a_fault_whose_first_line_was_lost_is_one() -> None:
    assert states([wrote(*R580[2:], *RESET)]) == ["fault", "active"]


def test_without_devices_a_fault_ends_when_the_daemon_reports_it() -> None:
    begun = wrote(BEGIN, RESET[0])
    faulted = reduced(look("log", at=AT + 7), start=begun.node)
    assert states([begun, faulted]) == ["fault"]
    answered = reduced(status("ACTIVE", at=AT + 8), clients(CLIENT, at=AT + 8), start=faulted.node)
    assert states([answered]) == ["active"]
    assert answered.node.daemons[DAEMON].servers[SERVER].devices_to_reset is None
