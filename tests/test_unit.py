"""The systemd unit is one that systemd takes, and is shut tight enough."""

import subprocess
from pathlib import Path

from tests.tools import needed

UNIT = Path(__file__).parents[1] / "systemd" / "cuda-mps-exporter.service"


def test_systemd_finds_nothing_wrong_but_the_missing_installation(tmp_path: Path) -> None:
    installed = tmp_path / UNIT.name
    installed.write_text(UNIT.read_text().replace("/opt/cuda-mps-exporter/bin/cuda-mps-exporter", "/bin/true"))
    done = subprocess.run([needed("systemd-analyze"), "verify", installed], capture_output=True, text=True, check=False)

    assert UNIT.name not in done.stdout + done.stderr


def test_exposure_is_low() -> None:
    done = subprocess.run(
        [needed("systemd-analyze"), "security", "--offline=true", "--threshold=30", UNIT],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
