"""A fault's block in a server's log: what it tells, read line by line, whole or in pieces."""

from collections.abc import Iterable

import pytest

from exporter.incidents.fault_log import LONGEST_SECONDS, NAMED_BEFORE_SECONDS, has_new_block, read_block_line
from exporter.model.event import EventName
from exporter.model.observation import GpuEvent, LogLine
from exporter.model.server import BlockSection, FaultLogBlock, Server
from exporter.parse.log_line import parse_log_line
from exporter.state.clients import MOST_CLIENTS
from exporter.state.gpus import MOST_DEVICES
from exporter.state.transition import Pids, translate_entry
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
"""As it was written in 2026, with one client on each of two devices."""

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
"""As in 2022 (NVIDIA's guide), where nobody is named."""


def after(*texts: str, at: float = AT, start: Server | None = None, pids: Pids = None) -> Server:
    """A server that has written these lines."""
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
    """The devices, and the victims in the order in which they were told."""
    return set(block.devices), block.sticky_error


# -- whole ---------------------------------------------------------------------------------------------------------


def test_it_tells_who_is_named_torn_down_and_hit_and_which_devices_are_reset() -> None:
    block = block_of(after(*R580))
    assert (block.at, block.stamp) == (AT, "2026-11-20 15:08:45.147")
    assert (block.named, block.torn_down) == (A, {A, B})
    assert lists(block) == ({0, 1}, (B, A))


def test_in_2022_it_told_less_in_other_words() -> None:
    block = block_of(after(*R515))
    assert (block.named, block.torn_down) == (None, set())
    assert lists(block) == ({0, 1}, (B, A))


def faults(recorded: Recorded) -> list[FaultLogBlock]:
    """All blocks that the program reads in a recording, each as it was at last."""
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
def test_a_recording_has_one_where_a_fault_struck_and_its_victims_are_those_who_had_the_error(
    recorded: Recorded,
) -> None:
    """The victims, and the culprit where it was alive; an assert, a kill between kernels and an exit write none."""
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
    nobody_named = any(block.named is None for block in faults(recorded))
    assert nobody_named == (truth["fault_kind"] in ("trap", "misaligned", "kill, then trap"))


def test_on_two_gpus_both_are_reset() -> None:
    (block,) = faults(scenario("two_gpus_fault_on_both"))
    assert block.devices == {0, 1}


# -- in pieces -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("lines", [R580, R515], ids=["R580", "R515"])
def test_cut_at_any_line_it_tells_what_was_written_until_then_and_nothing_else(lines: tuple[str, ...]) -> None:
    for end in range(len(lines)):
        block = after(*lines[:end]).fault_block
        if block is not None:
            assert block.devices <= {0, 1}
            assert block.torn_down | set(block.sticky_error) <= {A, B}
        assert (block is None) == (not any(BEGIN in line for line in lines[:end]))


@pytest.mark.parametrize("lines", [R580, R515], ids=["R580", "R515"])
def test_each_line_twice_tells_the_same(lines: tuple[str, ...]) -> None:
    assert after(*(line for line in lines for _ in range(2))) == after(*lines)
    assert after(*lines, *lines).fault_block == after(*lines).fault_block


@pytest.mark.parametrize("missing", range(len(R580)))
def test_any_line_may_be_lost_and_nobody_is_made_up(missing: int) -> None:
    """Where the list of victims is not told, it is who is torn down; a PID is no device, nor a device a PID."""
    block = block_of(after(*R580[:missing], *R580[missing + 1 :]))
    assert block.named in (None, A)
    assert block.torn_down == {A, B}
    assert set(block.sticky_error) <= {A, B}
    assert block.devices <= {0, 1}


def test_without_its_first_line_it_begins_with_whom_it_tears_down() -> None:
    before = after(R580[0])
    server = after(R580[2], start=before)
    assert has_new_block(before, server)
    assert block_of(server).named == A
    assert lists(block_of(after(*R580[3:], start=server))) == ({0, 1}, (B, A))


@pytest.mark.parametrize("rest", [R580[8:], R515[3:]], ids=["R580", "R515"])
def test_lists_alone_are_no_block(rest: tuple[str, ...]) -> None:
    assert after(*rest).fault_block is None


def test_truncated_in_the_midst_what_follows_is_not_taken_for_its_lists() -> None:
    block = block_of(after(*R580[:10], "Client process 9 disconnected", "1", str(B)))
    assert lists(block) == ({0}, ())


def test_lines_that_say_nothing_do_not_end_a_list() -> None:
    request = "Received new client request for {PID: 4, Context ID: 669254896}"
    lines = (line for text in R580 for line in (text, request))
    assert lists(block_of(after(*lines))) == ({0, 1}, (B, A))


def test_a_number_before_and_after_the_lists_is_in_neither() -> None:
    block = block_of(after(*R580[:2], "3", *R580[2:], f"Client process {B} disconnected", "4711"))
    assert lists(block) == ({0, 1}, (B, A))
    assert block.section is BlockSection.NOTHING


# -- one after another ---------------------------------------------------------------------------------------------


def test_a_begin_that_is_read_again_begins_nothing() -> None:
    server = after(*R580)
    again = after(BEGIN, start=server)
    assert not has_new_block(server, again)
    assert lists(block_of(again)) == lists(block_of(server))


