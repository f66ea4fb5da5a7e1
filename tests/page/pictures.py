"""Takes the pictures of the page that the documentation shows: `python -m tests.page.pictures docs/images`.

They are of the demo's node, at moments that have something to show.
"""

import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from exporter.core.fold import fold
from exporter.core.watchdog.orders import Mandate, Orders
from exporter.demo import Simulation
from exporter.history import History
from exporter.model.event import Event
from exporter.page import Sight
from exporter.page.headline import headline
from exporter.watchdog import Watchdog
from exporter.web import WebServer
from tests.page.browser import DESKTOP, PHONE, Browser
from tests.tools import needed
from tests.web.serving import LOCALHOST, Stage, Web

HEIGHT = 1150

BEGINS = 1_795_272_300.0
"""An afternoon in November 2026."""


class Clock:
    """It goes on when it is told to."""

    def __init__(self) -> None:
        self.at = BEGINS

    def now(self) -> float:
        """Seconds since the epoch."""
        return self.at

    def monotonic(self) -> float:
        """The same, here."""
        return self.at


def sights() -> Iterator[Sight]:
    """The demo's node, every few seconds, as the service would show it."""
    clock, history = Clock(), History()
    simulation = Simulation(1, clock)
    node = simulation.node()
    orders = Orders(mandates={name: Mandate(command=("start-mps", name)) for name in node.daemons})
    watchdog = Watchdog(orders, clock)
    while True:
        events: list[Event] = []
        for seen in simulation.look().observations:
            node, told = fold(node, seen)
            events += told
        node, told = watchdog.judge(node, news=True)
        history.take(node, (*events, *told))
        yield Sight(
            node=node,
            at=clock.at + 0.4,
            host="gpu-17",
            incidents=history.incidents,
            events=history.events,
            orders=orders,
        )
        clock.at += 3


def _busy(sight: Sight) -> bool:
    said = headline(sight).sentence
    return "beside MPS" in said and sum(len(daemon.clients) for daemon in sight.node.daemons.values()) > 12


def _faulted(sight: Sight) -> bool:
    said = headline(sight).sentence
    return "held up by 1 client; suspected: very likely" in said


def _dead(sight: Sight) -> bool:
    return "would restart" in headline(sight).next


PICTURES: tuple[tuple[str, Callable[[Sight], bool], int, str], ...] = (
    ("busy", _busy, DESKTOP, "light"),
    ("fault", _faulted, DESKTOP, "dark"),
    ("fault-phone", _faulted, PHONE, "light"),
    ("dead-phone", _dead, PHONE, "dark"),
)


def take(folder: Path) -> None:
    """All of them."""
    stage = Stage()
    server = WebServer(stage, [(LOCALHOST, 0)])
    server.open()
    web = Web(server)
    stage.site = web.site()
    with tempfile.TemporaryDirectory() as home, Browser(needed("chromium"), Path(home)) as browser:
        for name, shows, width, scheme in PICTURES:
            web.sight = next(sight for sight in sights() if shows(sight))
            browser.open(f"http://localhost:{server.port}/", width=width, scheme=scheme)
            (folder / f"page-{name}.png").write_bytes(browser.screenshot(width, HEIGHT))
    server.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
