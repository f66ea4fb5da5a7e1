"""One look at everything tells of each daemon for itself."""

from exporter.clock import SystemClock
from exporter.collectors.thread import Reading
from exporter.one_shot import OneShot
from tests.builders import HANGS, node


def test_what_is_well_with_one_daemon_does_not_hide_what_is_wrong_with_another() -> None:
    glance = OneShot(node("/one", "/other"), SystemClock(), deadline=5.0, wait=lambda _: None)

    glance.collect("control", lambda: Reading(problem=HANGS), "/one")
    glance.collect("control", Reading, "/other")

    assert glance.node.sources["control"].last.problem == HANGS
