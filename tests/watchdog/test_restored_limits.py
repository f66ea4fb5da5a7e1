"""Limits that outlast a control daemon: what was set by command is put back, where nothing else is configured."""

import json
from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.settings import Limits, Mode
from exporter.model.watchdog import LimitEnforcement, WatchdogState
from exporter.serialization import build, plain
from exporter.watchdog.limits import limits_to_enforce, limits_to_restore
from tests.builders import AT, CONTROL, SERVER, exited, reply
from tests.watchdog.limits_setup import ALL, GIB, SET_MEMORY, Enforced, defaults, server, start_block, up

NOTHING = Limits()


def set_by_command(configured: Limits = NOTHING, mode: Mode = Mode.ACT) -> Enforced:
    """A daemon that was met as it starts, in which an operator has then set 40 %, 2 GiB and a priority."""
    enforced = Enforced(configured, mode)
    enforced.see(*up(), *defaults(100.0, "", 0))
    enforced.see(*defaults(40.0, "2G", 1, at=AT + 1))
    return enforced


def started_again(enforced: Enforced) -> list[str]:
    """The commands that its successor is given as soon as it answers."""
    enforced.see(exited(CONTROL, at=AT + 10))
    return enforced.see(*up(at=AT + 11, process=900))


class TestObserved:
    """What somebody set by command."""

    def test_it_is_put_back_after_a_restart(self) -> None:
        """At once, like what is configured."""
        assert started_again(set_by_command()) == [
            SET_MEMORY,
            "set_default_active_thread_percentage 40",
            "set_default_client_priority 1",
        ]

    def test_also_where_the_exporter_was_started_again_in_between(self) -> None:
        """It is kept with the rest of the watch."""
        kept = json.loads(json.dumps(plain(set_by_command().watch)))
        enforced = Enforced(NOTHING, watch=build(WatchdogState, kept))
        assert SET_MEMORY in enforced.see(*up(at=AT + 11, process=900))

    def test_on_the_servers_that_were_there_first_too(self) -> None:
        """They have come without."""
        enforced = set_by_command()
        started_again(enforced)
        commands = enforced.see(*defaults(at=AT + 11), *server(700, *start_block(100.0, None, 1), at=AT + 11.2))
        assert commands == ["set_device_pinned_mem_limit 700 0 2G", "set_active_thread_percentage 700 40"]

    def test_once_it_is_back_an_operator_may_do_otherwise(self) -> None:
        """With the daemon, or one server: nothing that is configured forbids it."""
        enforced = set_by_command()
        started_again(enforced)
        enforced.see(*defaults(at=AT + 12), *server(SERVER, *start_block(priority=1), at=AT + 12))
        enforced.judge(AT + 12)
        assert enforced.watch.wanted_limits is None
        other_server = reply(f"get_device_pinned_mem_limit {SERVER} 0", "9G\n", at=AT + 13)
        assert enforced.see(*defaults(50.0, "4G", 0, at=AT + 13), other_server) == []
        assert enforced.watch.limits == Limits(active_thread_percentage=50.0, pinned_memory={0: 4 * GIB})

    def test_on_the_same_daemon_it_is_never_put_back(self) -> None:
        """An operator's later change is what is observed now, also one that nobody saw being made."""
        enforced = set_by_command()
        assert enforced.see(*defaults(60.0, "3G", 0, at=AT + 2)) == []
        again = Enforced(NOTHING, watch=set_by_command().watch)
        assert again.see(*up(at=AT + 20), *defaults(60.0, "3G", 0, at=AT + 20)) == []
        assert again.watch.limits == enforced.watch.limits
        assert again.watch.limits == Limits(active_thread_percentage=60.0, pinned_memory={0: 3 * GIB})

    def test_what_was_taken_back_by_command_is_not_put_back(self) -> None:
        """A whole GPU, and the normal priority, are no limits."""
        enforced = set_by_command()
        enforced.see(*defaults(100.0, "", 0, at=AT + 2))
        assert enforced.watch.limits == Limits(pinned_memory={0: 2 * GIB})

    def test_a_percentage_that_the_daemon_had_from_its_start_comes_from_there_again(self) -> None:
        """It may be another by then."""
        enforced = Enforced(NOTHING)
        enforced.see(*up(), *defaults(40.0, "", 0))
        assert enforced.watch.limits is None
        assert started_again(enforced) == []

    def test_in_observe_a_loss_is_told(self) -> None:
        """And stays drifted until somebody sets it."""
        enforced = set_by_command(mode=Mode.OBSERVE)
        assert started_again(enforced) == []
        enforced.see(*defaults(100.0, "", 0, at=AT + 12))
        assert len(enforced.of(EventName.LIMITS_DRIFTED)) == 3
        enforced.see(*defaults(at=AT + 13))
        assert enforced.events[-1].event is EventName.LIMITS_IN_FORCE


class TestConfigured:
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
    def test_over_what_held_before(self, configured: Limits, expected: Limits) -> None:
        """For the next daemon; on the one that is there it alone is to hold."""
        there = WatchdogState(limits=ALL)
        assert limits_to_restore(configured, there) == expected
        assert limits_to_enforce(configured, there) == configured
        assert limits_to_enforce(configured, replace(there, enforcement=LimitEnforcement(restoring=True))) == expected

    def test_what_an_operator_sets_against_it_is_set_back(self) -> None:
        """And is not remembered in its place."""
        enforced = Enforced(Limits(pinned_memory={0: 2 * GIB}))
        enforced.see(*up(), *defaults(100.0, "2G", 0))
        assert enforced.see(*defaults(100.0, "3G", 0, at=AT + 1)) == [SET_MEMORY]
        enforced.see(*defaults(100.0, "2G", 0, at=AT + 2))
        assert started_again(enforced) == [SET_MEMORY]
