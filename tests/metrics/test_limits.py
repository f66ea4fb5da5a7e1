"""Families of limits and their drift."""

from dataclasses import replace

from exporter.model.node import Node
from exporter.model.settings import Limits
from exporter.model.watchdog import WatchdogState
from tests.builders import AT, CONTROL, DAEMON, SERVER, drifted, exited, idle, limited, no_daemon, reduced
from tests.metrics.test_families import families, samples, value

OF_SERVER, OF_DEFAULTS = "cuda_mps_server_limits_drifted", "cuda_mps_daemon_limits_drifted"


def configured(limits: Limits | None, present: Node) -> Node:
    """Return a node for which these limits are configured."""
    return replace(present, watches={DAEMON: WatchdogState(wanted_limits=limits)})


def test_drift_of_a_server_and_of_the_defaults_are_independent() -> None:
    """A correct default does not prove a correct server, and vice versa."""
    assert value(drifted(), OF_SERVER, daemon=DAEMON, server=str(SERVER)) == 0
    assert value(drifted(), OF_DEFAULTS, daemon=DAEMON) == 1
    other_way = configured(Limits(active_thread_percentage=25.0), limited())
    assert value(other_way, OF_SERVER, daemon=DAEMON, server=str(SERVER)) == 1
    assert value(other_way, OF_DEFAULTS, daemon=DAEMON) == 0


def test_without_configured_limits_there_is_no_drift_series() -> None:
    """Not 0 either."""
    for present in (limited(), configured(None, limited())):
        assert not {OF_SERVER, OF_DEFAULTS} & families(present).keys()


def test_unknown_limits_have_no_drift_series() -> None:
    """The daemon was not queried yet."""
    present = configured(Limits(active_thread_percentage=25.0, pinned_memory={0: 1 << 30}), idle())
    assert not {OF_SERVER, OF_DEFAULTS} & families(present).keys()


def test_one_drifted_limit_is_enough() -> None:
    """The memory limit of device 7 is unknown."""
    present = configured(Limits(active_thread_percentage=60.0, pinned_memory={7: 1 << 30}), limited())
    assert value(present, OF_DEFAULTS) == 1


def test_drift_ends_with_the_daemon_and_the_counter_remains() -> None:
    after = reduced(no_daemon(at=AT + 20), exited(CONTROL, at=AT + 5), start=drifted()).node
    assert not {OF_SERVER, OF_DEFAULTS} & families(after).keys()
    assert value(after, "cuda_mps_clients_before_limits_total", daemon=DAEMON) == 2


def test_clients_before_limits_start_at_0() -> None:
    """From the watchdog's first evaluation of the daemon."""
    assert value(configured(None, idle()), "cuda_mps_clients_before_limits_total") == 0
    assert not samples(idle(), "cuda_mps_clients_before_limits_total")
