"""An Eye looks in a thread of its own: a look that hangs, or raises, costs this eye alone."""

import threading
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue

import pytest

from exporter.clock import SystemClock
from exporter.collectors.thread import DEFECT_SECONDS, FULL_INBOX, MORE_SECONDS, CollectorThread, Inbox, Reading, close
from exporter.model.observation import LogLine, Observation, SourceReading
from exporter.model.problem import Problem, ProblemCode
from tests.builders import UNREADABLE
from tests.eventually import PATIENCE_SECONDS, eventually

LINE = LogLine(at=1.0, daemon="node", file="control.log", line="line")

Open = Callable[..., CollectorThread]


@pytest.fixture
def inbox() -> Inbox:
    """Where eyes leave what they see."""
    return Inbox()


@pytest.fixture
def open_eye(inbox: Inbox) -> Iterator[Open]:
    """Opens an eye, and nudges it."""
    opened: list[CollectorThread] = []

    def open_(collect: Callable[[], Reading], **options: object) -> CollectorThread:
        options = {"period": None, "deadline": PATIENCE_SECONDS, **options}
        thread = CollectorThread("eye", collect, inbox=inbox, clock=SystemClock(), **options)  # type: ignore[arg-type]
        opened.append(thread)
        thread.open()
        thread.trigger()
        return thread

    yield open_
    for thread in opened:
        thread.close(PATIENCE_SECONDS)


def told(inbox: Inbox) -> tuple[tuple[Observation, ...], SourceReading]:
    """The next look that is told of: its observations, and what it says of itself."""
    *seen, collect = inbox.get(timeout=PATIENCE_SECONDS)
    assert isinstance(collect, SourceReading)
    return tuple(seen), collect


def nothing_told(inbox: Inbox, collect_within: float = 0.2) -> bool:
    try:
        inbox.get(timeout=collect_within)
    except Empty:
        return True
    return False


def test_without_a_period_it_does_not_look_unasked(inbox: Inbox) -> None:
    thread = CollectorThread("eye", Reading, period=None, deadline=PATIENCE_SECONDS, inbox=inbox, clock=SystemClock())
    thread.open()

    assert nothing_told(inbox)
    thread.close(PATIENCE_SECONDS)
    assert nothing_told(inbox, collect_within=0)


def test_it_looks_at_once_and_tells_what_it_saw(open_eye: Open, inbox: Inbox) -> None:
    open_eye(lambda: Reading((LINE,), "a problem"))

    seen, collect = told(inbox)

    assert seen == (LINE,)
    assert (collect.name, collect.problem, collect.seconds >= 0) == ("eye", "a problem", True)


def test_without_a_period_it_looks_when_nudged(open_eye: Open, inbox: Inbox) -> None:
    thread = open_eye(Reading)
    told(inbox)
    assert nothing_told(inbox)

    thread.trigger()
    told(inbox)
    assert nothing_told(inbox)


def test_with_a_period_it_looks_by_itself(open_eye: Open, inbox: Inbox) -> None:
    open_eye(Reading, period=0.001)

    for _ in range(5):
        told(inbox)


def test_a_nudge_in_mid_look_leads_to_one_more_look(open_eye: Open, inbox: Inbox) -> None:
    begun, go_on = threading.Event(), threading.Semaphore(0)

    def collect() -> Reading:
        begun.set()
        go_on.acquire(timeout=PATIENCE_SECONDS)
        return Reading()

    thread = open_eye(collect)
    assert begun.wait(PATIENCE_SECONDS)
    assert thread.busy
    thread.trigger()
    thread.trigger()
    go_on.release(10)
    told(inbox)
    told(inbox)

    assert nothing_told(inbox)
    eventually(lambda: _true(not thread.busy))


