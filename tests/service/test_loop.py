"""The main loop reduces and publishes what collectors return, and no collector delays it."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from structlog.testing import capture_logs

from exporter.clock import Clock, SystemClock
from exporter.collectors.control_client import ControlClient
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import CollectorThread, Inbox, Reading, close
from exporter.config.settings import Config
from exporter.loop import Loop, Watchdog
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.daemon import Daemon, Declaration
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import ControlReply, LogLine, Observation, Resumed, SourceReading
from exporter.model.settings import PollIntervals
from exporter.view import View
from tests.builders import FAULT_BLOCK, SERVER, active, at_work, control_log, reduced, server_log, servers, status
from tests.clocks import FrozenClock, HandClock
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn

# The tests state these values, so that they notice a change of the program's constants.
CYCLE_SECONDS = 0.5
IDLE_AFTER_SECONDS = 5.0
IDLE_CYCLE_SECONDS = 1.0
MAX_OBSERVATIONS = 1000

NAME = "node"


def line(at: float, text: str) -> LogLine:
    """A line of the control log."""
    return LogLine(at=at, daemon=NAME, file="control.log", line=f"[2026-11-20 15:08:45.147 Control   452] {text}")


@dataclass(slots=True)
class LoopHarness:
    """A loop with collectors, and what it records and publishes."""

    inbox: Inbox = field(default_factory=Inbox)
    published: list[Node] = field(default_factory=list)
    recorded: list[Observation] = field(default_factory=list)
    cycles: int = 0
    clock: Clock = field(default_factory=FrozenClock)
    exposition: Exposition = field(default_factory=lambda: Exposition(SystemClock()))
    threads: list[CollectorThread] = field(default_factory=list)
    pollers: dict[str, ControlPoller] = field(default_factory=dict)
    locations: dict[str, DaemonLocation] = field(default_factory=dict)
    nvml: CollectorThread | None = None

    def thread(self, name: str, collect: Callable[[], Reading], **options: object) -> CollectorThread:
        """Add a collector that is triggered when the loop starts."""
        options = {"period": None, "deadline": PATIENCE_SECONDS, **options}
        self.threads.append(CollectorThread(name, collect, inbox=self.inbox, clock=self.clock, **options))  # type: ignore[arg-type]
        return self.threads[-1]

    def loop(
        self,
        record: Callable[[Observation], None] | None = None,
        on_events: Callable[[Node, Sequence[Event]], None] | None = None,
        watchdog: Watchdog | None = None,
    ) -> Loop:
        """The cycle, begun."""
        asking = {poller.thread for poller in self.pollers.values()}
        pool = CollectorPool(
            [thread for thread in self.threads if thread not in asking],
            locate=lambda daemons: self.locations if daemons else {},
            poller=lambda location: self.pollers[location.name],
            nvml=self.nvml,
        )
        node = Node(
            daemons={
                NAME: Daemon(name=NAME, pipe_directory=NAME, log_directory=NAME, declared=Declaration(expected=True))
            }
        )
        loop = Loop(
            node,
            pool,
            inbox=self.inbox,
            clock=self.clock,
            intervals=PollIntervals(),
            publish=self._publish,
            record=record or self.recorded.append,
            on_events=on_events,
            on_cycle=self._count_cycle,
            watchdog=watchdog,
        )
        pool.update(node)
        pool.start()
        for thread in self.threads:
            thread.trigger()
        return loop

    def _publish(self, node: Node) -> None:
        self.published.append(node)
        self.exposition.publish(NodeCollector(View(node)))

    def _count_cycle(self) -> None:
        self.cycles += 1

    def metrics(self) -> str:
        """What a scrape gets."""
        encoded = self.exposition.get("", gzipped=False)
        assert encoded is not None
        return encoded.body.decode()


@pytest.fixture
def harness() -> Iterator[LoopHarness]:
    """A loop without collectors."""
    harness = LoopHarness()
    yield harness
    close(harness.threads, PATIENCE_SECONDS)


def test_records_reduces_and_publishes_observations_in_order_of_time(harness: LoopHarness) -> None:
    loop = harness.loop()
    harness.inbox.put((line(3.0, "NEW SERVER 7: Ready"), line(1.0, "Starting new server 7 for user 0")))
    harness.inbox.put((line(2.0, "something else"),))

    events = loop.once(0)

    assert [seen.at for seen in harness.recorded] == [1.0, 2.0, 3.0]
    assert [(event.event, event.server) for event in events][:1] == [("server_started", 7)]
    assert harness.published == [loop.node]
    assert loop.node.daemons[NAME].servers[7].state == "active"
    assert 'cuda_mps_server_state{daemon="node",server="7",state="active"} 1.0' in harness.metrics()


def test_records_every_observation_once(harness: LoopHarness) -> None:
    reported = [(line(float(n), f"line {n}"),) for n in range(500)]
    pile = list(reported)
    harness.thread("log", lambda: Reading(pile.pop(0) if pile else ()), period=0.0)
    loop = harness.loop()

    def all_recorded() -> None:
        loop.once(0.01)
        assert [seen for seen in harness.recorded if isinstance(seen, LogLine)] == [each for (each,) in reported]

    eventually(all_recorded)
    assert any(isinstance(seen, SourceReading) and seen.name == "log" for seen in harness.recorded)


def test_reduces_a_bounded_number_of_observations_per_cycle(harness: LoopHarness) -> None:
    loop = harness.loop()
    parts = [[line(float(part * 400 + number), "ACTIVE") for number in range(400)] for part in range(5)]
    for part in parts:
        harness.inbox.put(tuple(part))

    loop.once(timeout=0)
    assert len(harness.recorded) == 1200 >= MAX_OBSERVATIONS
    loop.once(timeout=0)

    assert harness.recorded == [each for part in parts for each in part]


def test_reports_the_events_of_each_cycle(harness: LoopHarness) -> None:
    reported: list[tuple[Node, Sequence[Event]]] = []
    loop = harness.loop(on_events=lambda node, events: reported.append((node, events)))
    loop.once(0)
    harness.inbox.put((line(1.0, "Starting new server 7 for user 0"),))
    events = loop.once(0)

    assert [len(news) for _, news in reported] == [0, len(events)]
    assert reported[-1][0] is loop.node


def test_logs_a_fault_as_one_error(harness: LoopHarness) -> None:
    loop = harness.loop()
    with capture_logs() as logs:
        for at, lines in enumerate(([active()], FAULT_BLOCK, ["Destroy server context on device 0 (NVIDIA H200)"])):
            confirmed = (status(("ACTIVE", "FAULT", "ACTIVE")[at], at=float(at * 10), daemon=NAME),)
            harness.inbox.put((*server_log(*lines, at=float(at * 10), daemon=NAME), *confirmed))
            loop.once(0)

    faults = [each for each in logs if "incident" in each]
    (opening,) = [each for each in faults if each["event"] == "fault"]
    assert opening["log_level"] == "error"
    assert (opening["daemon"], opening["server"]) == (NAME, SERVER)
    assert {each["log_level"] for each in faults if each is not opening} <= {"warning"}
    assert {each["log_level"] for each in logs if each not in faults} == {"info"}
    for each in logs:
        assert type(each["event"]) is str
        assert json.loads(json.dumps(each)) == each


def test_a_cycle_without_changes_publishes_nothing(harness: LoopHarness) -> None:
    loop = harness.loop()

    assert loop.once(0) == ()
    assert (harness.cycles, harness.published) == (1, [])


def test_triggers_nvml_when_it_is_due(harness: LoopHarness) -> None:
    collects: list[int] = []

    def collect() -> Reading:
        collects.append(1)
        return Reading()

    harness.nvml = harness.thread("nvml", collect)
    loop = harness.loop()

    def seen() -> None:
        loop.once(0.01)
        assert "nvml" in loop.node.sources

    eventually(seen)
    for _ in range(20):
        loop.once(0.001)

    assert len(collects) <= 2


# -- asking the daemon ---------------------------------------------------------------------------------------------


@pytest.fixture
def asking(harness: LoopHarness, mps: MpsStandIn) -> Callable[[], Loop]:
    """A cycle that asks the stand-in's daemon."""
    location = on_host(NAME, mps.pipe_directory, mps.log_directory)
    client = ControlClient(
        location,
        executable="nvidia-cuda-mps-control",
        deadline=PATIENCE_SECONDS,
        clock=harness.clock,
        path=mps.environment()["PATH"],
    )
    harness.locations[NAME] = location
    harness.pollers[NAME] = ControlPoller(client, harness.thread("control", client.collect))
    return harness.loop


