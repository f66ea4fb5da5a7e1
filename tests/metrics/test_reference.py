"""docs/METRICS.md lists all values of all labels with a closed set of values, and a valid example for each group."""

import re
from collections.abc import Iterable
from pathlib import Path

import pytest

from exporter.metrics.catalogue import CATALOGUE, GROUPS
from exporter.metrics.family import Group
from exporter.model.action import ActionResult
from exporter.model.daemon import ClaimKind, DaemonState, LossReason
from exporter.model.gpu import SharingMode
from exporter.model.identity import WorkloadKind
from exporter.model.incident import FaultKind
from exporter.model.server import DisconnectReason, RefusalReason, ServerState
from exporter.model.settings import Mode
from exporter.model.usage import Method
from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.usage.capacity import Bound
from tests.builders import SCENES
from tests.metrics.test_families import families
from tests.promql import problems, selectors, unrated

PAGE = (Path(__file__).parents[2] / "docs" / "METRICS.md").read_text()
BY_NAME = {family.name: family for family in CATALOGUE}

FREE = {
    "claim_name", "claim_namespace", "claim_uid", "client", "client_container", "client_container_name",
    "compute_instance", "gpu_instance", "mps_namespace", "parent", "partition", "profile",
    "client_namespace", "client_pod", "client_pod_uid", "command", "confidence", "cuda",
    "daemon_namespace", "daemon_pod",
    "daemon", "driver", "file", "gpu", "incident", "index", "name", "pci_bus_id", "pid", "pipe_directory", "protocol",
    "python", "reading", "resource", "server", "slurm_job_id", "slurm_job_sluid", "source", "suspect_workload", "task",
    "uid", "unit", "user", "version", "workload", "xid",
}  # fmt: skip
"""Labels that can have any value."""

ENUMS: dict[tuple[str, str], Iterable[str]] = {
    ("cuda_mps_daemon_state", "state"): DaemonState,
    ("cuda_mps_daemon_losses_total", "reason"): LossReason,
    ("cuda_mps_daemon_log_contradictions_total", "claim"): ClaimKind,
    ("cuda_mps_clients_disconnected_total", "reason"): DisconnectReason,
    ("cuda_mps_clients_refused_total", "reason"): RefusalReason,
    ("cuda_mps_server_state", "state"): ServerState,
    ("cuda_mps_workload_clients", "workload_kind"): WorkloadKind,
    ("cuda_mps_client_sm_utilization_ratio", "method"): Method,
    ("cuda_mps_gpu_clients_fit", "bound"): Bound,
    ("cuda_mps_fault_info", "kind"): FaultKind,
    ("cuda_mps_watchdog_mode", "mode"): Mode,
    ("cuda_mps_watchdog_blocked", "reason"): BlockReason,
    ("cuda_mps_watchdog_state", "state"): WatchdogPhase,
    ("cuda_mps_watchdog_diagnosis", "diagnosis"): Condition,
    ("cuda_mps_watchdog_restarts_total", "result"): ActionResult,
    ("cuda_mps_gpu_sharing_mode", "mode"): SharingMode,
}


def section(group: Group) -> str:
    """Return a group's section of the page."""
    return PAGE.partition(f"## {group.title}\n")[2].partition("\n## ")[0]


def listed(group: Group, family: str, label: str) -> list[str]:
    """Return the values that the page lists for a family's label."""
    lines = re.findall(rf"^- `{label}`(?: of (.*))?: (.*)$", section(group), re.MULTILINE)
    (values,) = (values for families, values in lines if not families or f"`{family}`" in families)
    return [value.strip("`") for value in values.replace("empty", "").split(", ")]


def test_every_label_is_free_or_has_its_values_listed() -> None:
    for family in CATALOGUE:
        assert set(family.labels) - FREE == set(family.choices), family.name


def test_the_page_lists_every_value_of_each_label_with_a_closed_set() -> None:
    for each in GROUPS:
        for family in each.families:
            for label, values in family.choices.items():
                assert listed(each, family.name, label) == list(values), (family.name, label)


def test_listed_values_are_those_of_the_enum(subtests: pytest.Subtests) -> None:
    for family, label in ENUMS:
        with subtests.test(family=family, label=label):
            assert BY_NAME[family].choices[label] == tuple(ENUMS[family, label])


def test_samples_have_listed_values_only(subtests: pytest.Subtests) -> None:
    for scene in SCENES.values():
        with subtests.test(scene=scene):
            for name, family in families(scene()).items():
                for sample in family.samples:
                    for label, values in BY_NAME[name].choices.items():
                        assert sample.labels[label] in values, (name, label)


def test_each_group_has_a_valid_example_about_its_families(subtests: pytest.Subtests) -> None:
    for each in GROUPS:
        with subtests.test(each=each):
            assert f"```promql\n{each.query}\n```" in section(each)
            assert problems(each.query) == []
            assert unrated(each.query) == []
            assert {selector.name for selector in selectors(each.query)} & {family.name for family in each.families}
