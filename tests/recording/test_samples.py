"""The sample recordings that are installed with the program."""

from pathlib import Path

import pytest

from exporter.cli import main
from exporter.commands.replay import SAMPLES

FILES = Path(__file__).parents[2] / "exporter" / "samples"


def test_every_sample_has_a_recording() -> None:
    assert {each.name for each in FILES.iterdir()} == {f"{name}.jsonl.gz" for name in SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_replays(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--metrics", f"sample:{name}"]) == 0
    assert "cuda_mps_daemon_up{" in capsys.readouterr().out


def test_the_fault_of_the_first_sample_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--events", "sample:culprit_trap"]) == 0
    assert '"event": "fault"' in capsys.readouterr().out


def test_list_names_every_sample(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == [f"sample:{name}" for name in SAMPLES]


@pytest.mark.parametrize("arguments", [("sample:none",), ("sample:../../etc/passwd",), ()])
def test_another_sample_and_a_missing_file_are_errors(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["replay", "--events", *arguments]) == 2
    assert "sample" in capsys.readouterr().err
