"""The service with a control program that cannot be used: the daemon has a problem, and is not starting."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.eventually import eventually
from tests.exporter_process import Exporter, run
from tests.standin.mps import MpsStandIn

FAST = {"control_deadline": 2.0, "intervals": {"liveness": 0.5, "stale": 0.3}}
"""Shorter intervals, so that tests need not wait long."""


def program_missing(_path: Path) -> str:
    return "was not found"


def program_not_executable(path: Path) -> str:
    path.write_text("#!/bin/sh\n")
    return "Permission denied"


def program_without_interpreter(path: Path) -> str:
    path.write_text("#!/nothing/here\n")
    path.chmod(0o755)
    return "was not found"


def program_fails(path: Path) -> str:
    path.write_text("#!/bin/sh\necho no libcuda >&2\nexit 127\n")
    path.chmod(0o755)
    return "failed with exit code 127: no libcuda"


@pytest.mark.parametrize("runs", [True, False], ids=["daemon runs", "no daemon"])
@pytest.mark.parametrize(
    "unusable", [program_missing, program_not_executable, program_without_interpreter, program_fails]
)
def test_an_unusable_control_program_is_a_problem_with_a_remedy(
    unusable: Callable[[Path], str],
    runs: bool,
    mps: MpsStandIn,
    serve: Callable[..., Exporter],
    environment: dict[str, str],
    tmp_path: Path,
) -> None:
    path = tmp_path / "program"
    reason = unusable(path)
    if runs:
        mps.start()
    serve(overrides=FAST | {"control_executable": str(path)})

    def reported() -> None:
        shown = run(environment, "status", "--json")
        node = json.loads(shown.stdout)
        (daemon,) = node["daemons"]
        (finding,) = (each for each in node["findings"] if each["daemon"] == str(mps.pipe_directory))
        assert shown.returncode == 1
        assert daemon["state"] in (("unknown", None) if runs else ("absent", "unknown", None))
        assert finding["code"] == "daemon_not_queried"
        assert reason in finding["text"]
        assert "cuda-mps-exporter doctor" in finding["commands"]

    eventually(reported)
