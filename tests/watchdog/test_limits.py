"""Limits put and kept in force: verified on the server, set where they differ, and no oftener than helps."""

from dataclasses import replace

import pytest

from exporter.model.event import EventName
from exporter.model.observation import Observation, ProcessState
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import Limits, Mode
from exporter.model.watchdog import WatchdogState
from exporter.watchdog.limits import MAX_COMMANDS, MAX_TRIES, RETRY_SECONDS, SLOW_RETRY_SECONDS
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
    Enforced,
    defaults,
    given,
    server,
    start_block,
    up,
)

OF_SERVER = f"set_device_pinned_mem_limit {SERVER} 0 2G"
TELLS_MEMORY = reply(f"get_device_pinned_mem_limit {SERVER} 0", "2G\n", at=AT + 1)


def in_force(configured: Limits = ALL, mode: Mode = Mode.ACT, *pids: int) -> Enforced:
    """A daemon and its server, all of whose limits are as they should be."""
    enforced = Enforced(configured, mode)
    enforced.see(*up(SERVER), *clients_of(*pids), *defaults(), *server_log(*start_block(priority=1)))
    return enforced


def clients_of(*pids: int, at: float = AT) -> tuple[Observation, ...]:
    return (clients(*pids, server=SERVER, at=at),) if pids else ()


class TestInForce:
    """All that is wanted is verified."""

    def test_nothing_is_done_and_it_is_said_once(self) -> None:
        """Not again with every look."""
        enforced = in_force()
        assert enforced.judge(AT + 60) == []
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE]
        assert not enforced.actions

    def test_not_while_a_server_has_not_told(self) -> None:
        """The daemon's defaults are no promise of it."""
        enforced = Enforced(ALL)
        enforced.see(*up(SERVER), *defaults())
        assert not enforced.events

    def test_a_new_server_that_has_them_is_no_news(self) -> None:
        """Nor while it is starting."""
        enforced = in_force()
        enforced.see(*control_log(f"Server {SERVER} exited with status 0", "Starting new server 700 for user 0", at=AT))
        enforced.see(*server_log(*start_block(priority=1), server=700, at=AT + 1))
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE]

    def test_without_any_that_are_wanted_there_is_nothing_to_say(self) -> None:
        """However a daemon is set."""
        enforced = in_force(Limits())
        assert (enforced.events, enforced.actions, enforced.watch.wanted_limits) == ([], [], None)

    def test_a_percentage_is_told_with_one_decimal(self) -> None:
        """What was set as 33.33 is 33.3."""
        enforced = Enforced(Limits(active_thread_percentage=33.33))
        assert enforced.see(*up(SERVER), *defaults(33.3), *server_log(*start_block(33.3))) == []


