"""Lines that fit a terminal."""

import pytest

from exporter.report.node_status import document_of
from exporter.report.status_text import status_lines
from exporter.report.text import Line as Line
from exporter.report.text import Style, dim, error, line_of, shell_command
from exporter.terminal import wrap_line
from tests.builders import blocked_recovery


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
        for line in status_lines(document_of(blocked_recovery())):
            rows = list(wrap_line(line, width))
            assert " ".join(" ".join(texts(rows)).split()) == " ".join(line.text.split())
