"""Columns as wide as their cells, or as a terminal lets them be."""

from itertools import product

import pytest

from exporter.report.status_text import render_status
from exporter.report.text import Column, Style, align_table, cell, text_of, text_width, truncate
from tests.builders import (
    blocked_recovery,
    circuit_open,
    daemon_dead,
    full,
    idle,
    owned,
    process,
    reduced,
    three_clients,
)

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
        [44, 60, 80, 100, 130], [three_clients, daemon_dead, full, blocked_recovery, idle, owned, circuit_open]
    ):
        with subtests.test(width=width, scene=scene):
            table = render_status(scene(), width=width).table
            narrowed = [
                line
                for line in table
                if line.indent == 4 and not line.text.startswith(("domain", "  joined", "terminal too"))
            ]
            assert all(text_width(line.text) <= width for line in narrowed)
            assert {"STATE", "PID", "COMMAND", "MEMORY"} <= set(table[0].text.split())


def test_shows_the_workload_on_80_columns() -> None:
    """The server is what can be done without."""
    header, *_ = render_status(owned(), width=80).table
    assert header.text.split() == ["DAEMON", "STATE", "PID", "USER", "COMMAND", "WORKLOAD", "GPU", "MEMORY", "DOMAIN"]


def test_aligns_names_with_wide_characters() -> None:
    """So that no row is pushed out of line, or breaks."""
    present = reduced(process(user="山田", command="訓練プログラム-x"), start=three_clients()).node
    rows = [line.text for line in render_status(present, width=80).table[:6]]
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
