"""The cycle takes in what every eye sees, publishes it, and is kept waiting by none of them."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from structlog.testing import capture_logs

from exporter.clock import Clock, SystemClock
from exporter.collectors.control import ControlClient
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.thread import CollectorThread, Inbox, Reading, close
from exporter.config.settings import Config
from exporter.loop import CYCLE_SECONDS, IDLE_AFTER_SECONDS, IDLE_CYCLE_SECONDS, MAX_OBSERVATIONS, Loop, Watchdog
from exporter.metrics.catalogue import NodeCollector
from exporter.metrics.exposition import Exposition
from exporter.model.action import ActionResult
from exporter.model.daemon import Daemon, Declaration
from exporter.model.event import Event, EventName
from exporter.model.node import Node
from exporter.model.observation import ControlReply, LogLine, Observation, Resumed, SourceReading
from exporter.model.problem import Problem, ProblemCode
from exporter.model.settings import PollIntervals
from exporter.model.watchdog import Condition
from exporter.view import View
from tests.builders import FAULT_BLOCK, SERVER, active, server_log, status
from tests.clocks import FrozenClock, HandClock
from tests.conftest import Starter
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.standin.mps import MpsStandIn

NAME = "node"
SHORT_DEADLINE = 0.1


def line(at: float, text: str) -> LogLine:
    """A line of the control log."""
    return LogLine(at=at, daemon=NAME, file="control.log", line=f"[2026-11-20 15:08:45.147 Control   452] {text}")


@dataclass(slots=True)
class Turning:
    """A cycle with these eyes, everything that comes out of it, and the means to turn it."""

    inbox: Inbox = field(default_factory=Inbox)
    published: list[Node] = field(default_factory=list)
    recorded: list[Observation] = field(default_factory=list)
    turns: int = 0
    clock: Clock = field(default_factory=FrozenClock)
    exposition: Exposition = field(default_factory=lambda: Exposition(SystemClock()))
    threads: list[CollectorThread] = field(default_factory=list)
    pollers: dict[str, ControlPoller] = field(default_factory=dict)
    locations: dict[str, DaemonLocation] = field(default_factory=dict)
    nvml: CollectorThread | None = None

    def thread(self, name: str, collect: Callable[[], Reading], **options: object) -> CollectorThread:
        """One more eye; it looks when the cycle begins."""
        options = {"period": None, "deadline": PATIENCE_SECONDS, **options}
        self.threads.append(CollectorThread(name, collect, inbox=self.inbox, clock=self.clock, **options))  # type: ignore[arg-type]
        return self.threads[-1]

    def cycle(
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
        cycle = Loop(
            node,
            pool,
            inbox=self.inbox,
            clock=self.clock,
            intervals=PollIntervals(),
            publish=self._publish,
            record=record or self.recorded.append,
            on_events=on_events,
            on_cycle=self._turned,
            watchdog=watchdog,
        )
        pool.update(node)
        pool.start()
        for thread in self.threads:
            thread.trigger()
        return cycle

    def _publish(self, node: Node) -> None:
        self.published.append(node)
        self.exposition.publish(NodeCollector(View(node)))

    def _turned(self) -> None:
        self.turns += 1

    def metrics(self) -> str:
        """What a scrape gets."""
        encoded = self.exposition.get("", gzipped=False)
        assert encoded is not None
        return encoded.body.decode()


@pytest.fixture
def turning() -> Iterator[Turning]:
    """A cycle that has no eyes yet."""
    turning = Turning()
    yield turning
    close(turning.threads, PATIENCE_SECONDS)


def test_what_is_seen_is_recorded_in_order_folded_and_published(turning: Turning) -> None:
    cycle = turning.cycle()
    turning.inbox.put((line(3.0, "NEW SERVER 7: Ready"), line(1.0, "Starting new server 7 for user 0")))
    turning.inbox.put((line(2.0, "something else"),))

    events = cycle.once(0)

    assert [seen.at for seen in turning.recorded] == [1.0, 2.0, 3.0]
    assert [(event.event, event.server) for event in events][:1] == [("server_started", 7)]
    assert turning.published == [cycle.node]
    assert cycle.node.daemons[NAME].servers[7].state == "active"
    assert 'cuda_mps_server_state{daemon="node",server="7",state="active"} 1.0' in turning.metrics()


def test_every_observation_is_recorded_once(turning: Turning) -> None:
    told = [(line(float(n), f"line {n}"),) for n in range(500)]
    pile = list(told)
    turning.thread("log", lambda: Reading(pile.pop(0) if pile else ()), period=0.0)
    cycle = turning.cycle()

    def all_recorded() -> None:
        cycle.once(0.01)
        assert [seen for seen in turning.recorded if isinstance(seen, LogLine)] == [each for (each,) in told]

    eventually(all_recorded)
    assert any(isinstance(seen, SourceReading) and seen.name == "log" for seen in turning.recorded)


def test_a_turn_takes_in_a_bounded_number_of_observations_and_leaves_the_others_to_the_next(turning: Turning) -> None:
    cycle = turning.cycle()
    parts = [[line(float(part * 400 + number), "ACTIVE") for number in range(400)] for part in range(5)]
    for part in parts:
        turning.inbox.put(tuple(part))

    cycle.once(timeout=0)
    assert len(turning.recorded) == 1200 >= MAX_OBSERVATIONS
    cycle.once(timeout=0)

    assert turning.recorded == [each for part in parts for each in part]


def test_what_each_turn_comes_to_is_told_be_it_nothing(turning: Turning) -> None:
    told: list[tuple[Node, Sequence[Event]]] = []
    cycle = turning.cycle(on_events=lambda node, events: told.append((node, events)))
    cycle.once(0)
    turning.inbox.put((line(1.0, "Starting new server 7 for user 0"),))
    events = cycle.once(0)

    assert [len(news) for _, news in told] == [0, len(events)]
    assert told[-1][0] is cycle.node


def test_a_fault_is_told_in_one_record_that_is_loud_enough_to_be_heard(turning: Turning) -> None:
    cycle = turning.cycle()
    with capture_logs() as logs:
        for at, lines in enumerate(([active()], FAULT_BLOCK, ["Destroy server context on device 0 (NVIDIA H200)"])):
            confirmed = (status(("ACTIVE", "FAULT", "ACTIVE")[at], at=float(at * 10), daemon=NAME),)
            turning.inbox.put((*server_log(*lines, at=float(at * 10), daemon=NAME), *confirmed))
            cycle.once(0)

    faults = [each for each in logs if "incident" in each]
    (opening,) = [each for each in faults if each["event"] == "fault"]
    assert opening["log_level"] == "error"
    assert (opening["daemon"], opening["server"]) == (NAME, SERVER)
    assert {each["log_level"] for each in faults if each is not opening} <= {"warning"}
    assert {each["log_level"] for each in logs if each not in faults} == {"info"}
    for each in logs:
        assert type(each["event"]) is str
        assert json.loads(json.dumps(each)) == each


def test_a_quiet_turn_is_a_turn_and_publishes_nothing(turning: Turning) -> None:
    cycle = turning.cycle()

    assert cycle.once(0) == ()
    assert (turning.turns, turning.published) == (1, [])


def test_an_eye_that_hangs_is_complained_of_and_the_others_go_on(turning: Turning) -> None:
    let_go = threading.Event()
    lines = iter(range(10**9))

    def hang() -> Reading:
        let_go.wait(PATIENCE_SECONDS)
        return Reading()

    turning.thread("nvml", hang, deadline=SHORT_DEADLINE)
    turning.thread("log", lambda: Reading((line(float(next(lines)), "line"),)), period=0.001)
    cycle = turning.cycle()

    def blind_on_one_eye() -> None:
        cycle.once(0.01)
        assert 'cuda_mps_exporter_source_up{source="nvml"} 0.0' in turning.metrics()
        assert 'cuda_mps_exporter_source_up{source="log"} 1.0' in turning.metrics()

    def failures() -> str:
        (found,) = [each for each in turning.metrics().splitlines() if each.startswith(FAILURES_OF_NVML)]
        return found

    def fails_on() -> None:
        cycle.once(0.01)
        assert failures() != first

    def log_lives() -> None:
        cycle.once(0.01)
        assert cycle.node.daemons[NAME].totals.log_lines["control.log"] > before

    def sees_again() -> None:
        cycle.once(0.01)
        assert 'cuda_mps_exporter_source_up{source="nvml"} 1.0' in turning.metrics()

    eventually(blind_on_one_eye)
    first, before = failures(), cycle.node.daemons[NAME].totals.log_lines["control.log"]
    assert 'source_last_success_timestamp_seconds{source="nvml"}' not in turning.metrics()
    eventually(fails_on)
    eventually(log_lives)
    let_go.set()
    eventually(sees_again)


FAILURES_OF_NVML = 'cuda_mps_exporter_source_failures_total{source="nvml"}'


def test_a_source_that_raises_costs_one_reading(turning: Turning) -> None:
    faults = [ValueError("a defect")]

    def collect() -> Reading:
        if faults:
            raise faults.pop()
        return Reading()

    thread = turning.thread("log", collect)
    cycle = turning.cycle()

    def told(problem: Problem | None) -> None:
        cycle.once(0.01)
        assert cycle.node.sources["log"].last.problem == problem

    def exists() -> None:
        cycle.once(0.01)
        assert "log" in cycle.node.sources

    eventually(exists)
    told(Problem(code=ProblemCode.UNEXPECTED_ERROR, detail="ValueError: a defect"))
    thread.trigger()
    eventually(lambda: told(None))
    assert cycle.node.sources["log"].failures == 1


def test_nvml_is_nudged_when_it_is_due(turning: Turning) -> None:
    collects: list[int] = []

    def collect() -> Reading:
        collects.append(1)
        return Reading()

    turning.nvml = turning.thread("nvml", collect)
    cycle = turning.cycle()

    def seen() -> None:
        cycle.once(0.01)
        assert "nvml" in cycle.node.sources

    eventually(seen)
    for _ in range(20):
        cycle.once(0.001)

    assert len(collects) <= 2


# -- asking the daemon ---------------------------------------------------------------------------------------------


@pytest.fixture
def asking(turning: Turning, mps: MpsStandIn) -> Callable[[], Loop]:
    """A cycle that asks the stand-in's daemon."""
    location = on_host(NAME, mps.pipe_directory, mps.log_directory)
    client = ControlClient(
        location,
        executable="nvidia-cuda-mps-control",
        deadline=PATIENCE_SECONDS,
        clock=turning.clock,
        path=mps.environment()["PATH"],
    )
    turning.locations[NAME] = location
    turning.pollers[NAME] = ControlPoller(client, turning.thread("control", client.collect))
    return turning.cycle


