"""The systemd units are ones that systemd takes, and the exporter's is shut tight enough; with its drop-ins too."""

import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.tools import needed

SYSTEMD = Path(__file__).parents[1] / "systemd"
UNIT = SYSTEMD / "cuda-mps-exporter.service"
DAEMONS = (SYSTEMD / "nvidia-cuda-mps.service", SYSTEMD / "nvidia-cuda-mps@.service")
DROP_INS = sorted((SYSTEMD / f"{UNIT.name}.d").glob("*.conf"))

EXPOSURE = {"": 26, "act": 29, "bpf": 26, "journal": 26, "kernel-log": 29, "act bpf journal kernel-log": 33}
"""At most, in tenths: alone, with each of its drop-ins, and with all."""


def _verified(unit: Path) -> str:
    """What systemd finds wrong in a unit."""
    done = subprocess.run([needed("systemd-analyze"), "verify", unit], capture_output=True, text=True, check=False)
    lines = (done.stdout + done.stderr).splitlines()
    return "\n".join(line for line in lines if unit.name.partition("@")[0].partition(".")[0] in line)


def _installed(directory: Path, drop_ins: Sequence[str] = ()) -> Path:
    """The unit, with these drop-ins, where its program is."""
    unit = directory / UNIT.name
    unit.write_text(UNIT.read_text().replace("/opt/cuda-mps-exporter/bin/cuda-mps-exporter", "/bin/true"))
    (directory / f"{UNIT.name}.d").mkdir()
    for name in drop_ins:
        shutil.copy(SYSTEMD / f"{UNIT.name}.d" / f"{name}.conf", directory / f"{UNIT.name}.d")
    return unit


def test_every_drop_in_is_tested() -> None:
    assert " ".join(each.stem for each in DROP_INS) in EXPOSURE
    assert all(each.stem in EXPOSURE for each in DROP_INS)


@pytest.mark.parametrize("drop_ins", EXPOSURE, ids=lambda each: each or "alone")
def test_systemd_accepts_the_unit_and_its_exposure(drop_ins: str, tmp_path: Path) -> None:
    unit = _installed(tmp_path, drop_ins.split())
    assert _verified(unit) == ""

    done = subprocess.run(
        [needed("systemd-analyze"), "security", "--offline=true", f"--threshold={EXPOSURE[drop_ins]}", unit],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("source", DAEMONS, ids=lambda each: each.name)
def test_systemd_accepts_the_units_of_daemons(source: Path, tmp_path: Path) -> None:
    unit = tmp_path / source.name.replace("@.", "@0.")
    unit.write_text(source.read_text())

    assert _verified(unit) == ""


def test_the_two_units_of_daemons_differ_only_in_paths() -> None:
    """What is learned of the one holds for the other."""
    node, gpu = ([line for line in each.read_text().splitlines() if not line.startswith("#")] for each in DAEMONS)
    places = re.compile(r"Description|Environment|LogsDirectory|RuntimeDirectory")

    assert [line for line in node if not places.match(line)] == [line for line in gpu if not places.match(line)]


@pytest.mark.parametrize("name", [each.stem for each in DROP_INS])
def test_a_drop_in_adds_a_right(name: str) -> None:
    """What hides it in the unit, the drop-in takes away; it gives nothing else."""
    text = (SYSTEMD / f"{UNIT.name}.d" / f"{name}.conf").read_text()

    assert (
        dict(re.findall(r"^(\w+)=(.*)$", text, re.MULTILINE))
        == {
            "act": {
                "Environment": "CUDA_MPS_EXPORTER_WATCHDOG_MODE=act",
                "CapabilityBoundingSet": "CAP_KILL CAP_SETUID CAP_SETGID",
                "AmbientCapabilities": "CAP_KILL CAP_SETUID CAP_SETGID",
            },
            "bpf": {
                "Environment": "CUDA_MPS_EXPORTER_ATTRIBUTION=bpf",
                "CapabilityBoundingSet": "CAP_BPF CAP_PERFMON",
                "AmbientCapabilities": "CAP_BPF CAP_PERFMON",
                "SystemCallFilter": "bpf perf_event_open",
                "LimitMEMLOCK": "16M",
            },
            "journal": {"SupplementaryGroups": "systemd-journal"},
            "kernel-log": {
                "ProtectKernelLogs": "no",
                "DeviceAllow": "/dev/kmsg r",
                "CapabilityBoundingSet": "CAP_SYSLOG",
                "AmbientCapabilities": "CAP_SYSLOG",
            },
        }[name]
    )


def test_the_example_configuration_is_valid() -> None:
    command = [sys.executable, "-m", "exporter", "serve", "--config.check", f"--config.file={SYSTEMD / 'config.toml'}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (done.returncode, done.stderr) == (0, "")
    assert 'unit = "nvidia-cuda-mps.service"' in done.stdout