class TestNewDaemon:
    """Its memory is empty, and clients come at once."""

    def back(self, configured: Limits, mode: Mode = Mode.ACT) -> Enforced:
        """One that had all its limits has died, and is not yet back."""
        enforced = in_force(configured, mode)
        enforced.see(exited(CONTROL, at=AT + 10))
        return enforced

    def test_its_defaults_are_set_the_moment_it_answers_and_nobody_asks_first(self) -> None:
        """All are set before any is read back."""
        enforced = self.back(ALL)
        assert enforced.see(*up(at=AT + 11, process=900))[:2] == [
            SET_MEMORY,
            "set_default_active_thread_percentage 40",
        ]
        (action,) = enforced.actions
        assert given(action) == [
            SET_MEMORY,
            "set_default_active_thread_percentage 40",
            "set_default_client_priority 1",
            "get_default_device_pinned_mem_limit 0",
            "get_default_active_thread_percentage",
            "get_default_client_priority",
        ]
        assert (action.daemon, action.reason, action.uid) == (DAEMON, "limits_lost", 0)

    def test_while_its_process_is_not_known_it_is_taken_for_the_same_users(self) -> None:
        """It obeys nobody else, but root; and it answers before anything else is known of it."""
        enforced = self.back(ALL)
        enforced.watch = replace(enforced.watch, process=replace(daemon_process(), uid=1000))
        enforced.see(servers(at=AT + 11))
        assert [action.uid for action in enforced.actions] == [1000]

    def test_nothing_is_said_to_one_that_does_not_answer_yet(self) -> None:
        """Gone, starting, held by a session, or silent."""
        enforced = self.back(ALL)
        assert enforced.see(no_daemon(at=AT + 11)) == []
        held = in_force()
        held.see(refusal(at=AT + 10))
        assert held.see(refusal(at=AT + 20), *control_log(f"Cmd:{SET_MEMORY}", at=AT + 20)) == []
        silent = in_force()
        silent.see(silence(at=AT + 10))
        assert silent.see(silence(at=AT + 20)) == []

    def test_nor_to_one_that_has_just_not_answered(self) -> None:
        """It may hang."""
        less_memory = server_log("Device pinned memory limit for device 0 set to 0x40000000 bytes", at=AT + 11)
        assert in_force().see(*less_memory) != []
        assert in_force().see(silence(at=AT + 10), *less_memory) == []

    def test_it_is_no_drift_that_it_has_nothing_yet(self) -> None:
        """And once it has, all is well again."""
        enforced = self.back(ALL)
        enforced.see(*up(at=AT + 11, process=900))
        enforced.see(*defaults(at=AT + 11.1))
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE] * 2
        assert len(enforced.actions) == 1

    def test_one_that_took_its_predecessors_place_unseen_is_another_too(self) -> None:
        """Told by its PID and start time alone."""
        enforced = in_force(MEMORY)
        assert SET_MEMORY in enforced.see(*up(at=AT + 11, process=900))

    def test_the_same_one_after_a_restart_of_the_exporter_is_asked_first(self) -> None:
        """What holds there may be right."""
        enforced = Enforced(MEMORY, watch=in_force(MEMORY).watch)
        assert enforced.see(*up(SERVER, at=AT + 11)) == []
        assert enforced.see(*defaults(memory="2G", at=AT + 12)) == []

    def test_one_that_is_met_for_the_first_time_is_asked_first(self) -> None:
        """And then set."""
        enforced = Enforced(MEMORY)
        assert enforced.see(*up()) == []
        assert enforced.see(*defaults(memory="")) == [SET_MEMORY]

    def test_a_server_that_was_there_first_is_set_itself_and_read_back(self) -> None:
        """A client that connects at once starts one before any command comes (measured, R580)."""
        enforced = self.back(ALL)
        enforced.see(*up(at=AT + 11, process=900))
        first = server(700, *start_block(memory=None, priority=1), at=AT + 11.2)
        assert enforced.see(*defaults(at=AT + 11), *first) == ["set_device_pinned_mem_limit 700 0 2G"]
        assert "get_device_pinned_mem_limit 700 0" in given(enforced.actions[-1])

    def test_in_observe_it_is_told_of_once_its_defaults_are_known(self) -> None:
        """And nothing is done."""
        enforced = self.back(MEMORY, Mode.OBSERVE)
        enforced.see(*up(at=AT + 11, process=900))
        assert not enforced.of(EventName.LIMITS_DRIFTED)
        enforced.see(*defaults(memory="", at=AT + 12))
        enforced.judge(AT + 100)
        assert [event.reason for event in enforced.of(EventName.LIMITS_DRIFTED)] == [
            Reason(ReasonCode.MEMORY_LIMIT_DIFFERS, device=0, wanted=2147483648.0)
        ]
        assert not enforced.actions


