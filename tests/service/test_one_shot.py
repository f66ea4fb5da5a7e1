"""A one-shot collection reports the problems of each daemon."""

from exporter.app import MOST_SECONDS, OneShot
from exporter.clock import SystemClock
from exporter.collectors.thread import Reading
from exporter.model.reason import Reason, ReasonCode
from tests.builders import HANGS, node
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS


def test_begins_no_collection_after_its_time_and_says_so() -> None:
    clock = HandClock()
    glance = OneShot(node("/one"), clock, deadline=PATIENCE_SECONDS, wait=lambda _: None)
    called: list[int] = []

    def reading() -> Reading:
        called.append(1)
        return Reading()

    glance.collect("control", reading, "/one")
    clock.time += MOST_SECONDS
    glance.collect("nvml", reading)

    assert len(called) == 1
    assert glance.node.sources["control"].last.problem is None
    assert glance.node.sources["nvml"].last.problem == Reason(ReasonCode.NOT_TRIED, seconds=MOST_SECONDS)


def test_reports_the_problem_of_one_daemon_after_the_success_of_another() -> None:
    glance = OneShot(node("/one", "/other"), SystemClock(), deadline=PATIENCE_SECONDS, wait=lambda _: None)

    glance.collect("control", lambda: Reading(problem=HANGS), "/one")
    glance.collect("control", Reading, "/other")

    assert glance.node.sources["control"].last.problem == HANGS