def test_who_is_idle_has_told_all(open_eye: Open) -> None:
    """Else a question is asked twice, because its answer seems to be still to come."""
    busy: list[bool] = []

    class Witness(SimpleQueue[tuple[Observation, ...]]):
        def put(self, item: tuple[Observation, ...], block: bool = True, timeout: float | None = None) -> None:
            busy.append(threads[0].busy)
            super().put(item)

    inbox = Witness()
    threads = [
        CollectorThread("eye", Reading, period=None, deadline=PATIENCE_SECONDS, inbox=inbox, clock=SystemClock())
    ]
    threads[0].open()
    threads[0].trigger()
    told(inbox)
    threads[0].close(PATIENCE_SECONDS)

    assert busy == [True] * len(busy)


def test_uneventful_looks_are_told_of_now_and_then(open_eye: Open, inbox: Inbox) -> None:
    collects: list[Reading] = []
    news = threading.Event()

    def collect() -> Reading:
        collects.append(Reading((LINE,)) if news.is_set() else Reading())
        return collects[-1]

    open_eye(collect, period=0.001, report_interval=3600.0)
    told(inbox)
    eventually(lambda: _true(len(collects) > 20))
    assert nothing_told(inbox, collect_within=0)

    news.set()
    assert told(inbox)[0] == (LINE,)


def test_an_uneventful_look_does_not_go_through_the_inbox(open_eye: Open, inbox: Inbox) -> None:
    thread = open_eye(Reading, period=0.001, report_interval=0.001)
    told(inbox)

    uneventful = eventually(lambda: _some(thread.uneventful()))

    assert uneventful.problem is None
    assert nothing_told(inbox, collect_within=0)


def test_an_idle_source_is_looked_at_again_when_nudged_and_else_as_seldom_as_it_is_told_of(open_eye: Open) -> None:
    collects: list[Reading] = []

    def collect() -> Reading:
        collects.append(Reading(idle=True))
        return collects[-1]

    thread = open_eye(collect, period=0.0, report_interval=3600.0)
    eventually(lambda: _true(not thread.busy))
    before = len(collects)

    thread.trigger()

    eventually(lambda: _true(len(collects) == before + 1))


def test_a_look_that_left_something_unread_is_soon_followed_by_another(open_eye: Open, inbox: Inbox) -> None:
    readings = [Reading((LINE,), more=True), Reading((LINE,), more=True)]
    open_eye(lambda: readings.pop(0) if readings else Reading((LINE,)), period=3600.0)

    assert [told(inbox)[1].more for _ in range(3)] == [True, True, False]
    assert nothing_told(inbox)


def test_one_that_finds_more_and_more_does_not_spin(open_eye: Open, inbox: Inbox) -> None:
    collects: list[int] = []

    def collect() -> Reading:
        collects.append(1)
        return Reading(more=True)

    clock = SystemClock()
    began = clock.monotonic()
    open_eye(collect, period=3600.0, report_interval=3600.0)
    told(inbox)
    nothing_told(inbox, collect_within=10 * MORE_SECONDS)
    seen = len(collects)

    assert seen <= (clock.monotonic() - began) / MORE_SECONDS + 2


def test_while_nobody_takes_in_what_was_seen_it_looks_for_no_more(open_eye: Open, inbox: Inbox) -> None:
    thread = open_eye(lambda: Reading((LINE,)), period=0.001)
    eventually(lambda: _true(inbox.qsize() == FULL_INBOX))
    thread._closing.wait(0.2)

    assert inbox.qsize() == FULL_INBOX
    for _ in range(3 * FULL_INBOX):
        assert told(inbox)[0] == (LINE,)


def test_a_full_inbox_does_not_hold_up_its_closing(open_eye: Open, inbox: Inbox) -> None:
    thread = open_eye(lambda: Reading((LINE,)), period=0.001)
    eventually(lambda: _true(inbox.qsize() == FULL_INBOX))

    thread.close(PATIENCE_SECONDS)

    assert not thread._thread.is_alive()