def replies(seen: list[Observation]) -> list[str]:
    return [each.command for each in seen if isinstance(each, ControlReply)]


def test_each_question_is_asked_once(
    turning: Turning, asking: Callable[[], Loop], mps: MpsStandIn, start: Starter
) -> None:
    mps.start()
    mps.connect_and_wait(start().pid)
    server = mps.server_pid
    cycle = asking()
    lists = ["get_server_list", f"get_server_status {server}", f"get_client_list {server}"]
    limits = [
        "get_default_active_thread_percentage",
        "get_default_client_priority",
        f"get_active_thread_percentage {server}",
    ]
    wanted = ["-v", *lists, *limits]

    def all_asked() -> None:
        cycle.once(0.01)
        assert set(replies(turning.recorded)) == set(wanted)

    eventually(all_asked)
    for _ in range(50):
        cycle.once(0.01)

    assert sorted(replies(turning.recorded)) == sorted(wanted)


def test_an_answer_that_comes_in_mid_cycle_is_not_asked_for_again(
    turning: Turning, asking: Callable[..., Loop], mps: MpsStandIn
) -> None:
    """The eye becomes idle while the cycle takes in something else: its answer is in the inbox, not yet known."""
    mps.start()
    turning.inbox.put((line(1.0, "something that takes long to take in"),))
    thread = turning.pollers[NAME].thread

    def record(seen: Observation) -> None:
        turning.recorded.append(seen)
        if isinstance(seen, LogLine) and len(turning.recorded) > 1:
            eventually(lambda: _idle(thread))

    cycle = asking(record)
    events: list[Event] = []
    wanted = {"-v", "get_server_list", "get_default_active_thread_percentage", "get_default_client_priority"}

    def asked() -> None:
        turning.inbox.put((line(2.0, "another that takes long"),))
        events.extend(cycle.once(0.01))
        assert "get_server_list" in replies(turning.recorded)

    def answered() -> None:
        cycle.once(0.01)
        assert wanted <= set(replies(turning.recorded))

    eventually(asked)
    eventually(answered)
    for _ in range(20):
        cycle.once(0.01)

    assert sorted(replies(turning.recorded)) == sorted(wanted)


