"""Takes the pictures of the page that the documentation shows: `python -m tests.page.pictures docs/images`.

They are of the demo's node, at moments that have something to show.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from exporter.demo.scenario import initial_node
from exporter.demo.simulation import FAILURES, PlannedFailure, Simulation, advance
from exporter.history import History
from exporter.page.page import sentence
from exporter.report.node_status import status_document
from exporter.view import StatusInput
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.clocks import HandClock
from tests.page.browser import DESKTOP, Browser
from tests.tools import needed
from tests.web.serving import serving

HEIGHT = 1150

BEGINS = 1_795_272_300.0
"""An afternoon in November 2026."""

HOUR = 3600.0
EARLIER = (
    PlannedFailure(after=900, failure="fault"),
    PlannedFailure(after=1500, failure="daemon-restarts"),
    PlannedFailure(after=1900, failure="fault"),
    PlannedFailure(after=2300, failure="nvml-fails", seconds=180),
    PlannedFailure(after=2900, failure="server-full", seconds=60),
)
"""What happened in the hour before, which the plots show."""

SOON = 6.0
MOST_SNAPSHOTS = 200
"""What has not shown itself by then never will."""


def snapshots(failure: str) -> Iterator[StatusInput]:
    """Yield the demo's node every few seconds, first calm, then with this failure."""
    clock, history = HandClock(BEGINS), History()
    simulation = Simulation(1, clock, calm=True, past=HOUR, probes=True)
    simulation.plan(EARLIER)
    node = initial_node()
    policy = Policy(daemon_policies={name: DaemonPolicy(command=("start-mps", name)) for name in node.daemons})
    for second in advance(node, simulation, policy):
        node, events = second
        history.add(node, events)
    simulation.plan([PlannedFailure(after=SOON, failure=failure, seconds=FAILURES[failure].lasts)])
    while True:
        for second in advance(node, simulation, policy):
            node, events = second
            history.add(node, events)
        yield StatusInput(
            node=node,
            at=clock.time + 0.4,
            host="gpu-17",
            incidents=history.incidents,
            events=history.timeline,
            samples=history.samples,
            policy=policy,
        )
        clock.time += 3


def _busy(sight: StatusInput) -> bool:
    return "MPS on GPU" in sentence(status_document(sight))


def _faulted(sight: StatusInput) -> bool:
    return "blocks recovery; suspect: very likely" in sentence(status_document(sight))


PICTURES: tuple[tuple[str, str, Callable[[StatusInput], bool], int, str], ...] = (
    ("busy", "bypass", _busy, DESKTOP, "light"),
    ("fault", "fault-held", _faulted, DESKTOP, "dark"),
)


def take(folder: Path) -> None:
    """All of them."""
    with (
        serving() as web,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        Browser(needed("chromium"), Path(home)) as browser,
    ):
        for name, failure, shows, width, scheme in PICTURES:
            web.sight = next(sight for sight in islice(snapshots(failure), MOST_SNAPSHOTS) if shows(sight))
            browser.open(f"http://localhost:{web.server.port}/", width=width, scheme=scheme)
            (folder / f"page-{name}.png").write_bytes(browser.screenshot(width, HEIGHT))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
