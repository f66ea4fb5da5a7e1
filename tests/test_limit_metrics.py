"""What the families say of limits that should hold."""

from dataclasses import replace

from exporter.model.node import Node
from exporter.model.settings import Limits
from exporter.model.watchdog import WatchdogState
from tests.builders import AT, CONTROL, DAEMON, SERVER, drifted, exited, idle, limited, no_daemon, reduced
from tests.test_metrics import families, samples, value

OF_SERVER, OF_DEFAULTS = "cuda_mps_server_limits_drifted", "cuda_mps_daemon_limits_drifted"


def wanting(limits: Limits | None, present: Node) -> Node:
    """A node on whose daemon these are to hold."""
    return replace(present, watches={DAEMON: WatchdogState(wanted_limits=limits)})


def test_a_server_and_the_next_one_are_told_apart() -> None:
    """A default that is right says nothing of a server that is there, nor the other way round."""
    assert value(drifted(), OF_SERVER, daemon=DAEMON, server=str(SERVER)) == 0
    assert value(drifted(), OF_DEFAULTS, daemon=DAEMON) == 1
    other_way = wanting(Limits(active_thread_percentage=25.0), limited())
    assert value(other_way, OF_SERVER, daemon=DAEMON, server=str(SERVER)) == 1
    assert value(other_way, OF_DEFAULTS, daemon=DAEMON) == 0


def test_where_none_are_to_hold_there_is_no_drift() -> None:
    """Not even a 0."""
    for present in (limited(), wanting(None, limited())):
        assert not {OF_SERVER, OF_DEFAULTS} & families(present).keys()


def test_what_nobody_has_told_is_neither_in_force_nor_drifted() -> None:
    """A daemon that was not asked yet."""
    present = wanting(Limits(active_thread_percentage=25.0, pinned_memory={0: 1 << 30}), idle())
    assert not {OF_SERVER, OF_DEFAULTS} & families(present).keys()


def test_one_limit_that_has_drifted_is_enough_whatever_is_not_known_of_others() -> None:
    """Of the memory of device 7 nobody has asked the daemon."""
    present = wanting(Limits(active_thread_percentage=60.0, pinned_memory={7: 1 << 30}), limited())
    assert value(present, OF_DEFAULTS) == 1


def test_they_end_with_their_daemon_and_the_count_stays() -> None:
    after = reduced(no_daemon(at=AT + 20), exited(CONTROL, at=AT + 5), start=drifted()).node
    assert not {OF_SERVER, OF_DEFAULTS} & families(after).keys()
    assert value(after, "cuda_mps_clients_before_limits_total", daemon=DAEMON) == 2


def test_who_slipped_in_is_counted_from_0() -> None:
    """As soon as the daemon is watched."""
    assert value(wanting(None, idle()), "cuda_mps_clients_before_limits_total") == 0
    assert not samples(idle(), "cuda_mps_clients_before_limits_total")
