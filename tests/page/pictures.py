"""Takes the pictures of the page that the documentation shows: `python -m tests.page.pictures docs/images`.

They are of the demo's node, at moments that have something to show. It needs Chromium and pngquant.
"""

import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import cache
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from exporter.demo.scenario import initial_node
from exporter.demo.simulation import FAILURES, PlannedFailure, Simulation, advance
from exporter.history import History
from exporter.page.page import sentence
from exporter.recent import with_points
from exporter.report.node_status import status_document
from exporter.view import StatusInput, View
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.clocks import HandClock
from tests.page.browser import DESKTOP, PHONE, Browser
from tests.tools import needed
from tests.web.serving import serving

COLOURS = "128"
"""Of a picture, which makes its file a third as large."""

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
        history.recent = with_points(history.recent, View(node))
    simulation.plan([PlannedFailure(after=SOON, failure=failure, seconds=FAILURES[failure].lasts)])
    while True:
        for second in advance(node, simulation, policy):
            node, events = second
            history.add(node, events)
        history.recent = with_points(history.recent, View(node))
        yield StatusInput(
            node=node,
            at=clock.time + 0.4,
            host="gpu-17",
            incidents=history.incidents,
            events=history.timeline,
            samples=history.samples,
            recent=history.recent,
            policy=policy,
        )
        clock.time += 3


def _slowed(sight: StatusInput) -> bool:
    processes = [process for gpu in status_document(sight).gpus for process in gpu.processes]
    slowdowns = [process.slowdown for process in processes if process.slowdown is not None]
    return any(each.ratio > 2 and not each.at_least for each in slowdowns)


def _faulted(sight: StatusInput) -> bool:
    return "blocks recovery; suspect: very likely" in sentence(status_document(sight))


class Picture(NamedTuple):
    """A picture of the page from the top of an element on, at the first moment that `shows` something."""

    name: str
    failure: str
    shows: Callable[[StatusInput], bool]
    width: int
    height: int
    scheme: str
    element: str = "html"
    opened: str = "none"
    """The details that are opened before."""


PICTURES = (
    Picture("page-fault", "fault-held", _faulted, DESKTOP, 1000, "dark"),
    Picture("page-fault-390", "fault-held", _faulted, PHONE, 844, "dark"),
    Picture("page-clients", "noisy-neighbour", _slowed, DESKTOP, 1000, "light", "#clients", "#clients details"),
)


@cache
def sight_of(failure: str, shows: Callable[[StatusInput], bool]) -> StatusInput:
    """Return the first sight after a failure that shows something."""
    return next(filter(shows, islice(snapshots(failure), MOST_SNAPSHOTS)))


def take(folder: Path) -> None:
    """Take all of them."""
    with (
        serving() as web,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home,
        Browser(needed("chromium"), Path(home)) as browser,
    ):
        for each in PICTURES:
            web.sight = sight_of(each.failure, each.shows)
            browser.open(f"http://localhost:{web.server.port}/", width=each.width, scheme=each.scheme)
            browser.run(f"document.querySelectorAll('{each.opened}').forEach(details => details.open = true)")
            top = browser.run(f"document.querySelector('{each.element}').getBoundingClientRect().top + scrollY")
            picture = browser.screenshot(each.width, each.height, top)
            smaller = [needed("pngquant"), "--speed=1", "--strip", COLOURS, "-"]
            (folder / f"{each.name}.png").write_bytes(subprocess.check_output(smaller, input=picture))


if __name__ == "__main__":
    take(Path(sys.argv[1]))
