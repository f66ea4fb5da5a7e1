"""Serves the simulated node as a real one."""

from collections.abc import Sequence

from exporter.clock import Clock
from exporter.collectors.pool import CollectorPool
from exporter.collectors.thread import CollectorThread, Inbox
from exporter.config.reload import Reloader, policy_of
from exporter.config.settings import Config
from exporter.demo.failures import PlannedFailure
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import Simulation, advance
from exporter.history import MAX_EVENTS, History
from exporter.model.event import Event
from exporter.model.node import Node
from exporter.model.usage_totals import UsageTotals
from exporter.service import Service
from exporter.view import HistoryStatus


class SimulatedStore:
    """Accepts events and stores none: each demo starts anew."""

    status = HistoryStatus(writable=True, events_dropped=0)
    has_watchdog_states = True

    def __init__(self) -> None:
        self.usage_totals = UsageTotals()

    def add(self, node: Node, events: Sequence[Event]) -> None:
        """Accept a node and its events. Only the usage totals are needed."""
        self.usage_totals = node.usage_totals

    def recovered_state(self) -> None:
        """Return nothing: all state could be read."""


def serve_simulated(
    config: Config, simulation: Simulation, plan: Sequence[PlannedFailure], reloader: Reloader, clock: Clock
) -> None:
    """Simulate the past, then serve the node until a signal ends it."""
    node, events = initial_node(), list[Event]()
    for second in advance(node, simulation, policy_of(config)):
        node, new = second
        events.extend(new)
    simulation.plan(plan)
    inbox: Inbox = Inbox()
    collector = CollectorThread("demo", simulation.collect, period=1.0, deadline=5.0, inbox=inbox, clock=clock)
    Service(
        config,
        node,
        CollectorPool((collector,)),
        inbox,
        clock,
        reloader=reloader,
        history=History(incidents=node.incidents.values(), events=events[-MAX_EVENTS:]),
        store=SimulatedStore(),
        runner=simulation,
    ).run()
