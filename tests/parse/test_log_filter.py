"""The fast filter of log lines, and critical lines."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.parse.log_line import ALL_RULES, filter_lines, last_critical_lines, parse_log_line
from exporter.parse.log_message import Unrecognized

HEADER = "[2026-11-20 15:08:45.147 Server   599] "
FAULT = (
    "Client {PID: 2045, Context: 1} encountered a fatal GPU error.",
    "Server is handling a fatal GPU error.",
    "Client {PID: 2046, Context ID: 1} on device 0 to be torn down",
    "The following devices will be reset:",
    "0",
    "The following client process have a sticky error set:",
    "2046",
)
DISCONNECTED = f"{HEADER}Client process 5 disconnected"
UNKNOWN = f"{HEADER}No rule matches this line"


def encoded(*lines: str) -> bytes:
    return "\n".join(lines).encode()


texts = st.one_of(
    [st.from_regex(re.compile(pattern, re.IGNORECASE | re.ASCII), fullmatch=True) for pattern, _ in ALL_RULES]
).filter(lambda text: "\n" not in text and text.isascii())


@given(texts, st.sampled_from(["Server", "Control", "A Role"]), st.sampled_from(["", "MPS Server: ", "Volta MPS: "]))
def test_selects_each_line_that_a_rule_matches(text: str, role: str, prefix: str) -> None:
    line = f"[2026-11-20 15:08:45.147 {role} {599:5}] {prefix}{text}"

    assert filter_lines(line.encode()).lines == [line.encode()]


@given(st.lists(st.one_of(st.text(), st.text().map(lambda text: HEADER + text), texts.map(lambda text: HEADER + text))))
def test_selects_or_counts_each_line_and_selects_each_known_line(lines: list[str]) -> None:
    lines = [line.replace("\n", "") for line in lines] or [""]
    filtered = filter_lines(encoded(*lines))

    assert len(filtered.lines) + filtered.left == len(lines)
    assert filtered.unknown == 0
    known = [line for line in lines if line.isascii() and _is_known(line)]
    assert [line.decode() for line in filtered.lines if line.isascii()] == known


def _is_known(line: str) -> bool:
    entry = parse_log_line(line)
    return entry is not None and not isinstance(entry.message, Unrecognized)


def test_selects_the_first_unknown_lines_in_order() -> None:
    lines = [UNKNOWN, DISCONNECTED, "no header", UNKNOWN, DISCONNECTED, ""]

    for most in range(5):
        filtered = filter_lines(encoded(*lines), most)
        assert (filtered.unknown, filtered.left) == (min(most, 4), max(0, 4 - most))
        assert len(filtered.lines) == 2 + filtered.unknown
        remaining = iter(encoded(*lines).split(b"\n"))
        assert all(line in remaining for line in filtered.lines)


def test_each_line_of_a_fault_is_critical(subtests: pytest.Subtests) -> None:
    for text in FAULT:
        with subtests.test(text=text):
            line = (HEADER + text).encode()

            assert last_critical_lines(encoded(DISCONNECTED, HEADER + text, UNKNOWN), 9) == [line]


def test_start_and_end_of_daemon_and_server_are_critical(subtests: pytest.Subtests) -> None:
    for text in [
        "Cmd:quit",
        "Exit with status 0",
        "UI closed",
        "Server 599 exited with status 0",
        "NEW SERVER 599: Ready",
    ]:
        with subtests.test(text=text):
            assert last_critical_lines(f"[2026-11-20 15:08:45.147 Control   591] {text}".encode(), 9)


def test_ordinary_lines_and_unknown_lines_with_critical_words_are_not_critical() -> None:
    assert (
        last_critical_lines(encoded(DISCONNECTED, UNKNOWN, "fatal GPU error", f"{HEADER}a fatal GPU error, or so"), 9)
        == []
    )


@given(st.lists(st.sampled_from([DISCONNECTED, UNKNOWN, "", *(HEADER + text for text in FAULT)]), min_size=1))
def test_returns_the_last_critical_lines_in_order(lines: list[str]) -> None:
    critical = [line.encode() for line in lines if line.removeprefix(HEADER) in FAULT]

    assert last_critical_lines(encoded(*lines), len(lines)) == critical
    assert last_critical_lines(encoded(*lines), 2) == critical[-2:]
    assert last_critical_lines(encoded(*lines), 0) == []


@pytest.mark.parametrize(
    "hostile",
    [b"[\n" * 200_000, b"\n" * 400_000, HEADER.encode() + b"Device " + b"(uuid " * 60_000, b"[2026-" * 60_000],
    ids=["brackets", "line breaks", "a nested line", "half headers"],
)
def test_filters_hostile_text_in_linear_time(hostile: bytes) -> None:
    """Quadratic time would take hours."""
    assert filter_lines(hostile).lines == []
    assert last_critical_lines(hostile, 9) == []
