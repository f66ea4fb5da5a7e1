"""The sample recordings that are installed with the program."""

from pathlib import Path

import pytest

from exporter.cli import main
from exporter.commands.replay import SAMPLES

RECORDINGS = Path(__file__).parents[1] / "recordings"
FILES = Path(__file__).parents[2] / "exporter" / "samples"


def test_every_sample_has_a_recording() -> None:
    assert {each.name for each in FILES.iterdir()} == {f"{name}.jsonl.gz" for name in SAMPLES}


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_replays(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", "--metrics", f"sample:{name}"]) == 0
    assert "cuda_mps_daemon_up{" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "event"),
    {
        "client_traps": "fault",
        "two_gpus_fault_on_0": "fault",
        "control_killed": "daemon_lost",
        "control_hangs": "daemon_unresponsive",
        "crash_loop": "server_crash_loop",
        "client_bypasses": "process_bypassing",
    }.items(),
)
def test_a_sample_shows_what_its_description_names(name: str, event: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert name in SAMPLES
    assert main(["replay", "--events", f"sample:{name}"]) == 0
    assert f'"event": "{event}"' in capsys.readouterr().out


def test_each_sample_is_a_recording_of_the_tests() -> None:
    originals = {each.read_bytes() for each in RECORDINGS.glob("*.gz")}
    samples = [each.read_bytes() for each in FILES.glob("*.gz")]
    assert originals.issuperset(samples)
    assert sum(map(len, samples)) < 60_000


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
