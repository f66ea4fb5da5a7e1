"""Limits are compared on the server, set if they differ, and not set more often than useful."""

import json
from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.observation import Observation, ProcessState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits, Mode
from exporter.model.values import build, plain
from exporter.model.watchdog import LimitEnforcement, WatchdogState
from exporter.watchdog.limit_enforcement import (
    MAX_COMMANDS,
    MAX_TRIES,
    RETRY_SECONDS,
    SLOW_RETRY_SECONDS,
    limits_to_enforce,
    limits_to_restore,
)
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    SERVER,
    active,
    clients,
    control_log,
    daemon_process,
    exited,
    no_daemon,
    refusal,
    reply,
    server_log,
    servers,
    silence,
    status,
)
from tests.watchdog.limits_setup import (
    ALL,
    GIB,
    MEMORY,
    SET_MEMORY,
    LimitedDaemon,
    commands_of,
    defaults,
    server,
    start_block,
    up,
)

OF_SERVER = f"set_device_pinned_mem_limit {SERVER} 0 2G"
TELLS_MEMORY = reply(f"get_device_pinned_mem_limit {SERVER} 0", "2G\n", at=AT + 1)


def in_force(configured: Limits = ALL, mode: Mode = Mode.ACT, *pids: int) -> LimitedDaemon:
    """Return a daemon and a server with all limits in force."""
    enforced = LimitedDaemon(configured, mode)
    enforced.observe(*up(SERVER), *clients_of(*pids), *defaults(), *server_log(*start_block(priority=1)))
    return enforced


def clients_of(*pids: int, at: float = AT) -> tuple[Observation, ...]:
    return (clients(*pids, server=SERVER, at=at),) if pids else ()


class TestLimitsInForce:
    """All that is wanted is verified."""

    def test_reports_limits_in_force_once(self) -> None:
        enforced = in_force()
        assert enforced.evaluate(AT + 60) == []
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE]
        assert not enforced.actions

    def test_waits_for_the_limits_of_a_server(self) -> None:
        """The daemon's defaults are no promise of it."""
        enforced = LimitedDaemon(ALL)
        enforced.observe(*up(SERVER), *defaults())
        assert not enforced.events

    def test_does_not_report_a_new_server_with_its_limits(self) -> None:
        """Nor while it is starting."""
        enforced = in_force()
        enforced.observe(
            *control_log(f"Server {SERVER} exited with status 0", "Starting new server 700 for user 0", at=AT)
        )
        enforced.observe(*server_log(*start_block(priority=1), server=700, at=AT + 1))
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE]

    def test_reports_nothing_without_wanted_limits(self) -> None:
        enforced = in_force(Limits())
        assert (enforced.events, enforced.actions, enforced.watch.wanted_limits) == ([], [], None)

    def test_accepts_a_percentage_with_one_decimal(self) -> None:
        """What was set as 33.33 is 33.3."""
        enforced = LimitedDaemon(Limits(active_thread_percentage=33.33))
        assert enforced.observe(*up(SERVER), *defaults(33.3), *server_log(*start_block(33.3))) == []


