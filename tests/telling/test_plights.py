"""What is not well, in a line each: the head of `status`, and its exit code."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from exporter.core.watchdog.orders import Orders
from exporter.model.diagnosis import Condition, Diagnosis
from exporter.model.node import Node
from exporter.model.watch import Quarantine, WatchState
from exporter.parse.printable import LONGEST_TEXT
from exporter.telling import status
from exporter.telling.headline import MOST_PLIGHTS, headline
from exporter.telling.line import Line, Tone
from exporter.telling.plights import plights
from tests.builders import (
    AT,
    DAEMON,
    GPU,
    SERVER,
    at_work,
    circuit_open,
    control_log,
    daemon_dead,
    drifted,
    faulted,
    gpu_lost,
    held_up,
    idle,
    limited,
    no_nvml,
    node,
    suspended,
    three_clients,
    told,
    watched,
)


def in_words(present: Node) -> list[tuple[str, bool]]:
    return [(each.words, each.grave) for each in plights(present)]


def waiting() -> Node:
    """A second user's client waits for the first user's to leave."""
    lines = control_log(
        "NEW CLIENT 601 from user 1000: Server is not ready, push client to pending list",
        f"Server {SERVER} has 2 active worker threads. Server will not shutdown.",
    )
    return told(*at_work(600), *lines).node


def quarantined() -> Node:
    quarantine = Quarantine(at=AT, xid=79, gpu=GPU, action="RESTART_BM")
    return watched(idle(), state=WatchState.QUARANTINED, quarantine=quarantine)


def unasked() -> Node:
    """The limits of a daemon that cannot be asked are not known."""
    present = drifted()
    return replace(daemon_dead(), watches=present.watches)


@pytest.mark.parametrize(
    ("scene", "told_of"),
    [
        (idle, []),
        (three_clients, [("1 process bypasses MPS on GPU 1", False)]),
        (waiting, [(f"{DAEMON}: 1 client waits", False)]),
        (node, [(f"{DAEMON}: not known", True)]),
        (daemon_dead, [(f"{DAEMON}: absent", True), ("1 process bypasses MPS on GPU 1", False)]),
        (
            circuit_open,
            [
                (f"{DAEMON}: absent, crashed, restarted 4 times, circuit open", True),
                ("1 process bypasses MPS on GPU 1", False),
            ],
        ),
        (quarantined, [(f"{DAEMON}: quarantined", True)]),
        (
            suspended,
            [(f"{DAEMON}: a server was stopped by a signal", True), ("1 process bypasses MPS on GPU 1", False)],
        ),
        (
            held_up,
            [(f"{DAEMON}: FAULT of server 513, held up by 601", True), ("1 process bypasses MPS on GPU 1", False)],
        ),
        (
            drifted,
            [
                (f"{DAEMON}: limits have drifted: active threads are 25 %, not 50 % of servers to come", True),
                ("1 process bypasses MPS on GPU 1", False),
            ],
        ),
        (limited, [("1 process bypasses MPS on GPU 1", False)]),
        (unasked, [(f"{DAEMON}: absent", True), ("1 process bypasses MPS on GPU 1", False)]),
        (no_nvml, [("blind: nvml", True)]),
        (gpu_lost, [("GPU 1: NVML does not list it any more, or took too long over the others", False)]),
    ],
)
def test_each_is_a_line_the_grave_ones_first(scene: Callable[[], Node], told_of: list[tuple[str, bool]]) -> None:
    """And where one is grave, `status` ends with 1."""
    assert in_words(scene()) == told_of
    assert status.exit_code(scene()) == int(any(grave for _, grave in told_of))


def test_a_fault_that_the_watchdog_tells_of_too_is_told_once() -> None:
    known = Diagnosis(condition=Condition.FAULT, since=AT)
    present = replace(faulted(), watches=watched(idle(), diagnosis=known).watches)
    assert [words for words, grave in in_words(present) if grave] == [f"{DAEMON}: FAULT of server 513"]


# -- the head of a sheet ----------------------------------------------------------------------------------------------


def words(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_the_head_says_whether_all_is_well_and_who_is_there() -> None:
    assert words(list(headline(idle(), Orders()))) == ["well: 1 of 1 daemons up, 0 clients, 1 GPU; watchdog observes"]
    assert words(list(headline(three_clients()))) == [
        "well: 1 of 1 daemons up, 3 clients, 2 GPUs",
        "  1 process bypasses MPS on GPU 1",
    ]
    assert words(list(headline(held_up())))[:2] == [
        "NOT WELL: 1 of 1 daemons up, 3 clients, 2 GPUs; 1 fault in the last hour",
        f"  {DAEMON}: FAULT of server 513, held up by 601",
    ]


def test_by_word_and_tone_both() -> None:
    first, grave, doubtful = headline(daemon_dead())
    assert (first.pieces[0].text, first.pieces[0].tone) == ("NOT WELL", Tone.BAD)
    assert (grave.has(Tone.BAD), doubtful.has(Tone.DOUBTFUL)) == (True, True)
    assert headline(idle())[0].pieces[0].tone is Tone.WELL


def test_of_many_some_are_told() -> None:
    names = [f"/run/{number}" for number in range(20)]
    lines = words(list(headline(told(start=node(*names)).node)))
    assert (len(lines), lines[-1]) == (1 + MOST_PLIGHTS + 1, f"  and {20 - MOST_PLIGHTS} more")


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31mred", "x" * 4000, "\u202egnp.exe", "tab\tbed"])
def test_no_name_breaks_out_of_its_line(name: str) -> None:
    present = told(*at_work(daemon=name), start=node(name)).node
    known = watched(idle(), state=WatchState.CIRCUIT_OPEN).watches[DAEMON]
    for line in headline(replace(present, watches={name: known})):
        assert line.text.isprintable()
        assert len(line.text) < 2 * LONGEST_TEXT


# -- one daemon alone -------------------------------------------------------------------------------------------------


def two_daemons() -> Node:
    return told(*at_work(700, server=514, daemon="/run/other"), start=three_clients()).node


def test_one_daemon_can_be_asked_for() -> None:
    present = replace(two_daemons(), incidents=held_up().incidents)
    alone = status.told(present, as_json=True, daemon="/run/other")
    assert [each["name"] for each in alone["node"]["daemons"]] == ["/run/other"]
    assert (alone["node"]["incidents"], [gpu["bypassing"] for gpu in alone["node"]["gpus"]]) == ([], [[], []])
    assert len(status.told(present, as_json=True, daemon=DAEMON)["node"]["incidents"]) == len(present.incidents) > 0


def test_its_exit_code_is_its_own() -> None:
    present = told(
        start=replace(daemon_dead(), daemons={**two_daemons().daemons, DAEMON: daemon_dead().daemons[DAEMON]})
    ).node
    assert status.told(present)["exit_code"] == 1
    assert status.told(present, daemon="/run/other")["exit_code"] == 0


def test_of_one_that_is_not_here_it_is_said_which_are() -> None:
    assert status.told(two_daemons(), daemon="\x1b[2J") == {
        "problem": f"no daemon \N{REPLACEMENT CHARACTER}[2J is here; there are: {DAEMON}, /run/other"
    }
