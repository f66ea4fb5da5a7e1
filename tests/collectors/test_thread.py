"""Tests of CollectorThread: a collector that hangs or raises costs only its own thread."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from queue import Empty, SimpleQueue

import pytest

from exporter.clock import SystemClock
from exporter.collectors import thread as thread_module
from exporter.collectors.thread import BoundedCalls, CollectorThread, Inbox, Reading, close, collect_each
from exporter.model.observation import LogLine, Observation, SourceReading
from exporter.model.reason import Reason, ReasonCode
from tests.builders import UNREADABLE
from tests.eventually import PATIENCE_SECONDS, eventually, until

# The tests state these values, so that they notice a change of the program's constants.
DEFECT_SECONDS = 1.0
FULL_INBOX = 64
MORE_SECONDS = 0.05
MOST_HANGING = 16

LINE = LogLine(at=1.0, daemon="node", file="control.log", line="line")

Start = Callable[..., CollectorThread]


def collector_thread(inbox: Inbox, collect: Callable[[], Reading] = Reading, **options: object) -> CollectorThread:
    options = {"period": None, "deadline": PATIENCE_SECONDS, **options}
    return CollectorThread("test", collect, inbox=inbox, clock=SystemClock(), **options)  # type: ignore[arg-type]


@pytest.fixture
def inbox() -> Inbox:
    return Inbox()


@pytest.fixture
def start(inbox: Inbox) -> Iterator[Start]:
    started: list[CollectorThread] = []

    def start_(collect: Callable[[], Reading], **options: object) -> CollectorThread:
        thread = collector_thread(inbox, collect, **options)
        started.append(thread)
        thread.start()
        thread.trigger()
        return thread

    yield start_
    close(started, PATIENCE_SECONDS)


def reported(inbox: Inbox) -> tuple[tuple[Observation, ...], SourceReading]:
    *seen, report = inbox.get(timeout=PATIENCE_SECONDS)
    assert isinstance(report, SourceReading)
    return tuple(seen), report


def nothing_reported(inbox: Inbox, within: float = 0.2) -> bool:
    try:
        inbox.get(timeout=within)
    except Empty:
        return True
    return False


def test_does_not_collect_untriggered_without_a_period(inbox: Inbox) -> None:
    thread = collector_thread(inbox)
    thread.start()

    assert nothing_reported(inbox)
    close([thread], PATIENCE_SECONDS)
    assert nothing_reported(inbox, within=0)


def test_reports_observations_and_problem(start: Start, inbox: Inbox) -> None:
    start(lambda: Reading((LINE,), UNREADABLE))

    seen, report = reported(inbox)

    assert seen == (LINE,)
    assert (report.name, report.problem, report.seconds >= 0) == ("test", UNREADABLE, True)


def test_collects_when_triggered(start: Start, inbox: Inbox) -> None:
    thread = start(Reading)
    reported(inbox)
    assert nothing_reported(inbox)

    thread.trigger()
    reported(inbox)
    assert nothing_reported(inbox)


def test_collects_periodically(start: Start, inbox: Inbox) -> None:
    start(Reading, period=0.001)

    for _ in range(5):
        reported(inbox)


def test_collects_once_more_after_triggers_during_a_collection(start: Start, inbox: Inbox) -> None:
    started, finish = threading.Event(), threading.Semaphore(0)

    def collect() -> Reading:
        started.set()
        finish.acquire(timeout=PATIENCE_SECONDS)
        return Reading()

    thread = start(collect)
    assert started.wait(PATIENCE_SECONDS)
    assert thread.busy
    thread.trigger()
    thread.trigger()
    finish.release(10)
    reported(inbox)
    reported(inbox)

    assert nothing_reported(inbox)
    until(lambda: not thread.busy)


def test_is_busy_until_its_reading_is_in_the_inbox() -> None:
    """Otherwise a query is sent twice, because its reply is still missing."""
    busy: list[bool] = []

    class RecordingInbox(SimpleQueue[tuple[Observation, ...]]):
        def put(self, item: tuple[Observation, ...], block: bool = True, timeout: float | None = None) -> None:
            busy.append(thread.busy)
            super().put(item)

    inbox = RecordingInbox()
    thread = collector_thread(inbox)
    thread.start()
    thread.trigger()
    reported(inbox)
    close([thread], PATIENCE_SECONDS)

    assert busy == [True] * len(busy)


def test_reports_collections_without_news_only_at_the_report_interval(start: Start, inbox: Inbox) -> None:
    collections: list[Reading] = []
    news = threading.Event()

    def collect() -> Reading:
        collections.append(Reading((LINE,)) if news.is_set() else Reading())
        return collections[-1]

    start(collect, period=0.001, report_interval=3600.0)
    reported(inbox)
    until(lambda: len(collections) > 20)
    assert nothing_reported(inbox, within=0)

    news.set()
    assert reported(inbox)[0] == (LINE,)


def test_does_not_put_a_reading_without_news_into_the_inbox(start: Start, inbox: Inbox) -> None:
    thread = start(Reading, period=0.001, report_interval=0.001)
    reported(inbox)

    uneventful = eventually(lambda: _some(next(thread.uneventful(), None)))

    assert isinstance(uneventful, SourceReading)
    assert uneventful.problem is None
    assert nothing_reported(inbox, within=0)


def test_a_routine_reading_does_not_wake_the_loop_and_is_not_lost(start: Start, inbox: Inbox) -> None:
    readings = [Reading((LINE,), routine=True), Reading((LINE,), routine=True), Reading()]
    thread = start(lambda: readings.pop(0) if len(readings) > 1 else readings[0], period=0.001, report_interval=3600.0)
    reported(inbox)
    until(lambda: len(readings) == 1)

    assert _some(eventually(lambda: _some(next(thread.uneventful(), None)))) == LINE
    assert nothing_reported(inbox, within=0)


def test_collects_from_an_idle_collector_when_triggered_or_at_the_report_interval(start: Start) -> None:
    collections: list[Reading] = []

    def collect() -> Reading:
        collections.append(Reading(idle=True))
        return collections[-1]

    thread = start(collect, period=0.0, report_interval=3600.0)
    until(lambda: not thread.busy)
    before = len(collections)

    thread.trigger()

    until(lambda: len(collections) == before + 1)


def test_collects_again_soon_after_a_reading_that_left_something_unread(start: Start, inbox: Inbox) -> None:
    readings = [Reading((LINE,), more=True), Reading((LINE,), more=True)]
    start(lambda: readings.pop(0) if readings else Reading((LINE,)), period=3600.0)

    assert [reported(inbox)[1].more for _ in range(3)] == [True, True, False]
    assert nothing_reported(inbox)


def test_limits_the_rate_of_a_collector_that_always_leaves_something_unread(start: Start, inbox: Inbox) -> None:
    collections: list[int] = []

    def collect() -> Reading:
        collections.append(1)
        return Reading(more=True)

    clock = SystemClock()
    began = clock.monotonic()
    start(collect, period=3600.0, report_interval=3600.0)
    reported(inbox)
    nothing_reported(inbox, within=10 * MORE_SECONDS)
    count = len(collections)

    assert count <= (clock.monotonic() - began) / MORE_SECONDS + 2


def test_does_not_collect_while_the_inbox_is_full(start: Start, inbox: Inbox) -> None:
    thread = start(lambda: Reading((LINE,)), period=0.001)
    until(lambda: inbox.qsize() == FULL_INBOX)
    thread._stopped.wait(0.2)

    assert inbox.qsize() == FULL_INBOX
    for _ in range(3 * FULL_INBOX):
        assert reported(inbox)[0] == (LINE,)


def test_stops_although_the_inbox_is_full(start: Start, inbox: Inbox) -> None:
    thread = start(lambda: Reading((LINE,)), period=0.001)
    until(lambda: inbox.qsize() == FULL_INBOX)

    close([thread], PATIENCE_SECONDS)

    assert not thread.alive


def test_a_full_inbox_is_not_a_timeout(start: Start, inbox: Inbox) -> None:
    """The collector does not hang: the loop has not emptied the inbox."""
    thread = start(lambda: Reading((LINE,)), period=0.001, deadline=0.01)
    until(lambda: inbox.qsize() == FULL_INBOX)
    until(lambda: not thread.busy)
    thread._stopped.wait(0.1)

    assert thread.timeout_report() is None


def test_reports_a_problem_and_its_end_as_news(start: Start, inbox: Inbox) -> None:
    problems: list[Reason | None] = [UNREADABLE, None]
    thread = start(lambda: Reading(problem=problems.pop(0) if problems else None), report_interval=3600.0)

    assert reported(inbox)[1].problem == UNREADABLE
    thread.trigger()
    assert reported(inbox)[1].problem is None
    thread.trigger()
    assert nothing_reported(inbox)


def defect(detail: str) -> Reason:
    return Reason(ReasonCode.UNEXPECTED_ERROR, detail=detail)


def test_continues_after_a_collector_raised(start: Start, inbox: Inbox) -> None:
    errors = [ValueError("a defect"), KeyError("another")]

    def collect() -> Reading:
        if errors:
            raise errors.pop(0)
        return Reading((LINE,))

    thread = start(collect)
    assert reported(inbox)[1].problem == defect("ValueError: a defect")
    thread.trigger()
    assert reported(inbox)[1].problem == defect("KeyError: 'another'")
    thread.trigger()
    assert reported(inbox)[0] == (LINE,)


def test_limits_the_rate_of_a_collector_that_always_raises(start: Start, inbox: Inbox) -> None:
    raised: list[int] = []

    def collect() -> Reading:
        raised.append(1)
        raise ValueError("a defect")

    clock = SystemClock()
    began = clock.monotonic()
    start(collect, period=0.0, report_interval=1.0)
    reported(inbox)
    count = len(raised)

    assert count <= (clock.monotonic() - began) / DEFECT_SECONDS + 2


def test_reports_a_hung_collection_once_for_each_deadline(start: Start, inbox: Inbox) -> None:
    release = threading.Event()

    def collect() -> Reading:
        release.wait(PATIENCE_SECONDS)
        return Reading((LINE,))

    thread = start(collect, deadline=0.2)
    try:
        first = eventually(lambda: _some(thread.timeout_report()))
        assert thread.timeout_report() is None
        second = eventually(lambda: _some(thread.timeout_report()))
        assert thread.busy
    finally:
        release.set()

    assert first.problem is not None
    assert first.problem.code is ReasonCode.STILL_RUNNING
    assert 0.2 <= first.seconds < second.seconds
    assert reported(inbox)[1].problem is None
    until(lambda: not thread.busy)
    assert thread.timeout_report() is None


def test_reports_a_requested_collection_without_news(inbox: Inbox, start: Start) -> None:
    thread = start(Reading, report_interval=PATIENCE_SECONDS)
    reported(inbox)

    thread.trigger(report=True)

    assert reported(inbox)[0] == ()


def test_closing_many_hung_threads_takes_no_longer_than_closing_one(start: Start) -> None:
    release = threading.Event()

    def collect() -> Reading:
        release.wait(PATIENCE_SECONDS)
        return Reading()

    threads = [start(collect) for _ in range(50)]
    close(threads, 0.2)

    assert all(thread.busy for thread in threads), "close waited for each thread in turn"
    release.set()


def test_collects_in_parallel_and_leaves_a_hung_collector_behind() -> None:
    release = threading.Event()

    def hang() -> Reading:
        release.wait(PATIENCE_SECONDS)
        return Reading()

    def fail() -> Reading:
        raise ValueError("a defect")

    readings = collect_each(2.0, {"hangs": hang, "answers": lambda: Reading((LINE,)), "raises": fail})
    release.set()

    assert readings == {
        "hangs": Reading(problem=Reason(ReasonCode.STILL_RUNNING, seconds=2.0)),
        "answers": Reading((LINE,)),
        "raises": Reading(problem=defect("ValueError: a defect")),
    }


def _some(value: Observation | None) -> Observation:
    assert value is not None
    return value


# -- calls that may hang -------------------------------------------------------------------------------------------


def test_a_call_that_hangs_is_not_repeated_and_its_late_result_is_taken() -> None:
    calls, go, made = BoundedCalls(0.0), threading.Event(), []

    def hang() -> str:
        made.append(1)
        go.wait(PATIENCE_SECONDS)
        return "late"

    assert [calls.call("a", hang, "default") for _ in range(3)] == ["default"] * 3
    until(lambda: made)
    assert (len(made), calls.hanging) == (1, True)
    go.set()

    until(lambda: calls.call("a", hang, "default") == "late")


def test_hanging_calls_of_one_owner_prevent_no_call_of_another() -> None:
    calls, go = BoundedCalls(0.0), threading.Event()
    made: list[str] = []

    def hang(owner: str) -> None:
        made.append(owner)
        go.wait(PATIENCE_SECONDS)

    for number in range(3 * MOST_HANGING):
        calls.call(number, partial(hang, "tenant"), None, owner="tenant")
    until(lambda: len(made) == MOST_HANGING)
    assert made == ["tenant"] * MOST_HANGING
    assert BoundedCalls(PATIENCE_SECONDS).call("b", lambda: "result", "default") == "result"
    calls.call("b", partial(hang, "other"), None, owner="other")
    until(lambda: made[-1] == "other")
    go.set()

    until(lambda: not calls.hanging)
    calls.call("new", partial(hang, "new"), None, owner="tenant")
    until(lambda: made[-1] == "new")


def test_calls_that_end_in_time_share_a_thread() -> None:
    calls = BoundedCalls(PATIENCE_SECONDS)

    assert len({calls.call(number, threading.current_thread, None) for number in range(3)}) == 1


def test_a_thread_without_calls_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_module, "IDLE_SECONDS", 0.0)
    calls = BoundedCalls(PATIENCE_SECONDS)

    thread = calls.call("a", threading.current_thread, None)

    assert thread is not None
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()
    assert calls.call("a", lambda: "result", "default") == "result"


def test_a_call_raises_the_error_of_the_system() -> None:
    with pytest.raises(PermissionError):
        BoundedCalls(PATIENCE_SECONDS).call("a", _denied, 0)


def _denied() -> int:
    raise PermissionError(1, "no")


def test_collects_at_its_interval_only_if_that_is_due(start: Start, inbox: Inbox) -> None:
    """An exception is a defect, and the thread goes on."""
    answers = iter([False, ValueError("defect"), True])

    def due() -> bool:
        answer = next(answers, False)
        if isinstance(answer, Exception):
            raise answer
        return answer

    thread = start(lambda: Reading((LINE,)), period=0.001, due=due)

    assert [reported(inbox)[0] for _ in range(2)] == [(LINE,)] * 2
    assert nothing_reported(inbox)
    assert next(answers, None) is None

    def waits() -> None:
        assert not thread.busy

    eventually(waits)


def test_reports_a_question_that_hangs(start: Start, inbox: Inbox) -> None:
    """As a collection that hangs: the thread collects no more."""
    released = threading.Event()
    thread = start(Reading, period=0.001, deadline=0.01, due=lambda: released.wait(PATIENCE_SECONDS))
    reported(inbox)

    def overdue() -> SourceReading:
        report = thread.timeout_report()
        assert report is not None
        return report

    problem = eventually(overdue).problem
    released.set()
    assert problem is not None
    assert problem.code is ReasonCode.STILL_RUNNING