class TestNewDaemon:
    """Its memory is empty, and clients come at once."""

    def back(self, configured: Limits, mode: Mode = Mode.ACT) -> LimitedDaemon:
        """One that had all its limits has died, and is not yet back."""
        enforced = in_force(configured, mode)
        enforced.observe(exited(CONTROL, at=AT + 10))
        return enforced

    def test_sets_the_defaults_at_the_first_reply_without_a_query(self) -> None:
        """All are set before any is read back."""
        enforced = self.back(ALL)
        assert enforced.observe(*up(at=AT + 11, process=900))[:2] == [
            SET_MEMORY,
            "set_default_active_thread_percentage 40",
        ]
        (action,) = enforced.actions
        assert commands_of(action) == [
            SET_MEMORY,
            "set_default_active_thread_percentage 40",
            "set_default_client_priority 1",
            "get_default_device_pinned_mem_limit 0",
            "get_default_active_thread_percentage",
            "get_default_client_priority",
        ]
        assert (action.daemon, action.reason, action.uid) == (DAEMON, "limits_lost", 0)

    def test_assumes_the_same_user_while_the_process_is_unknown(self) -> None:
        """A daemon obeys only its user and root, and answers before its process is known."""
        enforced = self.back(ALL)
        enforced.watch = replace(enforced.watch, process=replace(daemon_process(), uid=1000))
        enforced.observe(servers(at=AT + 11))
        assert [action.uid for action in enforced.actions] == [1000]

    def test_sends_nothing_to_a_daemon_that_does_not_answer_yet(self) -> None:
        enforced = self.back(ALL)
        assert enforced.observe(no_daemon(at=AT + 11)) == []
        held = in_force()
        held.observe(refusal(at=AT + 10))
        assert held.observe(refusal(at=AT + 20), *control_log(f"Cmd:{SET_MEMORY}", at=AT + 20)) == []
        silent = in_force()
        silent.observe(silence(at=AT + 10))
        assert silent.observe(silence(at=AT + 20)) == []

    def test_sends_nothing_after_an_unanswered_command(self) -> None:
        """It may hang."""
        less_memory = server_log("Device pinned memory limit for device 0 set to 0x40000000 bytes", at=AT + 11)
        assert in_force().observe(*less_memory) != []
        assert in_force().observe(silence(at=AT + 10), *less_memory) == []

    def test_missing_limits_of_a_new_daemon_are_no_drift(self) -> None:
        enforced = self.back(ALL)
        enforced.observe(*up(at=AT + 11, process=900))
        enforced.observe(*defaults(at=AT + 11.1))
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE] * 2
        assert len(enforced.actions) == 1

    def test_restores_limits_after_an_unobserved_replacement(self) -> None:
        enforced = in_force(MEMORY)
        assert SET_MEMORY in enforced.observe(*up(at=AT + 11, process=900))

    def test_queries_the_same_daemon_first_after_an_exporter_restart(self) -> None:
        """What holds there may be right."""
        enforced = LimitedDaemon(MEMORY, watch=in_force(MEMORY).watch)
        assert enforced.observe(*up(SERVER, at=AT + 11)) == []
        assert enforced.observe(*defaults(memory="2G", at=AT + 12)) == []

    def test_queries_an_unknown_daemon_first(self) -> None:
        enforced = LimitedDaemon(MEMORY)
        assert enforced.observe(*up()) == []
        assert enforced.observe(*defaults(memory="")) == [SET_MEMORY]

    def test_sets_and_queries_the_limits_of_a_running_server(self) -> None:
        """A client that connects at once starts one before any command comes (measured, R580)."""
        enforced = self.back(ALL)
        enforced.observe(*up(at=AT + 11, process=900))
        first = server(700, *start_block(memory=None, priority=1), at=AT + 11.2)
        assert enforced.observe(*defaults(at=AT + 11), *first) == ["set_device_pinned_mem_limit 700 0 2G"]
        assert "get_device_pinned_mem_limit 700 0" in commands_of(enforced.actions[-1])

    def test_reports_drift_in_observe_mode_after_the_first_query(self) -> None:
        enforced = self.back(MEMORY, Mode.OBSERVE)
        enforced.observe(*up(at=AT + 11, process=900))
        assert not enforced.of(EventName.LIMITS_DRIFTED)
        enforced.observe(*defaults(memory="", at=AT + 12))
        enforced.evaluate(AT + 100)
        assert [event.reason for event in enforced.of(EventName.LIMITS_DRIFTED)] == [
            Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=0, wanted=2147483648.0)
        ]
        assert not enforced.actions


