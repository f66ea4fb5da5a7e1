"""A recording is a file from anywhere: no line of it, and no byte of it, costs more than an error message."""

import gzip
import io
import sys
from pathlib import Path

import pytest

from exporter.cli import main
from exporter.collectors.child import MOST_BYTES
from exporter.errors import RecordingError
from exporter.recording import MAX_LINE, Recording

HEADER = '{"recording": 2}\n'


class Endless(io.RawIOBase):
    """A header, and then one line that does not end."""

    def __init__(self) -> None:
        self.given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: bytearray) -> int:  # type: ignore[override]
        assert self.given < 2 * MAX_LINE, "read far beyond the longest line"
        text = HEADER.encode() if not self.given else b"x" * len(buffer)
        buffer[: len(text)] = text
        self.given += len(text)
        return len(text)


def test_rejects_a_line_that_exceeds_the_bound() -> None:
    recording = Recording(io.TextIOWrapper(io.BufferedReader(Endless())))
    with pytest.raises(RecordingError, match=f"line 2 is longer than {MAX_LINE} characters.*remove the line"):
        list(recording.observations())


def test_rejects_a_first_line_that_exceeds_the_bound() -> None:
    text = "x" * (MAX_LINE + 1)
    with pytest.raises(RecordingError, match=f"line 1 is longer than {MAX_LINE} characters"):
        Recording(io.StringIO(text))


def test_the_bound_exceeds_the_longest_reply_of_a_daemon() -> None:
    """Each byte that is no text becomes six characters."""
    assert MAX_LINE > 2 * 6 * MOST_BYTES


@pytest.mark.parametrize("packed", [True, False])
def test_replay_reports_a_long_line_with_file_and_number(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], packed: bool
) -> None:
    path = tmp_path / ("long.jsonl.gz" if packed else "long.jsonl")
    with (gzip.open if packed else open)(path, "wt") as file:
        file.write(HEADER)
        for _ in range(5):
            file.write(" " * (MAX_LINE // 4))

    assert main(["replay", "--events", str(path)]) == 1

    error = capsys.readouterr().err
    assert error.startswith(f"cuda-mps-exporter: {path}: line 2 is longer than")
    assert "Traceback" not in error


def test_replay_reports_binary_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xff\xfe\n"), encoding="utf-8"))

    assert main(["replay", "--events", "-"]) == 1

    assert "line 1 is not JSON" in capsys.readouterr().err


def test_replay_reports_unreadable_standard_input(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Directory(io.StringIO):
        def readline(self, size: int | None = -1, /) -> str:
            raise IsADirectoryError(21, "Is a directory")

    monkeypatch.setattr(sys, "stdin", Directory())

    assert main(["replay", "--events", "-"]) == 1

    assert capsys.readouterr().err == "cuda-mps-exporter: -: Is a directory\n"
