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

UNUSABLE = (
    (None, 0o644, "was not found"),
    ("#!/bin/sh\n", 0o644, "Permission denied"),
    ("#!/nothing/here\n", 0o755, "was not found"),
    ("#!/bin/sh\necho no libcuda >&2\nexit 127\n", 0o755, "failed with exit code 127: no libcuda"),
)
"""The text of a control program, its mode, and why it cannot be used."""


def make(path: Path, text: str | None, mode: int) -> None:
    path.unlink(missing_ok=True)
    if text is not None:
        path.write_text(text)
        path.chmod(mode)


def assert_reported(environment: dict[str, str], reason: str, *states: str) -> None:
    shown = run(environment, "status", "--json")
    node = json.loads(shown.stdout)
    (daemon,) = node["daemons"]
    (finding,) = (each for each in node["findings"] if environment["CUDA_MPS_PIPE_DIRECTORY"] in each["daemons"])
    assert shown.returncode == 1
    assert daemon["state"] in (*states, None)
    assert finding["code"] == "daemon_not_queried"
    assert reason in finding["text"]
    assert "cuda-mps-exporter doctor" in finding["steps"][0]["commands"]


@pytest.mark.systems
def test_an_unusable_control_program_of_a_running_daemon_is_a_problem_with_a_remedy(
    mps: MpsStandIn, serve: Callable[..., Exporter], environment: dict[str, str], tmp_path: Path
) -> None:
    path = tmp_path / "program"
    mps.start()
    exporter = serve(overrides=FAST | {"control_executable": str(path)})

    def has_noticed(reason: str) -> None:
        assert reason in json.dumps(exporter.page("/api/v1/status"))

    for text, mode, reason in UNUSABLE:
        make(path, text, mode)
        # A command takes longer than a request, and is run once for each.
        eventually(lambda reason=reason: has_noticed(reason))  # type: ignore[misc]
        eventually(lambda reason=reason: assert_reported(environment, reason, "unknown"))  # type: ignore[misc]


def test_an_unusable_control_program_without_a_daemon_is_a_problem_with_a_remedy(
    serve: Callable[..., Exporter], environment: dict[str, str], tmp_path: Path
) -> None:
    """Later, the exporter knows that no daemon runs, and reports that."""
    text, mode, reason = UNUSABLE[0]
    make(tmp_path / "program", text, mode)
    serve(overrides=FAST | {"control_executable": str(tmp_path / "program")})
    eventually(lambda: assert_reported(environment, reason, "down", "unknown"))