def replies(seen: list[Observation]) -> list[str]:
    return [each.command for each in seen if isinstance(each, ControlReply)]


def test_does_not_repeat_a_query_whose_reply_arrives_during_the_cycle(
    harness: LoopHarness, asking: Callable[..., Loop], mps: MpsStandIn
) -> None:
    """The poller becomes idle while the loop reduces another observation, so its reply is still in the inbox."""
    mps.start()
    harness.inbox.put((line(1.0, "something that takes long to take in"),))
    thread = harness.pollers[NAME].thread

    def record(seen: Observation) -> None:
        harness.recorded.append(seen)
        if isinstance(seen, LogLine) and len(harness.recorded) > 1:
            eventually(lambda: _idle(thread))

    loop = asking(record)
    events: list[Event] = []
    wanted = {"-v", "get_server_list", "get_default_active_thread_percentage", "get_default_client_priority"}

    def asked() -> None:
        harness.inbox.put((line(2.0, "another that takes long"),))
        events.extend(loop.once(0.01))
        assert "get_server_list" in replies(harness.recorded)

    def answered() -> None:
        loop.once(0.01)
        assert wanted <= set(replies(harness.recorded))

    eventually(asked)
    eventually(answered)
    for _ in range(20):
        loop.once(0.01)

    assert sorted(replies(harness.recorded)) == sorted(wanted)


