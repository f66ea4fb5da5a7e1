"""The systemd units are ones that systemd takes, and the exporter's is shut tight enough; with its drop-ins too."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.tools import needed

SYSTEMD = Path(__file__).parents[1] / "systemd"
UNIT = SYSTEMD / "cuda-mps-exporter.service"
DAEMON = SYSTEMD / "nvidia-mps.service"
DROP_INS = sorted((SYSTEMD / f"{UNIT.name}.d").glob("*.conf"))


@pytest.fixture(params=[None, *DROP_INS], ids=lambda each: "alone" if each is None else each.stem)
def installed(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The unit, alone or with one of its drop-ins, where its program is."""
    unit = tmp_path / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/cuda-mps-exporter/bin/cuda-mps-exporter", "/bin/true"))
    if request.param is not None:
        drop_ins = tmp_path / f"{UNIT.name}.d"
        drop_ins.mkdir()
        shutil.copy(request.param, drop_ins)
    return unit


def test_systemd_finds_nothing_wrong_but_the_missing_installation(installed: Path) -> None:
    done = subprocess.run([needed("systemd-analyze"), "verify", installed], capture_output=True, text=True, check=False)

    assert installed.name not in done.stdout + done.stderr


def test_systemd_finds_nothing_wrong_with_the_daemons_unit_but_the_missing_driver(tmp_path: Path) -> None:
    unit = tmp_path / DAEMON.name
    unit.write_text(DAEMON.read_text().replace("/usr/bin/nvidia-cuda-mps-control", "/bin/true"))
    done = subprocess.run([needed("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False)

    assert DAEMON.name not in done.stdout + done.stderr


def test_exposure_is_low(installed: Path) -> None:
    done = subprocess.run(
        [needed("systemd-analyze"), "security", "--offline=true", "--threshold=30", installed],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kernels_log_is_open_by_its_drop_in_alone() -> None:
    """What hides it in the unit, the drop-in takes away; it gives nothing else."""

    def settings(path: Path) -> dict[str, str]:
        return dict(re.findall(r"^(\w+)=(.*)$", path.read_text(), re.MULTILINE))

    assert settings(UNIT)["ProtectKernelLogs"] == "yes"
    assert "CAP_SYSLOG" not in UNIT.read_text()
    assert settings(SYSTEMD / f"{UNIT.name}.d" / "kernel-log.conf") == {
        "ProtectKernelLogs": "no",
        "DeviceAllow": "/dev/kmsg r",
        "CapabilityBoundingSet": "CAP_SYSLOG",
        "AmbientCapabilities": "CAP_SYSLOG",
    }
