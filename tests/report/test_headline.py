"""The head of `status`: whether all is well, who is there, and what is the matter."""

from exporter.report.status_text import MOST_FINDINGS, headline
from exporter.report.status_view import view_of
from exporter.report.text import Line, Style
from exporter.watchdog.context import Policy
from tests.builders import (
    DAEMON,
    blocked_recovery,
    daemon_dead,
    idle,
    look,
    node,
    reduced,
    three_clients,
)


def words(lines: list[Line]) -> list[str]:
    return [line.text for line in lines]


def test_headline_has_the_severity_and_the_numbers() -> None:
    assert words(list(headline(view_of(idle(), Policy())))) == [
        "well: 1 of 1 daemons up, 0 clients, 1 GPU; watchdog observes"
    ]
    assert words(list(headline(view_of(three_clients())))) == [
        "warning: 1 of 1 daemons up, 3 clients, 2 GPUs",
        "  CUDA processes bypass MPS on GPU 1: 1 process",
        f"  Exporter cannot read a log of MPS daemon {DAEMON}: server.log cannot be read: Permission denied",
    ]
    assert words(list(headline(view_of(blocked_recovery()))))[:2] == [
        "CRITICAL: 1 of 1 daemons up, 3 clients, 2 GPUs; 1 fault in the last hour",
        f"  MPS server 513 of {DAEMON} has been in FAULT for 0 ms; 1 client blocks recovery; suspect: likely PID 600",
    ]


def test_severity_has_a_word_and_a_style() -> None:
    first, grave, warned = headline(view_of(daemon_dead()))
    assert (first.pieces[0].text, first.pieces[0].style) == ("CRITICAL", Style.ERROR)
    assert (grave.has(Style.ERROR), warned.has(Style.WARNING)) == (True, True)
    assert headline(view_of(idle()))[0].pieces[0].style is Style.OK


def test_counts_findings_that_are_not_shown() -> None:
    names = [f"/run/{number}" for number in range(20)]
    lines = words(list(headline(view_of(reduced(look(), start=node(*names)).node))))
    assert (len(lines), lines[-1]) == (1 + MOST_FINDINGS + 1, f"  and {20 - MOST_FINDINGS} more")