class TestDrift:
    """A limit is not as it should be."""

    @pytest.mark.parametrize(
        ("told", "command", "words"),
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
    def test_of_a_server_it_is_mended_there(self, told: tuple[str, ...], command: str, words: str) -> None:
        """The right default does not help it."""
        enforced = Enforced(replace(ALL, client_priority=None))
        assert enforced.see(*up(SERVER), *defaults(), *server_log(*told)) == [command]
        (event,) = enforced.of(EventName.LIMITS_DRIFTED)
        assert (event.daemon, event.server, event.reason) == (DAEMON, SERVER, words)
        assert enforced.actions[0].reason == "limits_drifted"

    def test_a_server_that_is_right_does_not_hide_a_wrong_default(self) -> None:
        """The next one would have it."""
        enforced = Enforced(replace(ALL, client_priority=None))
        commands = enforced.see(*up(SERVER), *defaults(share=100.0), *server_log(*start_block()))
        assert commands == ["set_default_active_thread_percentage 40"]
        assert [event.server for event in enforced.of(EventName.LIMITS_DRIFTED)] == [None]

    def test_a_priority_is_set_once_for_the_daemon_and_all_its_servers(self) -> None:
        """It reaches them at once (measured, R580)."""
        enforced = Enforced(Limits(client_priority=1))
        assert enforced.see(*up(SERVER), *defaults(priority=0), *server_log(*start_block())) == [
            "set_default_client_priority 1"
        ]
        assert len(enforced.of(EventName.LIMITS_DRIFTED)) == 1
        enforced.see(*defaults(priority=1, at=AT + 1), *server_log("Client Priority set to 1", at=AT + 1))
        assert enforced.events[-1].event is EventName.LIMITS_IN_FORCE

    def test_one_whose_priority_its_log_does_not_tell_has_that_of_its_daemon(self) -> None:
        """There is no question for it."""
        enforced = Enforced(Limits(client_priority=1))
        enforced.see(*up(SERVER), *defaults(priority=1))
        assert [event.event for event in enforced.events] == [EventName.LIMITS_IN_FORCE]

    def test_it_is_told_once_and_its_end_too(self) -> None:
        """With what mended it read back from the server."""
        enforced = in_force(MEMORY)
        told_anew = reply(f"get_device_pinned_mem_limit {SERVER} 0", "3G\n", at=AT + 1)
        assert enforced.see(told_anew) == [OF_SERVER]
        assert enforced.judge(AT + 2) == []
        enforced.see(replace(TELLS_MEMORY, at=AT + 3))
        assert [event.event for event in enforced.events[1:]] == [
            EventName.LIMITS_DRIFTED,
            EventName.LIMITS_IN_FORCE,
        ]

    def test_in_observe_it_is_told_and_left(self) -> None:
        """Until somebody else mends it."""
        enforced = in_force(MEMORY, Mode.OBSERVE)
        enforced.see(replace(TELLS_MEMORY, stdout="3G\n"))
        enforced.judge(AT + 100)
        enforced.see(replace(TELLS_MEMORY, at=AT + 101))
        assert [event.event for event in enforced.events[1:]] == [
            EventName.LIMITS_DRIFTED,
            EventName.LIMITS_IN_FORCE,
        ]
        assert not enforced.actions

    def test_what_somebodys_command_may_have_changed_is_not_known_until_it_is_asked(self) -> None:
        """It may have been refused."""
        enforced = in_force(MEMORY)
        assert enforced.see(*control_log(f"Cmd:set_device_pinned_mem_limit {SERVER} 0 9G", at=AT + 1)) == []
        assert enforced.see(replace(TELLS_MEMORY, at=AT + 2)) == []
        assert len(enforced.events) == 1

    def test_a_server_that_tells_line_by_line_is_heard_out(self) -> None:
        """The priority comes last; older ones do not tell it."""
        enforced = Enforced(MEMORY)
        first, *rest = start_block(memory=None)
        assert enforced.see(*up(SERVER), *defaults(), *server_log(first)) == []
        assert enforced.judge(AT + 0.1) == []
        assert enforced.judge(AT + 0.5) == [OF_SERVER]
        heard = Enforced(MEMORY)
        assert heard.see(*up(SERVER), *defaults(), *server_log(first, *rest)) == [OF_SERVER]

    def test_a_device_that_is_not_there_can_be_limited_too(self) -> None:
        """The daemon takes a limit for any number (measured, R580)."""
        enforced = Enforced(Limits(pinned_memory={9: 3 * GIB}))
        asked = reply("get_default_device_pinned_mem_limit 9", "")
        assert enforced.see(*up(), *defaults(), asked) == ["set_default_device_pinned_mem_limit 9 3G"]

    @pytest.mark.parametrize("state", ["T", "t"])
    def test_nobody_speaks_of_a_server_that_was_stopped(self, state: str) -> None:
        """Its daemon would hang (measured, R580)."""
        enforced = Enforced(MEMORY)
        stopped = ProcessState(at=AT, pid=SERVER, start_ticks=1, state=state)
        seen = (*up(SERVER), *defaults(memory="3G"), *server_log(*start_block(memory=None)), stopped)
        assert enforced.see(*seen) == [SET_MEMORY]
        assert enforced.see(replace(stopped, state="S")) == [OF_SERVER]

    def test_one_in_fault_is_set_when_it_is_well_again(self) -> None:
        """Until then it takes no clients."""
        enforced = in_force(MEMORY)
        faulted = (*server_log(active(), *FAULT_BLOCK, at=AT + 1), status("FAULT", at=AT + 1))
        assert enforced.see(*faulted, replace(TELLS_MEMORY, stdout="3G\n")) == []
        recovered = (status("ACTIVE", at=AT + 2),)
        assert enforced.see(*recovered) == [OF_SERVER]


class TestFrugality:
    """A command that does not help is not hammered."""

    def unhelped(self) -> Enforced:
        """A daemon whose default stays what it is."""
        enforced = Enforced(MEMORY)
        enforced.see(*up(), *defaults(memory="3G"))
        return enforced

    def times(self, enforced: Enforced, seconds: int) -> list[int]:
        """When it is given again, by a judgement a second."""
        return [second for second in range(1, seconds) if enforced.judge(AT + second)]

    def test_it_is_given_three_times_and_then_once_a_minute(self) -> None:
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

    def test_that_it_does_not_help_is_said_once(self) -> None:
        """With the command, so that a person can try it."""
        enforced = self.unhelped()
        self.times(enforced, 200)
        (_, ineffective) = enforced.of(EventName.LIMITS_DRIFTED)
        assert ineffective.at == AT + MAX_TRIES * RETRY_SECONDS
        assert ineffective.problem == Reason(
            ReasonCode.LIMIT_COMMAND_INEFFECTIVE, seconds=60.0, count=3, command=SET_MEMORY
        )

    def test_one_that_helped_may_be_given_again_at_once(self) -> None:
        """An operator's next command is another matter."""
        enforced = self.unhelped()
        enforced.see(*defaults(memory="2G", at=AT + 1))
        assert enforced.see(*defaults(memory="4G", at=AT + 1.5)) == [SET_MEMORY]

    def test_another_is_not_kept_waiting(self) -> None:
        """Each for itself."""
        enforced = self.unhelped()
        assert enforced.see(*server(SERVER, *start_block(memory=None), at=AT + 1)) == [OF_SERVER]

    def test_there_is_an_end_to_one_actions_commands(self) -> None:
        """The rest comes next."""
        many = Limits(pinned_memory=dict.fromkeys(range(64), GIB))
        enforced = Enforced(many)
        asked = [reply(f"get_default_device_pinned_mem_limit {device}") for device in range(64)]
        commands = enforced.see(*up(SERVER), *asked, *server_log(*start_block(memory=None)))
        assert len(commands) == MAX_COMMANDS
        assert len(enforced.judge(AT + 0.5)) == 64


class TestSlippedIn:
    """A limit holds for clients that connect later (measured, R580)."""

    def unlimited_since(self, mode: Mode = Mode.ACT) -> Enforced:
        """A server has two clients, and no limit."""
        enforced = Enforced(MEMORY, mode)
        enforced.see(*up(SERVER), *clients_of(CLIENT, CLIENT + 1), *defaults(), *server_log(*start_block(memory=None)))
        return enforced

    @pytest.mark.parametrize("mode", Mode)
    def test_those_who_were_there_first_are_counted_when_it_is_in_force(self, mode: Mode) -> None:
        """Those too who came while it was being set, and whoever set it."""
        enforced = self.unlimited_since(mode)
        enforced.see(*server_log(active(CLIENT + 2), at=AT + 0.5))
        assert enforced.watch.bypassed == 0
        enforced.see(TELLS_MEMORY, *server_log(active(CLIENT + 2), at=AT + 1))
        (event,) = enforced.of(EventName.LIMITS_BYPASSED)
        assert (event.server, event.count) == (SERVER, 3)
        assert event.reason == Reason(ReasonCode.CONNECTED_BEFORE_LIMITS)
        assert enforced.watch.bypassed == 3

    def test_those_who_came_under_it_are_held_to_it_whatever_comes_later(self) -> None:
        """The new limit is not theirs."""
        enforced = in_force(MEMORY, Mode.ACT, CLIENT)
        enforced.see(replace(TELLS_MEMORY, stdout="3G\n"))
        enforced.see(*server_log(active(CLIENT + 1), at=AT + 1.5))
        enforced.see(replace(TELLS_MEMORY, at=AT + 2))
        assert [event.count for event in enforced.of(EventName.LIMITS_BYPASSED)] == [1]

    def test_nobody_is_no_news(self) -> None:
        """A server without clients was in time."""
        enforced = Enforced(MEMORY)
        enforced.see(*up(SERVER), *defaults(), *server_log(*start_block(memory=None)))
        enforced.see(TELLS_MEMORY)
        assert not enforced.of(EventName.LIMITS_BYPASSED)

    def test_they_are_counted_once(self) -> None:
        """Though the server's limits are told again."""
        enforced = self.unlimited_since()
        enforced.see(TELLS_MEMORY)
        enforced.see(replace(TELLS_MEMORY, at=AT + 2))
        assert enforced.watch.bypassed == 2


def test_a_watch_is_the_same_after_it_was_judged_again() -> None:
    """So that nothing is written down where nothing has changed."""
    enforced = in_force()
    before: WatchdogState = enforced.watch
    enforced.judge(AT + 100)
    assert enforced.watch == before