def test_a_later_one_is_another_fault_of_which_nothing_is_told_yet() -> None:
    block = block_of(after(BEGIN, at=AT + 0.4, start=after(*R580)))
    assert lists(block) == (set(), ())
    assert (block.named, block.torn_down) == (None, set())


def test_what_is_written_long_after_it_belongs_to_none() -> None:
    """The first lines of a later fault may be lost: its victims are not those of the one before."""
    server = after(*R580)
    later = after(*R580[8:11], R580[11], "9", at=AT + LONGEST_SECONDS + 1, start=server)
    assert later.fault_block == server.fault_block


def test_who_was_named_belongs_to_the_fault_that_follows_at_once() -> None:
    """The begin of the fault that he was named for may be lost."""
    named = f"Client {{PID: {C}, Context: 1}} encountered a fatal GPU error."
    before = after(named)
    assert block_of(after(BEGIN, at=AT + NAMED_BEFORE_SECONDS, start=before)).named == C
    assert block_of(after(BEGIN, at=AT + NAMED_BEFORE_SECONDS + 0.1, start=before)).named is None
    assert block_of(after(BEGIN, at=AT - 1, start=before)).named is None


def test_who_was_named_once_is_not_named_for_the_next_one_too() -> None:
    assert block_of(after(BEGIN, at=AT + 0.3, start=after(*R580))).named is None


# -- bounds and strangers ------------------------------------------------------------------------------------------


def test_it_holds_no_more_than_a_server_can_have() -> None:
    torn = (f"Client {{PID: {pid}, Context ID: 1}} on device 0 to be torn down" for pid in range(1, 3000))
    block = block_of(after(BEGIN, *torn, R580[8], *map(str, range(3000)), R580[11], *map(str, range(1, 3000))))
    assert (len(block.torn_down), len(block.devices), len(block.sticky_error)) == (
        MOST_CLIENTS,
        MOST_DEVICES,
        MOST_CLIENTS,
    )


def test_who_is_nobody_is_not_hit() -> None:
    nobody = "Client {PID: -1333654781, Context ID: 1} on device 0 to be torn down"
    block = block_of(after(BEGIN, nobody, R580[8], "0", R580[11], "0", pids={}))
    assert (block.torn_down, block.sticky_error, block.devices) == (set(), (), {0})
    assert after("Client {PID: 0, Context: 1} encountered a fatal GPU error.", pids={}).fatal_error is None


def test_a_daemon_in_another_pid_namespace_speaks_of_its_own_pids_but_devices_are_devices() -> None:
    """A victim is a bare number; so is a device, which may be somebody's PID as well."""
    block = block_of(after(*R580, pids={A: 70_000, 0: 66, 1: 77}))
    assert (block.named, block.torn_down) == (70_000, {70_000, -B})
    assert lists(block) == ({0, 1}, (-B, 70_000))


# -- what a server becomes by it -----------------------------------------------------------------------------------


def wrote(*texts: str, at: float = AT + 5, start: Reduced | None = None) -> Reduced:
    """The server writes this; an Xid confirms the fault, and the victims' processes end with it."""
    present = reduced(*at_work(A, B, CLIENT)) if start is None else start
    xid = GpuEvent(at=at, type=8, xid=31, gpu=GPU)
    return reduced(xid, *server_log(*texts, at=at), *(exited(pid, at=at) for pid in (A, B)), start=present.node)


def states(stories: Iterable[Reduced]) -> list[str | None]:
    return [event.state for story in stories for event in story.of(EventName.SERVER_STATE)]


RESET = ("Destroy server context on device 0 (NVIDIA H200)", "Destroy server context on device 1 (NVIDIA H200)")


@pytest.mark.parametrize("lines", [R580, R515], ids=["R580", "R515"])
def test_the_server_is_well_when_the_contexts_on_all_its_devices_are_destroyed(lines: tuple[str, ...]) -> None:
    faulted = wrote(*lines)
    half = wrote(RESET[0], at=AT + 6, start=faulted)
    assert states((faulted, half)) == ["fault"]
    assert states([wrote(RESET[1], at=AT + 7, start=half)]) == ["active"]


def test_lines_that_are_read_again_keep_nobody_waiting() -> None:
    """A device that has been reset is not to be reset again."""
    half = wrote(*R580, RESET[0])
    assert states([wrote(*R580, RESET[1], start=half)]) == ["active"]


def test_a_fault_that_is_over_is_not_begun_again_by_its_own_lines() -> None:
    over = wrote(*R580, *RESET)
    again = wrote(*R580, start=over)
    assert states((over, again)) == ["fault", "active"]


def test_a_fault_whose_first_line_was_lost_is_one() -> None:
    assert states([wrote(*R580[2:], *RESET)]) == ["fault", "active"]


def test_one_whose_devices_were_not_told_is_over_when_the_daemon_says_so() -> None:
    begun = wrote(BEGIN, RESET[0])
    faulted = reduced(look("log", at=AT + 7), start=begun.node)
    assert states([begun, faulted]) == ["fault"]
    answered = reduced(status("ACTIVE", at=AT + 8), clients(CLIENT, at=AT + 8), start=faulted.node)
    assert states([answered]) == ["active"]
    assert answered.node.daemons[DAEMON].servers[SERVER].devices_to_reset is None
