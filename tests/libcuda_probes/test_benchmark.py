"""The benchmark of the probes succeeds and measures a cost."""

import json
from pathlib import Path

import pytest

from benchmarks.probed_call import main


@pytest.mark.usefixtures("kernel")
def test_a_probed_call_costs_something(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "figures.json"

    assert main(["--pairs=2", "--launches=500", f"--json={file}"]) == 0

    printed = capsys.readouterr().out
    figures = {each["name"]: each["value"] for each in json.loads(file.read_text())["figures"]}
    assert figures["launch, added, mean"] > 0
    assert figures["launch and wait, added, mean"] > 0
    assert all(name in printed for name in figures)
