"""Columns as wide as their cells, or as a terminal lets them be."""

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import product

import pytest

from exporter.model.incident import ClientDetails
from exporter.model.node import Node
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.printable import LONGEST_TEXT
from exporter.report import remedy
from exporter.report.document import FindingStatus
from exporter.report.incident_status import verdict
from exporter.report.node_status import document_of
from exporter.report.process_status import names_of
from exporter.report.remedy import Address
from exporter.report.status_text import finding_lines, headline, sharing_lines, table_lines, watchdog_lines, workload_of
from exporter.report.text import (
    Column,
    Line,
    Piece,
    Style,
    align_table,
    cell,
    counted,
    dim,
    duration_text,
    error,
    held_text,
    line_of,
    listed,
    local_time,
    percent,
    pid_text,
    shell_command,
    short_time,
    size_text,
    text_of,
    text_width,
    truncate,
    utc_time,
    warning,
    with_error,
    zone_text,
    zoned_time,
)
from tests.builders import (
    CLIENT,
    CRASHED,
    DAEMON,
    SERVER,
    at_work,
    blocked_recovery,
    circuit_open,
    daemon_down,
    flight,
    full,
    idle,
    limited,
    node,
    owned,
    process,
    reduced,
    split,
    three_clients,
)
from tests.incidents.values import HOSTILE, faulted_client, incident, suspect
from tests.incidents.values import hostile as hostile_incident
from tests.page.inputs import hostile
from tests.status import NOW, brief_of, details_of, status_table, table_of

COLUMNS = (
    Column(name="PATH", min_width=6, truncate_start=True),
    Column(name="PID", align_right=True),
    Column(name="NAME", min_width=5),
)
ROWS = [[cell("/tmp/nvidia-mps"), cell("7"), cell("a-long-name")], [cell("none"), cell("-"), cell("b")]]


def lines(width: int | None, *dispensable: str) -> list[str]:
    return text_of(align_table(COLUMNS, ROWS, width, dispensable)).splitlines()


def test_shows_all_columns_if_there_is_room() -> None:
    everything = ["PATH             PID  NAME", "/tmp/nvidia-mps    7  a-long-name", "none               -  b"]
    assert lines(None) == lines(33) == everything


def test_shrinks_the_widest_column_first_and_marks_truncated_text() -> None:
    assert lines(30) == ["PATH          PID  NAME", "…/nvidia-mps    7  a-long-name", "none            -  b"]
    assert lines(22) == ["PATH     PID  NAME", "…ia-mps    7  a-long-…", "none       -  b"]


def test_drops_columns_and_names_them() -> None:
    without_pid = ["PATH     NAME", "…ia-mps  a-long-…", "none     b", "terminal too narrow for: PID"]
    assert lines(17, "PID", "PATH") == without_pid
    assert lines(5, "PID", "PATH") == ["NAME", "a-lo…", "b", "terminal too narrow for: PID, PATH"]


def test_an_empty_cell_is_dim() -> None:
    assert (cell("-").style, cell("-", Style.ERROR).style, cell("7").style) == (Style.DIM, Style.DIM, Style.PLAIN)


def test_no_row_of_a_node_is_wider_than_the_terminal(subtests: pytest.Subtests) -> None:
    for width, scene in product(
        [44, 60, 80, 100, 130], [three_clients, daemon_down, full, blocked_recovery, idle, owned, circuit_open]
    ):
        with subtests.test(width=width, scene=scene):
            table = table_lines(document_of(scene()), width)
            narrowed = [
                line
                for line in table
                if line.indent == 4 and not line.text.startswith(("domain", "  joined", "terminal too"))
            ]
            assert all(text_width(line.text) <= width for line in narrowed)
            assert {"STATE", "PID", "COMMAND", "MEMORY"} <= set(table[0].text.split())


def test_shows_the_workload_on_80_columns() -> None:
    """The server is what can be done without."""
    header, *_ = table_lines(document_of(owned()), 80)
    assert header.text.split() == ["DAEMON", "STATE", "PID", "USER", "COMMAND", "WORKLOAD", "GPU", "MEMORY", "DOMAIN"]


def test_aligns_names_with_wide_characters() -> None:
    """So that no row is pushed out of line, or breaks."""
    present = reduced(process(user="山田", command="訓練プログラム-x"), start=three_clients()).node
    rows = [line.text for line in table_lines(document_of(present), 80)[:6]]
    ends = {text_width(row[: row.index(" MiB")]) for row in rows if " MiB" in row}
    assert len(ends) == 1