def test_does_not_repeat_a_query_whose_reply_is_behind_many_observations(
    harness: LoopHarness, asking: Callable[..., Loop], mps: MpsStandIn
) -> None:
    mps.start()
    loop, thread = asking(), harness.pollers[NAME].thread
    eventually(lambda: _idle(thread))
    loop.once(0)
    for _ in range(5):
        harness.inbox.put(tuple(line(1.0, "ACTIVE") for _ in range(400)))
    eventually(lambda: _idle(thread))
    loop.once(0)
    eventually(lambda: _idle(thread))
    for _ in range(20):
        loop.once(0.01)

    assert replies(harness.recorded).count("get_server_list") == 1


def _idle(thread: CollectorThread) -> None:
    assert not thread.busy


def test_runs_until_proceed_returns_false(harness: LoopHarness) -> None:
    harness.thread("log", lambda: Reading((line(1.0, "something new"),)), period=0.001)
    loop = Loop(
        Node(),
        CollectorPool(harness.threads),
        inbox=harness.inbox,
        clock=SystemClock(),
        intervals=PollIntervals(),
        publish=harness.published.append,
    )

    loop.run(lambda: len(harness.published) < 5)

    assert len(harness.published) >= 5
    assert not [thread for thread in threading.enumerate() if thread.name == "collector-log"]


class FakeWatchdog(Watchdog):
    """A watchdog that returns these events."""

    def __init__(self, *events: Event) -> None:
        super().__init__(Config(), SystemClock())
        self.events = events

    def evaluate(self, node: Node, *, changed: bool) -> tuple[Node, tuple[Event, ...]]:
        """Whatever the node is."""
        return node, self.events


def test_logs_the_events_of_the_watchdog(harness: LoopHarness) -> None:
    loop = harness.loop(watchdog=FakeWatchdog(Event(at=1.0, event=EventName.CIRCUIT_OPENED, daemon=NAME)))
    with capture_logs() as logs:
        loop.once(0)
    assert [(each["event"], each["log_level"]) for each in logs] == [("circuit_opened", "error")]


def test_reduces_and_records_an_operators_command(harness: LoopHarness) -> None:
    loop = harness.loop()
    loop.put(Resumed(at=1.0, daemon=NAME))
    loop.once(0)
    assert harness.recorded == [Resumed(at=1.0, daemon=NAME)]


def test_put_ends_the_wait_of_a_cycle() -> None:
    harness = LoopHarness()
    loop = harness.loop()
    woken = threading.Thread(target=loop.once, args=(PATIENCE_SECONDS * 100,), daemon=True)
    woken.start()

    loop.put()

    woken.join(PATIENCE_SECONDS)
    assert not woken.is_alive()


def without_collectors(harness: LoopHarness, clock: HandClock, node: Node) -> Loop:
    return Loop(
        node,
        CollectorPool(()),
        inbox=harness.inbox,
        clock=clock,
        intervals=PollIntervals(),
        publish=harness.published.append,
    )


def test_waits_longer_if_nothing_changes() -> None:
    harness, clock = LoopHarness(), HandClock()
    loop = without_collectors(harness, clock, Node())
    loop.once(0)
    assert loop.timeout() == CYCLE_SECONDS
    clock.time += IDLE_AFTER_SECONDS
    assert loop.timeout() == IDLE_CYCLE_SECONDS

    harness.inbox.put((line(clock.now(), "Start"),))
    loop.once(0)

    assert loop.timeout() <= CYCLE_SECONDS


def test_a_reply_and_log_lines_that_show_nothing_new_are_not_published_soon() -> None:
    harness, clock = LoopHarness(), HandClock()
    loop = without_collectors(harness, clock, reduced(*at_work(10, at=clock.now())).node)
    loop.once(0)
    clock.time += IDLE_AFTER_SECONDS
    harness.inbox.put((*control_log("Accepting connection...", at=clock.now()), servers(SERVER, at=clock.now())))
    loop.once(0)
    assert (loop.timeout(), harness.published) == (IDLE_CYCLE_SECONDS, [])

    harness.inbox.put((status("FAULT", at=clock.now()),))
    loop.once(0)

    assert loop.timeout() <= CYCLE_SECONDS
    assert len(harness.published) == 1