def _idle(thread: CollectorThread) -> None:
    assert not thread.busy


def test_it_runs_until_it_is_told_to_stop(turning: Turning) -> None:
    turning.thread("log", lambda: Reading((line(1.0, "something new"),)), period=0.001)
    cycle = Loop(
        Node(),
        CollectorPool(turning.threads),
        inbox=turning.inbox,
        clock=SystemClock(),
        intervals=PollIntervals(),
        publish=turning.published.append,
    )

    cycle.run(lambda: len(turning.published) < 5)

    assert len(turning.published) >= 5
    assert not [thread for thread in threading.enumerate() if thread.name == "collector-log"]


class Saying(Watchdog):
    """A watchdog that has this to say."""

    def __init__(self, *said: Event) -> None:
        super().__init__(Config(), SystemClock())
        self.said = said

    def evaluate(self, node: Node, *, changed: bool) -> tuple[Node, tuple[Event, ...]]:
        """Whatever the node is."""
        return node, self.said


LOUD = (
    ("error", EventName.CIRCUIT_OPENED, {}),
    ("error", EventName.DAEMON_QUARANTINED, {}),
    ("warning", EventName.WATCHDOG_ACTS, {}),
    ("warning", EventName.WATCHDOG_ACTED, {"problem": "denied"}),
    ("warning", EventName.WATCHDOG_ACTED, {"result": ActionResult.FAILED}),
    ("info", EventName.WATCHDOG_ACTED, {"result": ActionResult.SUCCEEDED}),
    ("warning", EventName.DAEMON_DIAGNOSED, {"state": Condition.CRASHED}),
    ("info", EventName.DAEMON_DIAGNOSED, {"state": Condition.WELL}),
    ("info", EventName.DAEMON_DIAGNOSED, {"state": Condition.UNKNOWN}),
    ("warning", EventName.LIMITS_DRIFTED, {}),
    ("warning", EventName.LIMITS_BYPASSED, {}),
    ("info", EventName.LIMITS_IN_FORCE, {}),
    ("info", EventName.WATCHDOG_WOULD_ACT, {}),
    ("info", EventName.WATCHDOG_WAITS, {}),
    ("info", EventName.CIRCUIT_CLOSED, {}),
    ("info", EventName.DAEMON_RELEASED, {}),
)


