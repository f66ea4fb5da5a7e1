"""README.md and docs/reference.md are short, and the quick reference lists what the code has."""

import argparse
import re
from enum import StrEnum
from pathlib import Path

import pytest

from exporter.commands.arguments import add_arguments
from exporter.config.load import FILE_VARIABLE
from exporter.metrics.gpus import SHARED_KINDS
from exporter.model.action import ActionKind, ActionReason, ActionResult
from exporter.model.daemon import ClaimKind, DaemonState, LossReason
from exporter.model.gpu import SharingMode
from exporter.model.identity import WorkloadKind
from exporter.model.incident import FaultKind, IncidentEnd
from exporter.model.server import DisconnectReason, RefusalReason, ServerState
from exporter.model.settings import Mode
from exporter.model.usage import Method
from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.usage.capacity import Bound

ROOT = Path(__file__).parents[1]
REFERENCE = (ROOT / "docs" / "reference.md").read_text()
ROWS = {
    cells[0]: cells[1:]
    for line in REFERENCE.splitlines()
    if line.startswith("| ")
    for cells in [[cell.strip() for cell in line.strip("|").split("|")]]
}
VALUES: dict[str, type[StrEnum]] = {
    "daemon `state`": DaemonState,
    "server `state`": ServerState,
    "watchdog `mode`": Mode,
    "watchdog `state`": WatchdogPhase,
    "`diagnosis`": Condition,
    "watchdog blocked `reason`": BlockReason,
    "`action`": ActionKind,
    "action `reason`": ActionReason,
    "action `result`": ActionResult,
    "incident `kind`": FaultKind,
    "incident ending (JSON)": IncidentEnd,
    "loss `reason`": LossReason,
    "refusal `reason`": RefusalReason,
    "disconnect `reason`": DisconnectReason,
    "log `claim`": ClaimKind,
    "`method`": Method,
    "`bound`": Bound,
    "GPU sharing `mode`": SharingMode,
}
COMMANDS = ("serve", "status", "incidents", "doctor", "pause", "resume", "record", "replay", "demo", "once")


def quoted(text: str) -> list[str]:
    """Return the words in backquotes."""
    return re.findall(r"`([^`]+)`", text)


def test_lists_all_values_of_a_label(subtests: pytest.Subtests) -> None:
    for label in VALUES:
        with subtests.test(label=label):
            assert quoted(ROWS[label][0]) == [each.value for each in VALUES[label]]


def test_lists_all_kinds_of_workloads_and_accounts() -> None:
    assert quoted(ROWS["`workload_kind`"][0]) == [*(each.value for each in WorkloadKind), *SHARED_KINDS.values()]


def test_options_of_a_command_exist(subtests: pytest.Subtests) -> None:
    for command in COMMANDS:
        with subtests.test(command=command):
            parser = argparse.ArgumentParser()
            add_arguments(parser, command)
            options = parser.format_help()

            row = next(cells for first, cells in ROWS.items() if re.match(rf"`{command}\b", first))

            for option in quoted(" ".join(row[:2])):
                assert option.rstrip("…") in options


def test_lists_every_endpoint_of_the_endpoint_page() -> None:
    documented = re.findall(r"^\| (`/.*?) \|", (ROOT / "docs" / "web.md").read_text(), re.MULTILINE)
    paths = set(quoted(" ".join(first for first in ROWS if first.startswith("`/"))))

    assert documented
    assert set(quoted(" ".join(documented))) <= paths


def test_names_the_variable_of_the_configuration_file() -> None:
    assert f"`{FILE_VARIABLE}`" in ROWS


@pytest.mark.parametrize(("page", "limit"), [("README.md", 1150), ("docs/reference.md", 850)])
def test_page_is_short(page: str, limit: int) -> None:
    assert len((ROOT / page).read_text().split()) <= limit
