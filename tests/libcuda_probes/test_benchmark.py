"""The benchmarks of the probes succeed and measure a cost."""

import json
import math
from pathlib import Path

import pytest

from benchmarks import cpu
from benchmarks.probed_call import main


@pytest.mark.usefixtures("kernel")
def test_reports_the_time_of_a_call_with_and_without_probes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"

    assert main(["--pairs=2", "--launches=500", f"--json={file}"]) == 0

    printed = capsys.readouterr().out
    figures = {each["name"]: each["value"] for each in json.loads(file.read_text())["figures"]}
    # On a busy machine, the difference of so few calls may be negative.
    for name in ("launch", "launch and wait"):
        assert min(figures[f"{name}, {each}, median"] for each in ("unwatched", "watched")) > 0
        assert math.isfinite(figures[f"{name}, added, mean"])
    assert all(name in printed for name in figures)


@pytest.mark.systems
@pytest.mark.usefixtures("kernel")
def test_attribution_uses_cpu_time(tmp_path: Path) -> None:
    file = tmp_path / "figures.json"
    small = ("--clients=2", "--seconds=1", "--settle=0", "--flag=--client-min-age=0")

    assert cpu.main(["--attribution", *small, f"--json={file}"]) in (0, 1)

    figures = {each["name"]: each["value"] for each in json.loads(file.read_text())["figures"]}
    assert figures["its own"] > 0