def test_truncates_by_display_width(subtests: pytest.Subtests) -> None:
    for text, columns, truncate_start, shown in [
        ("abc", 3, False, "abc"),
        ("abcd", 3, False, "ab…"),
        ("/a/b/c", 4, True, "…b/c"),
        ("漢字漢字", 8, False, "漢字漢字"),
        ("漢字漢字", 6, False, "漢字…"),
        ("漢字漢字", 4, True, "…字"),
        ("e\u0301e\u0301", 2, False, "e\u0301e\u0301"),
    ]:
        with subtests.test(text=text, columns=columns, truncate_start=truncate_start, shown=shown):
            assert truncate(text, columns, truncate_start=truncate_start) == shown
            assert text_width(shown) <= columns


# Lines of styled pieces.


def test_joins_adjacent_pieces_of_one_style() -> None:
    line = line_of("server ", "513: ", error("FA"), error("ULT"), "", dim(""))

    assert line.pieces == (Piece("server 513: "), Piece("FAULT", Style.ERROR))
    assert line.text == "server 513: FAULT"


def test_has_finds_styles() -> None:
    assert line_of("a", warning("b")).has(Style.ERROR, Style.WARNING)
    assert not line_of("a", dim("b")).has(Style.ERROR)
    assert not line_of().has(*Style)


def test_text_has_no_styles() -> None:
    assert (
        text_of([line_of("a ", error("b")), line_of(), line_of(shell_command("kill -KILL 7"))])
        == "a b\n\nkill -KILL 7\n"
    )


# Moments, and how long something took, as they are written.


@pytest.fixture
def in_kathmandu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "NPT-5:45")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("in_kathmandu")
def test_utc_and_local_time() -> None:
    assert utc_time(1_763_733_903.147) == "2025-11-21T14:05:03.147Z"
    assert local_time(1_763_733_903.147) == "2025-11-21 19:50:03"
    assert zoned_time(1_763_733_903.147) == "2025-11-21T19:50:03+05:45"
    assert zone_text(1_763_733_903.147) == "NPT (UTC+05:45)"


