"""An incident continues when the exporter is restarted during a fault."""

from pathlib import Path

from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Retention
from exporter.reducer import reduce
from exporter.store.database import StateFile, read_history
from exporter.store.writer import Writer
from tests.builders import AT, CLIENT, FAULT_BLOCK, GPU, at_work, gpu_reading, node, server_log, status
from tests.clocks import HandClock


class Run:
    """One run of the exporter, without collectors."""

    def __init__(self, directory: Path) -> None:
        clock = HandClock(AT)
        self.writer = Writer(StateFile(directory, Retention(), clock), clock)
        self.node = self.writer.open().restore(node())
        self.events: list[Event] = []

    def observe(self, *seen: Observation) -> None:
        events: list[Event] = []
        for each in seen:
            self.node, reported = reduce(self.node, each)
            events.extend(reported)
        self.writer.add(self.node, events)
        self.events.extend(events)

    def end(self) -> Node:
        self.writer.close()
        return self.node

    def faults(self) -> list[EventName]:
        return [each.event for each in self.events if each.incident is not None]


def faulted(directory: Path) -> Run:
    """Return a run with a fault that a client has not left yet."""
    run = Run(directory)
    run.observe(*at_work(CLIENT), gpu_reading((CLIENT,)))
    run.observe(*server_log(*FAULT_BLOCK, at=AT + 3))
    run.observe(status("FAULT", at=AT + 4))
    return run


def test_an_open_incident_stays_open_and_is_not_reported_again(tmp_path: Path) -> None:
    (before,) = faulted(tmp_path).end().incidents.values()
    assert before.open
    second = Run(tmp_path)
    assert dict(second.node.incidents) == {before.id: before}
    second.observe(*at_work(CLIENT, at=AT + 60)[:-2], status("FAULT", at=AT + 60), status("FAULT", at=AT + 70))
    (after,) = second.node.incidents.values()
    assert (after.id, after.open, after.affected, after.gpus) == (before.id, True, (CLIENT,), (GPU,))
    assert EventName.FAULT not in second.faults()
    second.end()


def test_the_next_run_reports_the_end_of_an_incident(tmp_path: Path) -> None:
    (before,) = faulted(tmp_path).end().incidents.values()
    second = Run(tmp_path)
    second.observe(*at_work(at=AT + 60), status("ACTIVE", at=AT + 70))
    assert second.faults()[-1] is EventName.FAULT_RECOVERED
    second.end()
    (found,), events = read_history(tmp_path)
    assert (found.id, found.open, found.end_reported) == (before.id, False, True)
    named = [each.event for each in events if each.incident is not None and each.incident.id == before.id]
    assert (named.count(EventName.FAULT), named.count(EventName.FAULT_RECOVERED)) == (1, 1)


def test_an_ended_incident_is_not_reported_again(tmp_path: Path) -> None:
    run = faulted(tmp_path)
    run.observe(status("ACTIVE", at=AT + 20), status("ACTIVE", at=AT + 30))
    run.end()
    third = Run(tmp_path)
    third.observe(*at_work(at=AT + 60), status("ACTIVE", at=AT + 70))
    assert third.faults() == []
    assert len(third.end().incidents) == 1
