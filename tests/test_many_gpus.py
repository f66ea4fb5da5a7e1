"""The plans of lab/ for any number of GPUs, and how their results are compared with the truth."""

import json
from pathlib import Path
from typing import Any
from unittest.mock import ANY, MagicMock

import pytest

from exporter.model.contention import ContentionWindow
from lab.attribution.frameworks import captured
from lab.attribution.several_gpus import counted
from lab.contention.plan import all_reduce
from lab.contention.plan import several_gpus as slowdown
from lab.contention.score import LAG_SECONDS, steps_a_second
from lab.fault_trials.files import TrialFiles
from lab.fault_trials.plans import ranks, several_gpus
from lab.fault_trials.results import domains
from lab.gpu.scrape import parse
from lab.limits.__main__ import environments, phases
from lab.many_gpus.alerts import series_of
from lab.many_gpus.daemons import changes, findings_of_others

SERVER_CLIENTS = 48


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_plans_use_each_gpu(gpus: int) -> None:
    everywhere = set(range(gpus))
    trials = several_gpus(gpus)
    causes = [next(part for part in trial.parts if part.name == trial.cause) for trial in trials]
    assert len(trials) == 12
    assert {len(part.gpus) for part in causes} == {1, 2, gpus}
    assert {int(str(part.options["devices"]).split(",")[0]) for part in causes} == everywhere
    assert set().union(*(load.visible for load in counted(gpus))) == everywhere
    for scene in (slowdown(gpus), all_reduce(gpus, "/store")):
        assert set().union(*(load.gpus for load in scene.loads.values())) == everywhere
        assert {name for phase in scene.phases for name in phase.clients} == scene.loads.keys()


@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_phases_of_contention_leave_time_to_start_and_to_end(gpus: int) -> None:
    start_and_end = 40.0
    for scene, seconds in ((slowdown(gpus), 150.0), (all_reduce(gpus, "/store"), 120.0)):
        assert sum(phase.seconds + scene.settle for phase in scene.phases) + start_and_end <= seconds


def test_true_steps_are_those_of_the_windows_that_the_exporter_has() -> None:
    boot_minus_epoch_ns = -5_000_000_000
    rows = [(0, 0), (10_000_000_000, 100), (20_000_000_000, 400)]
    slow, fast = (ContentionWindow(at=at + LAG_SECONDS, seconds=1.0) for at in (9.0, 19.0))
    assert steps_a_second(rows, [slow], boot_minus_epoch_ns) == pytest.approx(10.0)
    assert steps_a_second(rows, [fast], boot_minus_epoch_ns) == pytest.approx(30.0)
    assert steps_a_second(rows, [slow, fast], boot_minus_epoch_ns) == pytest.approx(20.0)
    assert steps_a_second(rows, [], boot_minus_epoch_ns) is None


def test_a_graph_is_captured_on_a_stream_of_the_current_device() -> None:
    torch, launch = MagicMock(), MagicMock()
    assert captured(torch, launch).launch is launch  # The graph's memory is that of the function.
    torch.cuda.graph.assert_called_once_with(ANY, stream=torch.cuda.Stream.return_value)


def test_trials_have_the_clients_that_share_a_gpu_with_the_cause() -> None:
    sizes = {(trial.name.split("_")[2], len(trial.facts["domain"])) for trial in several_gpus(4)}
    assert sizes == {("apart", 2), ("two", 3), ("all", 5)}
    domains_beside_ranks = [trial.facts["domain"] for trial in ranks(4)]
    assert (
        domains_beside_ranks == [["rank0", "cause"]] * 2 + [["cause", "neighbour0"]] * 2 + [["cause", "neighbour3"]] * 2
    )


@pytest.mark.parametrize("gpus", [1, 8])
def test_clients_with_all_orders_and_limits_fit_one_server(gpus: int) -> None:
    environment = [*environments([f"GPU-{gpu}" for gpu in range(gpus)])]
    assert len(environment) <= SERVER_CLIENTS
    assert any("GPU-7,GPU-0" in own.values() for own, _ in environment) == (gpus == 8)
    assert [phase.visible for phase in phases(gpus)][2:] == ([(7, 6, 5, 4, 3, 2, 1, 0), (7, 0)] if gpus == 8 else [])


def trial_files(directory: Path, affected: list[int]) -> TrialFiles:
    """Return a trial in which the clients 1 and 2 failed, and 3 later, with this incident."""
    moment = 1000.0
    clients = {
        str(pid): {"name": f"client{pid}", "bypasses": False, "cuda_errors": [{"at": moment + after}]}
        for pid, after in ((1, 0.1), (2, 0.2), (3, 3.0))
    }
    truth: dict[str, Any] = {"moment": moment, "clients": clients, "refused": [], "victims": [2], "cause": 1}
    truth |= {"fault_kind": "oob", "facts": {"domain": ["client1", "client2"]}}
    incident: dict[str, Any] = {"started_at": moment, "kind": "memory", "core_dumps": "", "refused": [], "suspects": []}
    incident["affected"] = [{"pid": pid} for pid in affected]
    later = {**incident, "started_at": moment + 3, "affected": [{"pid": 3}]}
    reports = [{"first": {"answered": each["started_at"] + 0.3}, "last": each} for each in (incident, later)]
    (directory / "t.truth.json").write_text(json.dumps(truth))
    (directory / "t.live.json").write_text(json.dumps({"incidents": reports, "faults": []}))
    return TrialFiles(directory / "t.truth.json")


@pytest.mark.parametrize(("affected", "exact"), [([1, 2], 1), ([1], 0), ([1, 2, 4], 0)])
def test_affected_clients_are_compared_with_the_clients_that_failed(
    tmp_path: Path, affected: list[int], exact: int
) -> None:
    lines = [*domains([trial_files(tmp_path, affected)])]
    assert lines[-1] == f"affected clients exact: {exact} of 1"
    assert "failed client1 client2," in lines[0]


def test_only_changes_of_the_other_daemons_count() -> None:
    before, after = (
        parse("".join(f'cuda_mps_daemon_up{{daemon="{name}"}} {up}\n' for name, up in states.items()))
        for states in ({"gpu0": 1, "gpu1": 1}, {"gpu0": 0, "gpu1": 1})
    )
    assert changes(before, after, "gpu1") == []
    assert changes(before, after, "gpu0") == ["cuda_mps_daemon_up {'daemon': 'gpu0'}: 1 to 0"]
    findings = [{"code": "daemon_down", "daemons": ["gpu0"]}, {"code": "fault", "daemons": ["gpu1", "gpu2"]}]
    assert findings_of_others({"findings": findings}, {"", "gpu0"}) == ["fault of gpu1, gpu2"]


def test_times_of_recorded_samples_begin_at_the_first_one() -> None:
    text = 'cuda_mps_daemon_up{daemon="a b"} 1\ncuda_mps_fault_last_timestamp_seconds{daemon="a b"} 1003\nx NaN\n'
    samples = [{"at": 1000.0, "text": "# HELP x\n"}, {"at": 1005.0, "text": text}]
    assert series_of(samples) == {
        'cuda_mps_daemon_up{daemon="a b"}': [None, 1.0],
        'cuda_mps_fault_last_timestamp_seconds{daemon="a b"}': [None, 3.0],
        "x": [None, None],
    }
