"""A starvation that `lab/starvation` recorded on a real GPU raises the alert, and its end resolves it."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from lab.starvation import runbook
from lab.starvation.__main__ import shortened
from lab.starvation.alert import Verdict, verdict
from tests.alerts.test_resolution import RESOLVED_SECONDS

RECORDED = sorted((Path(__file__).parents[1] / "recordings" / "starvation").glob("*.json"))
STEP, BEGAN = 5, 1000.0


def recorded(*slowdowns: float, ended: float, error: float = 0.1) -> dict[str, Any]:
    """Return samples of a client with these slowdowns, one each five seconds from 60 s before the begin on."""
    labels = '{client="600-1",daemon="/tmp/nvidia-mps",gpu="GPU-1"}'
    values = {"ratio": slowdowns, "error_ratio": (error,) * len(slowdowns)}
    return {
        "about": {"clients": ["600-1", "601-1"], "began": BEGAN, "ended": BEGAN + ended},
        "at": " ".join(str(BEGAN - 60 + STEP * number) for number in range(len(slowdowns))),
        "series": {f"cuda_mps_client_slowdown_{name}{labels}": written(row) for name, row in values.items()},
    }


def written(values: Sequence[float]) -> str:
    return " ".join(map(str, values))


@pytest.mark.systems
def test_a_short_starvation_is_extended_until_the_alert_fires() -> None:
    eight_minutes = [1.0] * 13 + [4.0] * 96 + [1.5] * 6
    found = verdict(recorded(*eight_minutes, ended=480))
    assert found == Verdict(pending=15.0, fires=615.0, resolves=15.0, is_wrong=False, extended_seconds=240)


@pytest.mark.systems
def test_a_long_starvation_is_not_extended() -> None:
    assert verdict(recorded(*[1.0] * 13, *[4.0] * 180, 1.0, 1.0, 1.0, 1.0, ended=900)).extended_seconds == 0


@pytest.mark.systems
@pytest.mark.parametrize("slowdown", [1.9, 2.15])
def test_a_slowdown_that_is_not_clearly_above_two_raises_nothing(slowdown: float) -> None:
    found = verdict(recorded(*[1.0] * 13, *[slowdown] * 160, ended=800))
    assert (found.pending, found.fires) == (None, None)


@pytest.mark.systems
@pytest.mark.parametrize("path", RECORDED, ids=lambda path: path.stem)
def test_a_recorded_starvation_raises_the_alert_in_time(path: Path) -> None:
    """The slowdown is that of the last minute, so it exceeds the threshold, and falls below it, within that time."""
    samples = json.loads(path.read_text())
    found = verdict(samples)
    assert found.fires is not None
    assert found.resolves is not None
    assert 600 <= found.fires <= 690
    assert found.resolves <= RESOLVED_SECONDS
    assert not found.is_wrong
    causes = [name for name in samples["series"] if name.startswith("cuda_mps_client_slowdown_info{")]
    mine = [name for name in causes if f'client="{samples["about"]["clients"][0]}"' in name]
    assert any('resource="memory_bandwidth"' in name and "neighbour=" in name for name in mine)


def test_the_lab_executes_commands_that_the_runbook_has() -> None:
    assert runbook.command("cuda-mps-exporter").startswith("cuda-mps-exporter status |")
    limit = runbook.command("set_active_thread_percentage")
    assert limit.splitlines()[0].startswith(f"export CUDA_MPS_PIPE_DIRECTORY={runbook.DIRECTORY} ")
    assert "'set_active_thread_percentage SERVER 50'" in limit


def test_a_copy_of_the_exporter_finds_starvation_earlier(tmp_path: Path) -> None:
    copy = shortened(tmp_path / "copy", 240.0)
    assert "\nSTARVED_SECONDS = 240 " in (copy / "exporter" / "usage" / "contention.py").read_text()
    assert (copy / "exporter" / "runbooks" / "CudaMpsClientStarved.md").is_file()
