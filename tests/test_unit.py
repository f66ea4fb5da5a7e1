"""The systemd units are ones that systemd takes, and the exporter's is shut tight enough."""

import subprocess
from pathlib import Path

import pytest

from tests.tools import needed

UNITS = Path(__file__).parents[1] / "systemd"
UNIT = UNITS / "cuda-mps-exporter.service"
DAEMON = UNITS / "nvidia-mps.service"


@pytest.mark.parametrize(
    ("unit", "program"),
    [
        (UNIT, "/opt/cuda-mps-exporter/bin/cuda-mps-exporter"),
        (DAEMON, "/usr/bin/nvidia-cuda-mps-control"),
    ],
    ids=lambda each: each.name if isinstance(each, Path) else "",
)
def test_systemd_finds_nothing_wrong_but_the_missing_installation(tmp_path: Path, unit: Path, program: str) -> None:
    installed = tmp_path / unit.name
    installed.write_text(unit.read_text().replace(program, "/bin/true"))
    done = subprocess.run([needed("systemd-analyze"), "verify", installed], capture_output=True, text=True, check=False)

    assert unit.name not in done.stdout + done.stderr


def test_exposure_is_low() -> None:
    done = subprocess.run(
        [needed("systemd-analyze"), "security", "--offline=true", "--threshold=30", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