class TestDrift:
    """A limit is not as it should be."""

    @pytest.mark.parametrize(
        ("reported", "command", "words"),
        [
            (
                start_block(60.0),
                f"set_active_thread_percentage {SERVER} 40",
                Reason(ReasonCode.THREAD_PERCENTAGE_DIFFERS, found=60.0, wanted=40.0),
            ),
            (
                start_block(memory=3 * GIB),
                OF_SERVER,
                Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=0, found=3221225472.0, wanted=2147483648.0),
            ),
            (
                start_block(memory=None),
                OF_SERVER,
                Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=0, wanted=2147483648.0),
            ),
        ],
    )
    def test_corrects_a_drifted_limit_of_a_server(self, reported: tuple[str, ...], command: str, words: str) -> None:
        """The right default does not help it."""
        enforced = LimitedDaemon(replace(ALL, client_priority=None))
        assert enforced.observe(*up(SERVER), *defaults(), *server_log(*reported)) == [command]
        (event,) = enforced.of(EventName.LIMITS_DRIFTED)
        assert (event.daemon, event.server, event.reason) == (DAEMON, SERVER, words)
        assert enforced.actions[0].reason == "limits_drifted"

    def test_a_correct_server_does_not_hide_a_wrong_default(self) -> None:
        """The next one would have it."""
        enforced = LimitedDaemon(replace(ALL, client_priority=None))
        commands = enforced.observe(*up(SERVER), *defaults(share=100.0), *server_log(*start_block()))
        assert commands == ["set_default_active_thread_percentage 40"]
        assert [event.server for event in enforced.of(EventName.LIMITS_DRIFTED)] == [None]

    def test_sets_the_priority_once_for_daemon_and_servers(self) -> None:
        """It reaches them at once (measured, R580)."""
        enforced = LimitedDaemon(Limits(client_priority=1))
        assert enforced.observe(*up(SERVER), *defaults(priority=0), *server_log(*start_block())) == [
            "set_default_client_priority 1"
        ]
        assert len(enforced.of(EventName.LIMITS_DRIFTED)) == 1
        enforced.observe(*defaults(priority=1, at=AT + 1), *server_log("Client Priority set to 1", at=AT + 1))
        assert enforced.events[-1].event is EventName.LIMITS_IN_FORCE

    def test_sets_the_priority_if_only_a_server_has_another_one(self) -> None:
        enforced = LimitedDaemon(Limits(client_priority=1))
        assert enforced.observe(*up(SERVER), *defaults(priority=1), *server_log(*start_block(priority=0))) == [
            "set_default_client_priority 1"
        ]

    def test_a_server_without_a_logged_priority_has_the_default(self) -> None:
        enforced = LimitedDaemon(Limits(client_priority=1))
        enforced.observe(*up(SERVER), *defaults(priority=1))
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE]

    def test_reports_drift_once_and_its_end(self) -> None:
        enforced = in_force(MEMORY)
        told_anew = reply(f"get_device_pinned_mem_limit {SERVER} 0", "3G\n", at=AT + 1)
        assert enforced.observe(told_anew) == [OF_SERVER]
        assert enforced.evaluate(AT + 2) == []
        enforced.observe(replace(TELLS_MEMORY, at=AT + 3))
        assert [event.event for event in enforced.events[1:]] == [
            EventName.LIMITS_DRIFTED,
            EventName.LIMITS_IN_FORCE,
        ]

    def test_only_reports_drift_in_observe_mode(self) -> None:
        """Until an operator corrects it."""
        enforced = in_force(MEMORY, Mode.OBSERVE)
        enforced.observe(replace(TELLS_MEMORY, stdout="3G\n"))
        enforced.evaluate(AT + 100)
        enforced.observe(replace(TELLS_MEMORY, at=AT + 101))
        assert [event.event for event in enforced.events[1:]] == [
            EventName.LIMITS_DRIFTED,
            EventName.LIMITS_IN_FORCE,
        ]
        assert not enforced.actions

    def test_a_limit_is_unknown_after_a_command_until_the_next_query(self) -> None:
        """It may have been refused."""
        enforced = in_force(MEMORY)
        assert enforced.observe(*control_log(f"Cmd:set_device_pinned_mem_limit {SERVER} 0 9G", at=AT + 1)) == []
        assert enforced.observe(replace(TELLS_MEMORY, at=AT + 2)) == []
        assert len(enforced.events) == 1

    def test_waits_until_a_server_has_logged_all_limits(self) -> None:
        """The priority comes last. Older servers do not log it."""
        enforced = LimitedDaemon(MEMORY)
        first, *rest = start_block(memory=None)
        assert enforced.observe(*up(SERVER), *defaults(), *server_log(first)) == []
        assert enforced.evaluate(AT + 0.1) == []
        assert enforced.evaluate(AT + 0.5) == [OF_SERVER]
        received = LimitedDaemon(MEMORY)
        assert received.observe(*up(SERVER), *defaults(), *server_log(first, *rest)) == [OF_SERVER]

    def test_sets_the_limit_of_an_absent_device(self) -> None:
        """The daemon takes a limit for any number (measured, R580)."""
        enforced = LimitedDaemon(Limits(pinned_memory={9: 3 * GIB}))
        asked = reply("get_default_device_pinned_mem_limit 9", "")
        assert enforced.observe(*up(), *defaults(), asked) == ["set_default_device_pinned_mem_limit 9 3G"]

    @pytest.mark.parametrize("state", ["T", "t"])
    def test_sends_no_command_for_a_suspended_server(self, state: str) -> None:
        """Its daemon would hang (measured, R580)."""
        enforced = LimitedDaemon(MEMORY)
        stopped = ProcessState(at=AT, pid=SERVER, start_ticks=1, state=state)
        seen = (*up(SERVER), *defaults(memory="3G"), *server_log(*start_block(memory=None)), stopped)
        assert enforced.observe(*seen) == [SET_MEMORY]
        assert enforced.observe(replace(stopped, state="S")) == [OF_SERVER]

    def test_sets_the_limits_of_a_server_after_its_fault(self) -> None:
        """Until then it takes no clients."""
        enforced = in_force(MEMORY)
        faulted = (*server_log(active(), *FAULT_BLOCK, at=AT + 1), status("FAULT", at=AT + 1))
        assert enforced.observe(*faulted, replace(TELLS_MEMORY, stdout="3G\n")) == []
        recovered = (status("ACTIVE", at=AT + 2),)
        assert enforced.observe(*recovered) == [OF_SERVER]


