"""The node by one look at everything, for `status` where no service runs."""

import contextlib
import threading

from exporter.assembly import Assembly
from exporter.clock import SystemClock
from exporter.config import Config
from exporter.core.fold import LOGS
from exporter.core.gpus import NVML
from exporter.glance import Glance
from exporter.model.node import Node
from exporter.recording_header import header_of
from exporter.sources.eye import Inbox
from exporter.sources.logs import DaemonLogs


def look(config: Config) -> Node:
    """Look once with the sources that the configuration asks for."""
    clock = SystemClock()
    with contextlib.closing(Assembly(config, clock, Inbox(), process_wait=0.0)) as assembly:
        glance = Glance(header_of(config).node(), clock, deadline=assembly.ask_deadline, wait=threading.Event().wait)
        glance.find(assembly.finder, assembly.units)
        places = assembly.locator.locate(glance.node.daemons)
        control = [assembly.control_client(place) for place in places.values()]
        logs = {name: DaemonLogs(place, clock) for name, place in places.items() if place.logs}
        glance.look_at_each(LOGS, {name: each.look for name, each in logs.items()})
        glance.watch(assembly.processes, assembly.pods)
        glance.ask(control, assembly.processes)
        glance.look(NVML, assembly.look_at_gpus)
        # Of whose limits to ask is known only when the GPUs are.
        glance.ask(control, assembly.processes)
        glance.watch(assembly.processes, assembly.pods)
        glance.look_at_strangers(assembly.look_at_gpus, control)
        return glance.node
