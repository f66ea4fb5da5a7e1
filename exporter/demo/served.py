"""The simulated node, served as a real one is: the past is told first, then it goes on with the clock."""

from collections.abc import Sequence

from exporter.clock import Clock
from exporter.config import Config
from exporter.config.reload import Reloader, orders_of
from exporter.demo.disk import SimulatedDisk
from exporter.demo.mishap import Planned
from exporter.demo.simulation import Simulation
from exporter.demo.told import told
from exporter.history import MOST_EVENTS, History
from exporter.model.event import Event
from exporter.service import Service
from exporter.sources.eye import Eye, Inbox
from exporter.sources.lookout import Lookout


def serve_simulated(
    config: Config, simulation: Simulation, plan: Sequence[Planned], reloader: Reloader, clock: Clock
) -> None:
    """Tell the past, then serve until told to stop."""
    node, events = simulation.node(), list[Event]()
    for second in told(node, simulation, orders_of(config)):
        node, news = second
        events.extend(news)
    simulation.expect(plan)
    history = History(incidents=node.incidents.values(), events=events[-MOST_EVENTS:])
    inbox: Inbox = Inbox()
    eye = Eye("demo", simulation.look, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    Service(
        config,
        node,
        Lookout((eye,)),
        inbox,
        clock,
        reloader=reloader,
        history=history,
        writer=SimulatedDisk(),
        hands=simulation.hands,
    ).run()
