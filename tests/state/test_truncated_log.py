"""A log of which a part is lost or unread: the lines that were read count, and the others cause no suspect."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.observation import LogGap
from exporter.model.server import ServerState
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    SERVER,
    Reduced,
    at_work,
    control_log,
    daemon_process,
    exited,
    look,
    reduced,
    server_log,
    status,
)

GAP = LogGap(at=AT + 1, daemon=DAEMON, file="server.log", lines=1)
UP = reduced(*at_work(CLIENT), daemon_process()).node


def states(story: Reduced) -> list[str | None]:
    return [event.state for event in story.of(EventName.SERVER_STATE)]


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
    story = reduced(exited(CONTROL, at=ended), unread, start=UP)
    assert not story.of(EventName.DAEMON_LOST)

    traces = daemon_process(None, left=False, at=ended + 0.4)
    quit_told = reduced(*control_log("Exit with status 0", at=ended + 0.3), traces, start=story.node)
    assert quit_told.names(EventName.SERVER_EXITED, EventName.CLIENT_DISCONNECTED) == [EventName.DAEMON_STOPPED]


def test_a_completely_read_log_without_a_quit_shows_a_loss() -> None:
    ended = AT + 10
    story = reduced(exited(CONTROL, at=ended), daemon_process(None, at=ended), look("log", at=ended + 0.2), start=UP)

    assert story.of(EventName.DAEMON_LOST)
