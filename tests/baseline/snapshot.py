"""`python -m tests.baseline.snapshot FOLDER`: write what users see of recordings, demo scenes and planted mistakes.

`tests.baseline.compare` runs this program at two commits and compares the folders. Each file has one JSON value.
"""

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from exporter.config.settings import Config
from exporter.demo.simulation import FAILURES, PlannedFailure, Simulation
from exporter.doctor import examine, report_lines, report_object
from exporter.history import History
from exporter.model.node import Node
from exporter.model.settings import Mode
from exporter.model.values import plain
from exporter.page.page import Page
from exporter.parse.printable import printable_value
from exporter.policy import dry_run, policy_for
from exporter.recording import Recording, open_recording
from exporter.report.incident_status import incident_status
from exporter.report.incident_text import incidents_table
from exporter.report.node_status import status_document
from exporter.report.remedy import address_of
from exporter.report.status_text import status_lines
from exporter.report.text import text_of
from exporter.view import StatusInput
from exporter.watchdog.context import Policy
from tests.baseline import replayed
from tests.clocks import HandClock
from tests.doctor.test_checks import MISTAKES
from tests.simulated import ACTING, POLICY, minutes
from tests.status import as_json

MOMENTS = 4
"""A recording is shown after each quarter of its observations."""

SCENE_MINUTES = 4
SEEDS = (1, 2, 3)


def shown(node: Node, history: History, policy: Policy) -> dict[str, Any]:
    """Return what `status`, `incidents` and the page show of a node."""
    data = StatusInput(
        node=node,
        at=node.at,
        host="node1",
        incidents=history.incidents,
        events=history.timeline,
        samples=history.samples,
        policy=policy,
    )
    page = re.sub(r"<style.*?</style>|<script.*?</script>", "", Page({}).node(data).decode(), flags=re.DOTALL)
    document = status_document(data)
    incidents = tuple(
        incident_status(each, node.at, address_of(node, each.daemon, policy)) for each in history.incidents[:100]
    )
    return {
        "status": as_json(document),
        "status_text": text_of(status_lines(document)).splitlines(),
        "incidents": printable_value(plain(incidents)),
        "incidents_text": text_of(incidents_table(incidents)).splitlines(),
        "page": page.splitlines(),
    }


def recordings() -> Iterator[tuple[str, Any]]:
    """Yield each recording: its events and metrics with the decisions of a watchdog that acts, and its moments."""
    for path in replayed.RECORDINGS:
        with open_recording(str(path), "r") as file:
            recording = Recording(file)
            start, history = recording.header.node(), History()
            observations = list(recording.observations())
        policy = policy_for(start, Mode.ACT, Config().constants.rules)
        moments = {observations[len(observations) * part // MOMENTS - 1].at for part in range(1, MOMENTS)}
        found, node = [], start
        for node, events in dry_run(start, observations, policy):
            history.add(node, events)
            due = {at for at in moments if at <= node.at}
            if due:
                moments -= due
                found.append(shown(node, history, policy))
        found.append(shown(node, history, policy))
        yield f"recording-{replayed.name_of(path)}", {**replayed.replay(path), "moments": found}


def scenes() -> Iterator[tuple[str, Any]]:
    """Yield the demo with each failure, and with those of some seeds, after each minute."""
    plans = {name: (1, name) for name in FAILURES} | {f"seed-{seed}": (seed, None) for seed in SEEDS}
    for title, (seed, failure) in plans.items():
        clock, history, found = HandClock(3600.0), History(), []
        simulation = Simulation(seed, clock, calm=failure is not None, past=300.0, probes=True)
        policy = ACTING if failure == "daemon-keeps-dying" else POLICY
        for minute, reduced in enumerate(minutes(clock, simulation, policy)):
            history.add(reduced.node, reduced.events)
            found.append(shown(reduced.node, history, policy))
            if minute == 0 and failure is not None:
                simulation.plan([PlannedFailure(after=10, failure=failure, seconds=FAILURES[failure].lasts)])
            if minute == SCENE_MINUTES:
                break
        yield f"scene-{title}", found


def mistakes() -> Iterator[tuple[str, Any]]:
    """Yield the reports of `doctor` on nodes with one planted mistake each."""
    reports: dict[str, Any] = {}
    for check, _, title, facts_of in MISTAKES:
        facts = facts_of()
        report = examine(facts)
        text = text_of(report_lines(report, facts)).splitlines()
        reports.setdefault(f"{check}: {title}", []).append({"json": report_object(report, facts), "text": text})
    yield "doctor", reports


def main(folder: Path) -> None:
    """Write one file for each recording, each scene, and all planted mistakes."""
    os.environ["TZ"] = "UTC"
    time.tzset()
    folder.mkdir(parents=True, exist_ok=True)
    for parts in (recordings(), scenes(), mistakes()):
        for name, value in parts:
            (folder / f"{name}.json").write_text(json.dumps(value, sort_keys=True))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
