"""Limits that outlast a control daemon: what was set by command is put back, where nothing else is configured."""

import json
from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.settings import Limits, Mode
from exporter.model.values import build, plain
from exporter.model.watchdog import LimitEnforcement, WatchdogState
from exporter.watchdog.limit_enforcement import limits_to_enforce, limits_to_restore
from tests.builders import AT, CONTROL, SERVER, exited, reply
from tests.watchdog.limits_setup import ALL, GIB, SET_MEMORY, LimitedDaemon, defaults, server, start_block, up

NOTHING = Limits()


def set_by_command(configured: Limits = NOTHING, mode: Mode = Mode.ACT) -> LimitedDaemon:
    """A daemon that was met as it starts, in which an operator has then set 40 %, 2 GiB and a priority."""
    enforced = LimitedDaemon(configured, mode)
    enforced.observe(*up(), *defaults(100.0, "", 0))
    enforced.observe(*defaults(40.0, "2G", 1, at=AT + 1))
    return enforced


def started_again(enforced: LimitedDaemon) -> list[str]:
    """The commands that its successor is given as soon as it answers."""
    enforced.observe(exited(CONTROL, at=AT + 10))
    return enforced.observe(*up(at=AT + 11, process=900))


class TestObservedLimits:
    """Return limits that an operator set by command."""

    def test_restores_limits_after_a_restart(self) -> None:
        assert started_again(set_by_command()) == [
            SET_MEMORY,
            "set_default_active_thread_percentage 40",
            "set_default_client_priority 1",
        ]

    def test_restores_limits_after_an_exporter_restart(self) -> None:
        """The limits are stored with the rest of the state."""
        stored = json.loads(json.dumps(plain(set_by_command().watch)))
        enforced = LimitedDaemon(NOTHING, watch=build(WatchdogState, stored))
        assert SET_MEMORY in enforced.observe(*up(at=AT + 11, process=900))

    def test_restores_limits_of_running_servers(self) -> None:
        enforced = set_by_command()
        started_again(enforced)
        commands = enforced.observe(*defaults(at=AT + 11), *server(700, *start_block(100.0, None, 1), at=AT + 11.2))
        assert commands == ["set_device_pinned_mem_limit 700 0 2G", "set_active_thread_percentage 700 40"]

    def test_an_operator_may_change_restored_limits(self) -> None:
        """With the daemon, or one server: nothing that is configured forbids it."""
        enforced = set_by_command()
        started_again(enforced)
        enforced.observe(*defaults(at=AT + 12), *server(SERVER, *start_block(priority=1), at=AT + 12))
        enforced.evaluate(AT + 12)
        assert enforced.watch.wanted_limits is None
        other_server = reply(f"get_device_pinned_mem_limit {SERVER} 0", "9G\n", at=AT + 13)
        assert enforced.observe(*defaults(50.0, "4G", 0, at=AT + 13), other_server) == []
        assert enforced.watch.limits == Limits(active_thread_percentage=50.0, pinned_memory={0: 4 * GIB})

    def test_restores_nothing_on_the_same_daemon(self) -> None:
        """An operator's later change counts, even if the exporter did not observe it."""
        enforced = set_by_command()
        assert enforced.observe(*defaults(60.0, "3G", 0, at=AT + 2)) == []
        again = LimitedDaemon(NOTHING, watch=set_by_command().watch)
        assert again.observe(*up(at=AT + 20), *defaults(60.0, "3G", 0, at=AT + 20)) == []
        assert again.watch.limits == enforced.watch.limits
        assert again.watch.limits == Limits(active_thread_percentage=60.0, pinned_memory={0: 3 * GIB})

    def test_does_not_restore_a_limit_that_a_command_removed(self) -> None:
        """A whole GPU, and the normal priority, are no limits."""
        enforced = set_by_command()
        enforced.observe(*defaults(100.0, "", 0, at=AT + 2))
        assert enforced.watch.limits == Limits(pinned_memory={0: 2 * GIB})

    def test_does_not_restore_a_percentage_from_the_start_of_the_daemon(self) -> None:
        """It may be another by then."""
        enforced = LimitedDaemon(NOTHING)
        enforced.observe(*up(), *defaults(40.0, "", 0))
        assert enforced.watch.limits is None
        assert started_again(enforced) == []

    def test_reports_lost_limits_in_observe_mode(self) -> None:
        """The limit stays drifted until an operator sets it."""
        enforced = set_by_command(mode=Mode.OBSERVE)
        assert started_again(enforced) == []
        enforced.observe(*defaults(100.0, "", 0, at=AT + 12))
        assert len(enforced.of(EventName.LIMITS_DRIFTED)) == 3
        enforced.observe(*defaults(at=AT + 13))
        assert enforced.events[-1].event is EventName.LIMITS_IN_FORCE


class TestConfiguredLimits:
    """It wins, limit by limit and device by device."""

    @pytest.mark.parametrize(
        ("configured", "expected"),
        [
            (NOTHING, ALL),
            (
                Limits(active_thread_percentage=70.0),
                Limits(active_thread_percentage=70.0, pinned_memory={0: 2 * GIB}, client_priority=1),
            ),
            (
                Limits(pinned_memory={1: GIB}, client_priority=0),
                Limits(active_thread_percentage=40.0, pinned_memory={0: 2 * GIB, 1: GIB}, client_priority=0),
            ),
            (
                Limits(pinned_memory={0: 5 * GIB}),
                Limits(active_thread_percentage=40.0, pinned_memory={0: 5 * GIB}, client_priority=1),
            ),
        ],
    )
    def test_configured_limits_replace_the_earlier_ones(self, configured: Limits, expected: Limits) -> None:
        """For the next daemon; on the one that is there it alone is to hold."""
        there = WatchdogState(limits=ALL)
        assert limits_to_restore(configured, there) == expected
        assert limits_to_enforce(configured, there) == configured
        assert limits_to_enforce(configured, replace(there, enforcement=LimitEnforcement(restoring=True))) == expected

    def test_corrects_an_operators_change_of_a_configured_limit(self) -> None:
        """And is not remembered in its place."""
        enforced = LimitedDaemon(Limits(pinned_memory={0: 2 * GIB}))
        enforced.observe(*up(), *defaults(100.0, "2G", 0))
        assert enforced.observe(*defaults(100.0, "3G", 0, at=AT + 1)) == [SET_MEMORY]
        enforced.observe(*defaults(100.0, "2G", 0, at=AT + 2))
        assert started_again(enforced) == [SET_MEMORY]
