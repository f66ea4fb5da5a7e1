"""Entries of the journal, as journalctl wrote them (systemd 252), and as nobody should."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.parse.systemd import JOURNAL_FIELDS, SUPPRESSED_MESSAGE_ID, JournalEntry, parse_journal_entry

UNIT = "nvidia-mps.service"
SAID = {
    "__CURSOR": "s=95e;i=5;b=dea;m=2b4;t=660;x=dee",
    "__REALTIME_TIMESTAMP": "1795230434136686",
    "_TRANSPORT": "stdout",
    "_SYSTEMD_UNIT": UNIT,
    "_COMM": "nvidia-cuda-mps",
    "_EXE": "/usr/bin/nvidia-cuda-mps-control",
    "_STREAM_ID": "e9c776f9311b4079b96ef352d05637d3",
    "MESSAGE": "[2026-11-20 15:11:58.933 Control  9235] NEW UI",
}
DROPPED = {
    "__CURSOR": "s=95e;i=6",
    "_TRANSPORT": "driver",
    "_SYSTEMD_UNIT": "systemd-journald.service",
    "MESSAGE_ID": SUPPRESSED_MESSAGE_ID,
    "MESSAGE": f"Suppressed 71 messages from {UNIT}",
    "N_DROPPED": "71",
}


def entry(fields: Mapping[str, object], **changed: object) -> JournalEntry:
    found = parse_journal_entry(json.dumps({**fields, **changed}).encode())
    assert found is not None
    return found


def test_a_line_of_the_daemon_is_its_own() -> None:
    assert entry(SAID).message == SAID["MESSAGE"]
    assert entry(SAID).is_mps_output_of(UNIT)


@pytest.mark.parametrize(
    "changed",
    [
        {"_SYSTEMD_UNIT": "other.service"},
        {"_SYSTEMD_UNIT": None},
        {"_TRANSPORT": "journal"},
        {"_TRANSPORT": "syslog"},
        {"_EXE": "/usr/bin/python3"},
        {"_EXE": None, "_COMM": "python3"},
    ],
    ids=str,
)
def test_what_another_wrote_is_not(changed: dict[str, object]) -> None:
    """Also where it says the same, to journald itself, in the daemon's own unit."""
    assert not entry(SAID, **changed).is_mps_output_of(UNIT)


def test_a_client_that_takes_the_daemons_name_keeps_its_program() -> None:
    assert not entry(SAID, _COMM="nvidia-cuda-mps", _EXE="/home/mallory/train").is_mps_output_of(UNIT)


def test_the_server_writes_there_too() -> None:
    assert entry(SAID, _EXE="/usr/bin/nvidia-cuda-mps-server").is_mps_output_of(UNIT)


def test_of_a_writer_that_has_gone_journald_knows_the_unit_alone() -> None:
    """A daemon's last words."""
    assert entry({name: SAID[name] for name in SAID if name not in ("_EXE", "_COMM")}).is_mps_output_of(UNIT)


def test_bytes_that_are_no_text_are_read_as_such() -> None:
    assert entry(SAID, MESSAGE=[255, 104, 105]).message == "\ufffdhi"


@pytest.mark.parametrize("message", [None, [256], [True], ["a", "b"], {}, 5], ids=str)
def test_a_message_that_is_not_shown_is_none(message: object) -> None:
    assert entry(SAID, MESSAGE=message).message is None


@pytest.mark.parametrize(
    ("line_break", "unfinished"), [("line-max", True), ("nul", True), ("eof", False), ("pid-change", False)]
)
def test_a_line_that_journald_cut_is_unfinished(line_break: str, unfinished: bool) -> None:
    assert entry(SAID, _LINE_BREAK=line_break).unfinished is unfinished


def test_journald_tells_how_many_lines_it_let_fall_and_whose() -> None:
    assert entry(DROPPED).lines_dropped_of(UNIT) == 71
    assert entry(DROPPED).lines_dropped_of("mps.service") == 0


def test_nobody_else_can_tell_of_lines_let_fall() -> None:
    assert entry(DROPPED, _TRANSPORT="journal", _SYSTEMD_UNIT=UNIT).lines_dropped_of(UNIT) == 0
    assert entry(SAID, MESSAGE=DROPPED["MESSAGE"], N_DROPPED="71").lines_dropped_of(UNIT) == 0


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("9" * 5000),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
lines = st.one_of(
    st.binary(),
    values.map(lambda value: json.dumps(value).encode()),
    st.dictionaries(st.sampled_from([*JOURNAL_FIELDS, "__CURSOR"]), values).map(
        lambda value: json.dumps(value).encode()
    ),
    st.sampled_from([b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b'{"__CURSOR":"c","N_DROPPED":"\xd9\xa3"}']),
)


@given(lines)
@settings(max_examples=200)
def test_any_line_is_an_entry_or_none(line: bytes) -> None:
    found = parse_journal_entry(line)
    assert found is None or (
        found.dropped >= 0 and found.lines_dropped_of(UNIT) >= 0 and found.is_mps_output_of(UNIT) in (True, False)
    )