class TestRetries:
    """A command that does not help is not hammered."""

    def unhelped(self) -> LimitedDaemon:
        """A daemon with a default that does not change."""
        enforced = LimitedDaemon(MEMORY)
        enforced.observe(*up(), *defaults(memory="3G"))
        return enforced

    def times(self, enforced: LimitedDaemon, seconds: int) -> list[int]:
        """Return when the command is sent again, with an evaluation each second."""
        return [second for second in range(1, seconds) if enforced.evaluate(AT + second)]

    def test_retries_a_command_three_times_and_then_once_a_minute(self) -> None:
        """From the first, at 0."""
        again, seldom = int(RETRY_SECONDS), int(SLOW_RETRY_SECONDS)
        assert (
            self.times(self.unhelped(), 200)
            == [
                again,
                2 * again,
                2 * again + seldom,
                2 * again + 2 * seldom,
                2 * again + 3 * seldom,
            ][: 2 + (200 - 2 * again) // seldom]
        )

    def test_reports_an_ineffective_command_once(self) -> None:
        """With the command, so that a person can try it."""
        enforced = self.unhelped()
        self.times(enforced, 200)
        (_, ineffective) = enforced.of(EventName.LIMITS_DRIFTED)
        assert ineffective.at == AT + MAX_TRIES * RETRY_SECONDS
        assert ineffective.problem == Reason(
            ReasonCode.LIMIT_COMMAND_INEFFECTIVE, seconds=60.0, count=3, command=SET_MEMORY
        )

    def test_repeats_an_effective_command_at_once(self) -> None:
        enforced = self.unhelped()
        enforced.observe(*defaults(memory="2G", at=AT + 1))
        assert enforced.observe(*defaults(memory="4G", at=AT + 1.5)) == [SET_MEMORY]

    def test_an_ineffective_command_delays_no_other(self) -> None:
        enforced = self.unhelped()
        assert enforced.observe(*server(SERVER, *start_block(memory=None), at=AT + 1)) == [OF_SERVER]

    def test_limits_the_commands_of_one_action(self) -> None:
        many = Limits(pinned_memory=dict.fromkeys(range(64), GIB))
        enforced = LimitedDaemon(many)
        asked = [reply(f"get_default_device_pinned_mem_limit {device}") for device in range(64)]
        commands = enforced.observe(*up(SERVER), *asked, *server_log(*start_block(memory=None)))
        assert len(commands) == MAX_COMMANDS
        assert len(enforced.evaluate(AT + 0.5)) == 64


class TestBypassedLimits:
    """A limit holds for clients that connect later (measured, R580)."""

    def unlimited_since(self, mode: Mode = Mode.ACT) -> LimitedDaemon:
        """A server has two clients, and no limit."""
        enforced = LimitedDaemon(MEMORY, mode)
        enforced.observe(
            *up(SERVER), *clients_of(CLIENT, CLIENT + 1), *defaults(), *server_log(*start_block(memory=None))
        )
        return enforced

    @pytest.mark.parametrize("mode", Mode)
    def test_counts_earlier_clients_when_the_limits_are_in_force(self, mode: Mode) -> None:
        """Clients count, too, if they connected while the limits were set, by the watchdog or an operator."""
        enforced = self.unlimited_since(mode)
        enforced.observe(*server_log(active(CLIENT + 2), at=AT + 0.5))
        assert enforced.watch.bypassed == 0
        enforced.observe(TELLS_MEMORY, *server_log(active(CLIENT + 2), at=AT + 1))
        (event,) = enforced.of(EventName.LIMITS_BYPASSED)
        assert (event.server, event.count) == (SERVER, 3)
        assert event.reason == Reason(ReasonCode.CONNECTED_BEFORE_LIMITS)
        assert enforced.watch.bypassed == 3

    def test_does_not_count_clients_that_connected_under_the_limits(self) -> None:
        """The new limit is not theirs."""
        enforced = in_force(MEMORY, Mode.ACT, CLIENT)
        enforced.observe(replace(TELLS_MEMORY, stdout="3G\n"))
        enforced.observe(*server_log(active(CLIENT + 1), at=AT + 1.5))
        enforced.observe(replace(TELLS_MEMORY, at=AT + 2))
        assert [event.count for event in enforced.of(EventName.LIMITS_BYPASSED)] == [1]

    def test_reports_nothing_without_earlier_clients(self) -> None:
        """A server without clients was in time."""
        enforced = LimitedDaemon(MEMORY)
        enforced.observe(*up(SERVER), *defaults(), *server_log(*start_block(memory=None)))
        enforced.observe(TELLS_MEMORY)
        assert not enforced.of(EventName.LIMITS_BYPASSED)

    def test_counts_earlier_clients_once(self) -> None:
        enforced = self.unlimited_since()
        enforced.observe(TELLS_MEMORY)
        enforced.observe(replace(TELLS_MEMORY, at=AT + 2))
        assert enforced.watch.bypassed == 2


def test_a_repeated_evaluation_does_not_change_the_state() -> None:
    """So that nothing is written down where nothing has changed."""
    enforced = in_force()
    before: WatchdogState = enforced.watch
    enforced.evaluate(AT + 100)
    assert enforced.watch == before


# Limits that outlast a control daemon: what was set by command is put back, where nothing else is configured.


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
