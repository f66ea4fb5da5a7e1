"""Lines that fit a terminal."""

import pytest

from exporter.report.status_text import render_status
from exporter.report.text import Line as Line
from exporter.report.text import StatusText, Style, dim, error, line_of, shell_command, text_width, warning
from exporter.terminal import all_lines, fit_screen, wrap_line
from tests.builders import blocked_recovery, full

TITLE = (line_of(dim("2026-11-21 14:05:03, by the service")),)


def texts(lines: "list[Line] | tuple[Line, ...]") -> list[str]:
    return [line.text for line in lines]


class TestBroken:
    """One line that is too wide."""

    def test_wraps_between_words_and_indents(self) -> None:
        """With the tones that it had."""
        line = line_of(dim("  Xids       "), "31: illegal address ", error("names PID 600"), indent=13)
        rows = list(wrap_line(line, 36))
        assert texts(rows) == ["  Xids       31: illegal address", "             names PID 600"]
        assert [row.has(Style.ERROR) for row in rows] == [False, True]

    def test_does_not_wrap_a_line_that_fits(self) -> None:
        """To the column."""
        line = line_of("four words of text")
        assert list(wrap_line(line, 18)) == [line]
        assert texts(list(wrap_line(line, 17))) == ["four words of", "text"]

    def test_does_not_wrap_a_command(self) -> None:
        """So that it can be copied."""
        line = line_of("  ", shell_command("echo shutdown_server | nvidia-cuda-mps-control"))
        assert list(wrap_line(line, 20)) == [line]

    def test_does_not_break_a_long_word(self) -> None:
        """The others are not."""
        assert texts(list(wrap_line(line_of(f"see {'x' * 30} there"), 20))) == ["see", "x" * 30, "there"]

    @pytest.mark.parametrize("width", [1, 10, 22, 80])
    def test_wrapping_loses_no_text(self, width: int) -> None:
        """However narrow."""
        for line in all_lines(render_status(blocked_recovery())):
            rows = list(wrap_line(line, width))
            assert " ".join(" ".join(texts(rows)).split()) == " ".join(line.text.split())


def made(rows: int = 3, troubles: int = 0, past: int = 0) -> StatusText:
    return StatusText(
        at=0.0,
        headline=(line_of("well"),),
        table=(line_of("PID"), *(line_of(f"row {number}") for number in range(rows))),
        problems=tuple(line_of(f"trouble {number}") for number in range(troubles)),
        past_faults=tuple(line_of(f"past {number}") for number in range(past)),
    )


def on_screen(status: StatusText, height: int, width: int = 80) -> list[str]:
    shown = fit_screen(TITLE, status, width, height)
    assert sum(max(1, -(-text_width(line.text) // width)) for line in shown) <= height
    return texts(list(shown))


class TestFitted:
    """A sheet on a screen."""

    def test_shows_everything_if_there_is_room_and_problems_first(self) -> None:
        """Under the title and the head."""
        assert on_screen(made(1, 1, 1), 9) == [
            *texts(TITLE), "well", "", "trouble 0", "", "PID", "row 0", "past 0",
        ]  # fmt: skip

    def test_drops_past_faults_first(self) -> None:
        """A last line counts the others."""
        all_of_them = [*texts(TITLE), "well", "", "PID", "row 0", "row 1", "row 2"]
        assert on_screen(made(3, past=9), 8) == [*all_of_them, "… 9 more lines are not shown"]

    def test_counts_rows_that_are_left_out(self) -> None:
        """The columns' names stay."""
        shown = on_screen(made(48), 8)
        assert shown[3:] == ["PID", "row 0", "row 1", "row 2", "… 45 more lines are not shown"]

    def test_important_rows_stay(self) -> None:
        """Where they were."""
        rows = [line_of(f"row {number} ", warning("bypassing") if number == 40 else "active") for number in range(48)]
        status = StatusText(at=0.0, headline=(), table=(line_of("PID"), *rows), problems=(), past_faults=())
        assert on_screen(status, 6)[2:] == ["PID", "row 0 active", "row 40 bypassing", "… 46 more lines are not shown"]

    def test_problems_leave_room_for_the_table_and_their_commands_stay(self) -> None:
        """A command that ends who holds up recovery is seen however small the screen is."""
        shown = on_screen(render_status(blocked_recovery(), width=80), 22)
        assert any("kill -KILL 601" in row for row in shown)
        assert any(row.startswith("DAEMON") for row in shown)
        assert any(" fault " in row for row in shown)

    @pytest.mark.parametrize("height", [1, 2, 3, 5, 10])
    @pytest.mark.parametrize("width", [20, 79])
    def test_is_never_higher_than_the_screen(self, height: int, width: int) -> None:
        """A status of any size fits."""
        real = (render_status(blocked_recovery(), width=width), render_status(full(), width=width))
        for status in (*real, made(0), made(9, 99, 9)):
            on_screen(status, height, width)


def test_a_pipe_gets_the_table_first() -> None:
    """A program may look for it there."""
    status = made(1, 1, 1)
    assert texts(status.body) == ["PID", "row 0", "trouble 0", "past 0"]
    assert texts(all_lines(status)) == ["well", "", *texts(status.body)]
