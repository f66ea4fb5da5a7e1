"""A one-shot collection reports the problems of each daemon."""

from exporter.clock import SystemClock
from exporter.collectors.thread import Reading
from exporter.one_shot import OneShot
from tests.builders import HANGS, node
from tests.eventually import PATIENCE_SECONDS


def test_reports_the_problem_of_one_daemon_after_the_success_of_another() -> None:
    glance = OneShot(node("/one", "/other"), SystemClock(), deadline=PATIENCE_SECONDS, wait=lambda _: None)

    glance.collect("control", lambda: Reading(problem=HANGS), "/one")
    glance.collect("control", Reading, "/other")

    assert glance.node.sources["control"].last.problem == HANGS
