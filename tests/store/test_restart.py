"""The exporter is restarted in the middle of a fault: the incident goes on as the one that it was."""

from pathlib import Path

from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Retention
from exporter.state.reducer import reduce
from exporter.store.database import StateFile, read_history
from exporter.store.writer import Writer
from tests.builders import AT, CLIENT, FAULT_BLOCK, GPU, at_work, gpu_reading, node, server_log, status
from tests.clocks import HandClock


class Run:
    """The exporter from one start to its end, without its sources."""

    def __init__(self, directory: Path) -> None:
        clock = HandClock(AT)
        self.writer = Writer(StateFile(directory, Retention(), clock), clock)
        self.node = self.writer.open().restore(node())
        self.events: list[Event] = []

    def sees(self, *seen: Observation) -> None:
        """One cycle."""
        events: list[Event] = []
        for each in seen:
            self.node, told = reduce(self.node, each)
            events.extend(told)
        self.writer.add(self.node, events)
        self.events.extend(events)

    def ends(self) -> Node:
        """As at SIGTERM."""
        self.writer.close()
        return self.node

    def faults(self) -> list[EventName]:
        """What it told of faults."""
        return [each.event for each in self.events if each.incident is not None]


def struck(directory: Path) -> Run:
    """A fault has come, and its victim lingers."""
    run = Run(directory)
    run.sees(*at_work(CLIENT), gpu_reading((CLIENT,)))
    run.sees(*server_log(*FAULT_BLOCK, at=AT + 3))
    run.sees(status("FAULT", at=AT + 4))
    return run


def test_what_was_open_is_open_still_and_is_not_told_again(tmp_path: Path) -> None:
    (before,) = struck(tmp_path).ends().incidents.values()
    assert before.open
    second = Run(tmp_path)
    assert dict(second.node.incidents) == {before.id: before}
    second.sees(*at_work(CLIENT, at=AT + 60)[:-2], status("FAULT", at=AT + 60), status("FAULT", at=AT + 70))
    (after,) = second.node.incidents.values()
    assert (after.id, after.open, after.affected, after.gpus) == (before.id, True, (CLIENT,), (GPU,))
    assert EventName.FAULT not in second.faults()
    second.ends()


def test_its_end_is_told_by_whoever_sees_it(tmp_path: Path) -> None:
    (before,) = struck(tmp_path).ends().incidents.values()
    second = Run(tmp_path)
    second.sees(*at_work(at=AT + 60), status("ACTIVE", at=AT + 70))
    assert second.faults()[-1] is EventName.FAULT_RECOVERED
    second.ends()
    (kept,), events = read_history(tmp_path)
    assert (kept.id, kept.open, kept.end_reported) == (before.id, False, True)
    named = [each.event for each in events if each.incident is not None and each.incident.id == before.id]
    assert (named.count(EventName.FAULT), named.count(EventName.FAULT_RECOVERED)) == (1, 1)


def test_its_end_is_not_told_again_at_the_start_after_that(tmp_path: Path) -> None:
    run = struck(tmp_path)
    run.sees(status("ACTIVE", at=AT + 20), status("ACTIVE", at=AT + 30))
    run.ends()
    third = Run(tmp_path)
    third.sees(*at_work(at=AT + 60), status("ACTIVE", at=AT + 70))
    assert third.faults() == []
    assert len(third.ends().incidents) == 1