@pytest.mark.parametrize(("level", "name", "known"), LOUD, ids=[f"{name}-{known}" for _, name, known in LOUD])
def test_the_watchdog_is_as_loud_as_what_it_says_matters(
    level: str, name: EventName, known: dict[str, Any], turning: Turning
) -> None:
    cycle = turning.cycle(watchdog=Saying(Event(at=1.0, event=name, daemon=NAME, **known)))
    with capture_logs() as logs:
        cycle.once(0)
    assert [(each["event"], each["log_level"]) for each in logs] == [(name, level)]


def test_what_an_operator_says_is_taken_in_like_what_is_seen(turning: Turning) -> None:
    cycle = turning.cycle()
    cycle.put(Resumed(at=1.0, daemon=NAME))
    cycle.once(0)
    assert turning.recorded == [Resumed(at=1.0, daemon=NAME)]


def test_a_cycle_that_waits_for_news_can_be_woken() -> None:
    turning = Turning()
    cycle = turning.cycle()
    woken = threading.Thread(target=cycle.once, args=(PATIENCE_SECONDS * 100,), daemon=True)
    woken.start()

    cycle.put()

    woken.join(PATIENCE_SECONDS)
    assert not woken.is_alive()


def test_without_news_the_cycle_turns_less_often() -> None:
    turning = Turning()
    clock = HandClock()
    cycle = Loop(
        Node(),
        CollectorPool(()),
        inbox=turning.inbox,
        clock=clock,
        intervals=PollIntervals(),
        publish=turning.published.append,
    )
    cycle.once(0)
    assert cycle.timeout() == CYCLE_SECONDS
    clock.time += IDLE_AFTER_SECONDS
    assert cycle.timeout() == IDLE_CYCLE_SECONDS

    turning.inbox.put((line(clock.now(), "Start"),))
    cycle.once(0)

    assert cycle.timeout() <= CYCLE_SECONDS