@pytest.mark.parametrize(("zone", "text"), [("UTC", "UTC"), ("<-03>3", "UTC-03:00"), ("CET-1CEST", "CET (UTC+01:00)")])
def test_names_the_time_zone(zone: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", zone)
        time.tzset()
        assert zone_text(1_763_733_903.147) == text
    time.tzset()


@pytest.mark.usefixtures("in_kathmandu")
def test_short_time_has_the_date_only_of_other_days() -> None:
    assert short_time(1_763_733_903.147, 1_763_740_000.0) == "19:50:03"
    assert short_time(1_763_733_903.147, 1_763_750_000.0) == "2025-11-21 19:50"
    assert short_time(1e300, 1_763_750_000.0) == "invalid time"


def test_rounds_to_milliseconds() -> None:
    assert utc_time(0.9999) == "1970-01-01T00:00:01.000Z"


@pytest.mark.parametrize("at", [1e300, -1e300, 2.0**63])
def test_formats_invalid_times(at: float) -> None:
    assert "invalid time" in utc_time(at)
    assert "invalid time" in local_time(at)


def test_formats_durations(subtests: pytest.Subtests) -> None:
    for seconds, text in [
        (-3, "0 ms"),
        (0.0174, "17 ms"),
        (0.13, "0.1 s"),
        (9.94, "9.9 s"),
        (10, "10 s"),
        (59.4, "59 s"),
        (59.6, "1 min 0 s"),
        (182, "3 min 2 s"),
        (7500, "2 h 5 min"),
        (100 * 3600, "4 d 4 h"),
    ]:
        with subtests.test(seconds=seconds, text=text):
            assert duration_text(seconds) == text


# Who a process is, in a few words.


def test_has_a_workload_other_than_the_user() -> None:
    processes = [names_of(owned(), pid) for pid in (600, 602, 606)]
    assert [workload_of(each) for each in processes] == ["pod train-0", "job 42", ""]
    assert processes[2].command == "train.py"


def test_an_unknown_process_has_only_a_pid() -> None:
    unknown = names_of(Node(), 7)
    assert (unknown.user, unknown.command, workload_of(unknown)) == (None, None, "")


def test_hostile_names_are_printable() -> None:
    shown = hostile().node
    for pid in shown.processes:
        each = names_of(shown, pid)
        assert all(name.isprintable() for name in (each.user or "", each.command or "", workload_of(each)))


# A name that a user or a workload chose stays in its line, cell or sentence, is short, and is not markup.


def of_status(name: str, start: Node | None = None) -> list[str]:
    """Lines of a node with one client of this name."""
    client = process(CLIENT, user=name, command=name)
    shown = reduced(*(at_work(CLIENT) if start is None else ()), client, start=start).node
    return status_table(shown).splitlines()


def of_finding(finding: FindingStatus) -> list[str]:
    """Return the lines of a finding without commands, which are left out if they cannot be shown unchanged."""
    lines = finding_lines(finding)
    return texts(line for line in lines if not line.has(Style.COMMAND))


def of_faults(name: str) -> list[str]:
    present = reduced(*at_work(600, 601)).node
    faults = {
        fault.id: fault
        for fault in (hostile_incident(name), replace(hostile_incident(name), id="two", server=SERVER + 1))
    }
    return [line for line in status_table(replace(present, incidents=faults)).splitlines() if "PIPE_DIR" not in line]


def of_details(name: str) -> list[str]:
    return texts(details_of(hostile_incident(name), NOW, Address(pipe_directory=f"/tmp/{name}")))


def of_sharing(name: str) -> list[str]:
    busy = {600: flight(0.48, 0.012), 601: flight(0.004, 0.002)}
    present = reduced(process(600, user=name, command=name), start=limited()).node
    return texts(sharing_lines(document_of(split(present, busy, dram=0.91)), None))


def of_daemon(name: str) -> Node:
    """A node with a daemon of this name, whose circuit is open for this reason."""
    reason = Reason(ReasonCode.UNSPECIFIED, text=name)
    known = replace(circuit_open().watches[DAEMON], diagnosis=replace(CRASHED, indications=(reason,)), reason=reason)
    return replace(reduced(*at_work(daemon=name), start=node(name)).node, watches={name: known})


def texts(lines: Iterable[Line]) -> list[str]:
    return [line.text for line in lines]


RENDERERS: dict[str, tuple[int, Callable[[str], list[str]]]] = {
    "table": (300, of_status),
    "failure domains": (400, lambda name: of_status(name, three_clients())),
    "faults of status": (900, of_faults),
    "sharing": (300, of_sharing),
    "headline": (2 * LONGEST_TEXT, lambda name: texts(headline(document_of(of_daemon(name))))),
    "watchdog": (900, lambda name: texts(watchdog_lines(replace(document_of(of_daemon(name)), findings=())))),
    "findings": (900, lambda name: of_finding(document_of(of_daemon(name)).findings[0])),
    "incident": (400, of_details),
    "incident on one line": (500, lambda name: [brief_of(hostile_incident(name))]),
    "incidents": (400, lambda name: text_of(table_of([hostile_incident(name)])).splitlines()),
    "verdict": (120, lambda name: [verdict(incident(suspects=(replace(suspect(600, 0.9), client=named(name)),)))]),
    "resume": (300, lambda name: remedy.resume_answer(of_daemon(name), before=False)["message"].splitlines()),
}
"""What shows names, and how long a line of it is at most."""


def named(name: str) -> ClientDetails:
    return faulted_client(600, command=name, user=name)


def test_names_stay_in_their_line(subtests: pytest.Subtests) -> None:
    for what, (longest, render) in RENDERERS.items():
        for name in HOSTILE:
            with subtests.test(what=what, name=name):
                lines = render(name)
                assert len(lines) == len(render("train"))
                assert all(line.isprintable() for line in lines)
                assert max(map(len, lines)) < longest


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (size_text(0), "0 bytes"),
        (size_text(1023), "1020 bytes"),
        (size_text(1024), "1 KiB"),
        (size_text((1 << 20) - 1), "1020 KiB"),
        (size_text(1000 << 20), "1000 MiB"),
        (size_text(3 << 29), "1.5 GiB"),
        (size_text(1 << 51), "2050 TiB"),
        (percent(0.0), "0 %"),
        (percent(0.0099), "under 1 %"),
        (percent(0.01), "1 %"),
        (percent(0.4, 0.1), "40 %"),
        (percent(0.4, 0.11), "18 to 62 %"),
        (percent(0.01, 0.01), "under 3 %"),
        (percent(0.03, 0.01), "1 to 5 %"),
        (percent(0.9, 0.3), "30 to 100 %"),
        (percent(0.5, 0.5), "0 to 100 %"),
        (with_error(0.4, 0.0), "40.0 %"),
        (with_error(0.4, 0.0101), "40.0 ± 1.1 %"),
        (with_error(0.4, 0.1), "40.0 ± 10.0 %"),
        (with_error(0.4, 0.11), "18 to 62 %"),
        (listed(["0"]), "0"),
        (listed(["0", "1"], 2), "0 and 1"),
        (listed(["0", "1", "2"]), "0, 1 and 2"),
        (listed(["0", "1", "2"], 2), "0, 1 and 1 more"),
        (held_text(None), ""),
        (held_text(()), "exited, holder unknown"),
        (held_text((1, 2, 3, 4)), "exited, held by PID 1, PID 2, PID 3 and 1 more"),
        (pid_text(0), "an unknown PID"),
        (counted(1, "process", "processes"), "1 process"),
        (counted(0, "process", "processes"), "0 processes"),
    ],
)
def test_numbers_and_lists_have_words(shown: str, text: str) -> None:
    assert shown == text