def test_who_waits_for_room_is_not_complained_of(open_eye: Open, inbox: Inbox) -> None:
    """Nothing hangs: it is the cycle that has not come round to it."""
    thread = open_eye(lambda: Reading((LINE,)), period=0.001, deadline=0.01)
    eventually(lambda: _true(inbox.qsize() == FULL_INBOX))
    eventually(lambda: _true(not thread.busy))
    thread._closing.wait(0.1)

    assert thread.timeout_report() is None


def test_a_problem_is_news_and_so_is_its_end(open_eye: Open, inbox: Inbox) -> None:
    problems: list[Problem | None] = [UNREADABLE, None]
    thread = open_eye(lambda: Reading(problem=problems.pop(0) if problems else None), report_interval=3600.0)

    assert told(inbox)[1].problem == UNREADABLE
    thread.trigger()
    assert told(inbox)[1].problem is None
    thread.trigger()
    assert nothing_told(inbox)


def defect(detail: str) -> Problem:
    return Problem(code=ProblemCode.UNEXPECTED_ERROR, detail=detail)


def test_a_source_that_raises_costs_one_reading(open_eye: Open, inbox: Inbox) -> None:
    faults = [ValueError("a defect"), KeyError("another")]

    def collect() -> Reading:
        if faults:
            raise faults.pop(0)
        return Reading((LINE,))

    thread = open_eye(collect)
    assert told(inbox)[1].problem == defect("ValueError: a defect")
    thread.trigger()
    assert told(inbox)[1].problem == defect("KeyError: 'another'")
    thread.trigger()
    assert told(inbox)[0] == (LINE,)


def test_a_source_that_always_raises_does_not_spin(open_eye: Open, inbox: Inbox) -> None:
    raised: list[int] = []

    def collect() -> Reading:
        raised.append(1)
        raise ValueError("a defect")

    clock = SystemClock()
    began = clock.monotonic()
    open_eye(collect, period=0.0, report_interval=1.0)
    told(inbox)
    seen = len(raised)

    assert seen <= (clock.monotonic() - began) / DEFECT_SECONDS + 2


def test_a_look_that_hangs_is_complained_of_once_for_each_deadline(open_eye: Open, inbox: Inbox) -> None:
    let_go = threading.Event()

    def collect() -> Reading:
        let_go.wait(PATIENCE_SECONDS)
        return Reading((LINE,))

    thread = open_eye(collect, deadline=0.2)
    try:
        first = eventually(lambda: _some(thread.timeout_report()))
        assert thread.timeout_report() is None
        second = eventually(lambda: _some(thread.timeout_report()))
        assert thread.busy
    finally:
        let_go.set()

    assert first.problem is not None
    assert first.problem.code is ProblemCode.STILL_RUNNING
    assert 0.2 <= first.seconds < second.seconds
    assert told(inbox)[1].problem is None
    eventually(lambda: _true(not thread.busy))
    assert thread.timeout_report() is None


def test_a_look_that_is_awaited_is_told_of_though_it_saw_nothing(inbox: Inbox, open_eye: Open) -> None:
    thread = open_eye(Reading, report_interval=PATIENCE_SECONDS)
    told(inbox)

    thread.trigger(report=True)

    assert told(inbox)[0] == ()


def test_a_look_that_hangs_does_not_hold_up_its_closing(open_eye: Open) -> None:
    let_go = threading.Event()

    def collect() -> Reading:
        let_go.wait(PATIENCE_SECONDS)
        return Reading()

    thread = open_eye(collect)
    thread.close(0.01)

    assert thread.busy
    let_go.set()


def test_many_that_hang_hold_up_no_longer_than_one(open_eye: Open) -> None:
    """Stopping is bounded, however many directories are on a server that has gone."""
    let_go = threading.Event()

    def collect() -> Reading:
        let_go.wait(PATIENCE_SECONDS)
        return Reading()

    threads = [open_eye(collect) for _ in range(50)]
    close(threads, 0.2)

    assert all(thread.busy for thread in threads), "they were not waited for one after the other, each to its end"
    let_go.set()


def _true(value: object) -> None:
    assert value


def _some(value: SourceReading | None) -> SourceReading:
    assert value is not None
    return value
