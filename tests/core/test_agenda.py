"""When to ask what: as seldom as will do, sooner in doubt, and not for ever."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from exporter.model.node import Node
from exporter.model.observation import ControlReply, DaemonProcess, GpuEvent, GpuReading, LogFile, Observation
from exporter.model.settings import Limits, PollIntervals
from exporter.model.watchdog import WatchdogState
from exporter.state import poll_schedule
from exporter.state.reducer import reduce
from exporter.state.staleness import XID_SECONDS
from exporter.state.xids import XID_EVENT_TYPE
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    FAULT_BLOCK,
    GPU,
    OTHER_GPU,
    SERVER,
    active,
    clients,
    control_log,
    daemon_process,
    failure,
    gpu_reading,
    look,
    no_daemon,
    node,
    reduced,
    refusal,
    reply,
    server_log,
    servers,
    silence,
    status,
)
from tests.core.strategies import lives, log_lines, readings, timed

RHYTHM = PollIntervals()
TICK = 0.5
LIST, STATUS, CLIENTS, VERSION = "get_server_list", f"get_server_status {SERVER}", f"get_client_list {SERVER}", "-v"

Answer = Callable[[str, float], ControlReply]
Asked = dict[str, list[float]]

FOLLOWED = control_log("UI closed")
"""The daemon's log is read."""

THREADS, MEMORY = f"get_active_thread_percentage {SERVER}", f"get_device_pinned_mem_limit {SERVER} 0"
DEFAULT_THREADS, DEFAULT_MEMORY = "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
DEFAULT_PRIORITY = "get_default_client_priority"


def serverless(command: str, at: float) -> ControlReply:
    """A daemon without servers answers."""
    return servers(at=at) if command == LIST else healthy(command, at)


def healthy(command: str, at: float, *connected: int) -> ControlReply:
    """A daemon with one server answers."""
    if command == LIST:
        return servers(SERVER, at=at)
    if command.startswith("get_server_status"):
        return status("ACTIVE", at=at)
    if command.startswith("get_client_list"):
        return clients(*(connected or (CLIENT,)), at=at)
    if command.endswith(("percentage", f"percentage {SERVER}")):
        return reply(command, "100.0\n", at=at)
    if "pinned_mem_limit" in command:
        return reply(command, at=at)
    return reply(command, "CUDA MPS Control binary version: 13000\n", at=at)


def watch(
    seconds: float, *, start: Node | None = None, answer: Answer = healthy, seen: Iterable[Observation] = ()
) -> tuple[Node, Asked]:
    """A daemon is asked whatever is due, twice a second, while other things are seen; when each thing was asked."""
    present = node() if start is None else start
    began = present.at or AT
    waiting = sorted(seen, key=lambda each: each.at)
    asked: Asked = defaultdict(list)
    for step in range(int(seconds / TICK)):
        at = began + step * TICK
        while waiting and waiting[0].at <= at:
            present, _ = reduce(present, waiting.pop(0))
        for command in poll_schedule.commands(replace(present, at=max(at, present.at)), DAEMON, RHYTHM):
            asked[command].append(at - began)
            present, _ = reduce(present, answer(command, at))
    return present, asked


def gap(times: list[float]) -> float:
    return min((later - earlier for earlier, later in pairwise(times)), default=float("inf"))


class TestQuietLife:
    """Each command costs five lines of the daemon's log."""

    def test_an_unknown_daemon_is_asked_for_its_servers_first(self) -> None:
        """Nothing else: there may be none."""
        assert poll_schedule.commands(node(), DAEMON, RHYTHM) == (LIST,)

    def test_its_servers_are_asked_for_their_state_and_clients_at_once(self) -> None:
        """What was met in a list has nobody else to tell of it."""
        _, asked = watch(2)
        at_once = (VERSION, STATUS, CLIENTS, DEFAULT_THREADS, DEFAULT_PRIORITY, THREADS)
        assert asked == {LIST: [0.0]} | {each: [0.5] for each in at_once}

    def test_then_it_gives_a_sign_of_life_every_30_seconds_and_answers_no_more(self) -> None:
        """Whatever it is asked, any answer is one."""
        _, asked = watch(7201, seen=[*FOLLOWED, gpu_reading([CLIENT])])
        times = sorted(at for times in asked.values() for at in times if at > 1)
        assert times == [0.5 + 30.0 * number for number in range(1, 241)]

    def test_its_full_lists_are_asked_for_every_5_minutes(self) -> None:
        """No more seldom, and hardly more often: each takes the place of a question that asks for nothing but life."""
        _, asked = watch(7201, seen=FOLLOWED)
        for question in (STATUS, CLIENTS):
            assert max(later - earlier for earlier, later in pairwise(asked[question])) <= RHYTHM.lists
            assert len(asked[question]) <= 1 + 7201 / (RHYTHM.lists - RHYTHM.liveness)
        assert max(later - earlier for earlier, later in pairwise(asked[LIST])) <= RHYTHM.lists
        assert asked[VERSION] == [0.5]

    def test_its_limits_are_asked_for_at_most_hourly(self) -> None:
        """They hardly ever change, and where somebody changes them the log tells of it."""
        _, asked = watch(7300, seen=[gpu_reading([CLIENT])])
        for question in (THREADS, DEFAULT_THREADS, MEMORY, DEFAULT_MEMORY, DEFAULT_PRIORITY):
            assert 2 <= len(asked[question]) <= 3
            assert gap(asked[question]) > RHYTHM.limits - 5 * RHYTHM.liveness

    def test_a_daemon_without_servers_is_asked_for_its_life_alone(self) -> None:
        """A server would be told of by the log, or by the next such list."""
        _, asked = watch(600, answer=serverless)
        assert asked[LIST][0] == 0.0
        assert asked[LIST][1:] == [0.5 + 30.0 * number for number in range(1, 20)]
        assert asked.keys() == {LIST, VERSION, DEFAULT_THREADS, DEFAULT_PRIORITY}

    def test_where_the_log_cannot_be_followed_servers_are_asked_for_every_minute(self) -> None:
        """Nothing else tells of a new one."""
        _, asked = watch(3600)
        assert max(later - earlier for earlier, later in pairwise(asked[LIST])) <= 60

    def test_what_the_log_has_told_is_not_asked(self) -> None:
        """A server whose start it told needs no questions; those who connect are told of too."""
        start, _ = watch(2, answer=serverless)
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        limits = server_log("Active Threads Percentage set to 40.0", "Server has started", at=AT + 10)
        _, asked = watch(120, start=start, seen=(*born, *limits, *server_log(active(), at=AT + 11)))
        assert asked.keys() == {LIST, CLIENTS}
        assert len(asked[CLIENTS]) == 1

    def test_a_client_that_nvml_confirms_is_not_asked_for(self) -> None:
        """Only one that the log alone shows is."""
        start, _ = watch(2, answer=serverless)
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        limits = server_log("Active Threads Percentage set to 40.0", "Server has started", at=AT + 10)
        seen = (*born, *limits, *server_log(active(), at=AT + 11), gpu_reading([CLIENT], at=AT + 12))
        _, asked = watch(120, start=start, seen=seen)
        assert CLIENTS not in asked

    def test_an_answer_to_anybody_else_counts_too(self) -> None:
        """In a recording, say."""
        limits = (reply(DEFAULT_THREADS, "100.0\n"), reply(DEFAULT_PRIORITY, "0\n"), reply(THREADS, "100.0\n"))
        answers = (reply("-v", "version: 13000"), *limits)
        start = reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), *answers).node
        assert poll_schedule.commands(start, DAEMON, RHYTHM) == ()


class TestLimits:
    """Who told them, and who may have changed them."""

    def limited(self, *said: str) -> Node:
        """A daemon all of whose limits were asked for, and then somebody's session in its log."""
        start, _ = watch(2, seen=[gpu_reading([CLIENT])])
        return reduced(*control_log("NEW UI", *said, "UI closed", at=AT + 10), start=start).node

    @pytest.mark.parametrize(
        ("command", "question"),
        [
            ("set_default_active_thread_percentage 40", DEFAULT_THREADS),
            (f"set_active_thread_percentage {SERVER} 40", THREADS),
            ("set_default_device_pinned_mem_limit 0 3G", DEFAULT_MEMORY),
            ("set_default_client_priority 1", DEFAULT_PRIORITY),
            (f"set_device_pinned_mem_limit {SERVER} 0 3G", MEMORY),
        ],
    )
    def test_what_an_operator_sets_is_asked_again_and_nothing_else(self, command: str, question: str) -> None:
        """Once: the answer settles it."""
        _, asked = watch(8, start=self.limited(f"Cmd:{command}"))
        assert {each: len(times) for each, times in asked.items()} == {question: 1}

    @pytest.mark.parametrize(
        "command",
        [
            *(DEFAULT_THREADS, THREADS, DEFAULT_MEMORY, MEMORY, LIST, "ps"),
            *("set_default_active_thread_percentage_x 4", "get_default_client_priority"),
            *(
                "set_active_thread_percentage 99999 40",
                "set_device_pinned_mem_limit 513",
                "set_device_pinned_mem_limit",
            ),
            *("set_default_device_pinned_mem_limit 9 3G", "set_default_device_pinned_mem_limit 99999999999999 3G"),
        ],
    )
    def test_any_other_command_changes_nothing(self, command: str) -> None:
        """The exporter's own questions among them; nor one that names a server or a device that is not there."""
        _, asked = watch(8, start=self.limited(f"Cmd:{command}"))
        assert not asked

    def test_somebody_who_sets_all_day_is_not_answered_by_asking_all_day(self) -> None:
        """Any user may send such a command, which is logged before it is refused."""
        sets = [
            each
            for second in range(60)
            for each in control_log(f"Cmd:set_active_thread_percentage {SERVER} 1", at=AT + 10 + second)
        ]
        _, asked = watch(60, start=self.limited(), seen=sets)
        assert gap(asked[THREADS]) >= RHYTHM.stale

    def test_where_limits_are_to_hold_an_answer_comes_soon_again(self) -> None:
        """Nobody is to be without them for longer than a second."""
        start = replace(
            self.limited(), watches={DAEMON: WatchdogState(wanted_limits=Limits(active_thread_percentage=40.0))}
        )
        sets = [
            each
            for second in range(10)
            for each in control_log(f"Cmd:set_active_thread_percentage {SERVER} 1", at=AT + 10 + second)
        ]
        _, asked = watch(10, start=start, seen=sets)
        assert max(later - earlier for earlier, later in pairwise(asked[THREADS])) <= 1

    def test_a_device_that_is_to_be_limited_is_asked_about(self) -> None:
        """Though nothing else is known of it."""
        start = replace(
            self.limited(), watches={DAEMON: WatchdogState(wanted_limits=Limits(pinned_memory={1: 1 << 30}))}
        )
        _, asked = watch(2, start=start)
        assert asked.keys() == {DEFAULT_MEMORY.replace(" 0", " 1"), MEMORY.replace(" 0", " 1")}

    def test_a_new_server_whose_log_cannot_be_read_is_asked_at_once(self) -> None:
        """It cannot be waited for to tell them itself."""
        start, _ = watch(
            2, answer=serverless, seen=[LogFile(at=AT, daemon=DAEMON, file="server.log", problem=failure("denied"))]
        )
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        _, asked = watch(30, start=start, seen=born)
        (since_start,) = (start.at + at - (AT + 10) for at in asked[THREADS])
        assert since_start <= 0.5

    def test_a_server_that_has_just_started_is_left_to_tell_them_itself(self) -> None:
        """Its log does, in a moment; where that is not read, it is asked."""
        start, _ = watch(2, answer=serverless)
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        _, asked = watch(30, start=start, seen=born)
        (since_start,) = (start.at + at - (AT + 10) for at in asked[THREADS])
        assert 2.0 <= since_start <= 3.0

    def test_of_several_gpus_it_is_asked_once_which_are_the_daemons(self) -> None:
        """By its own ordinals; where there is but one GPU, there is nothing to ask."""
        gpus = [gpu_reading([CLIENT]), gpu_reading(gpu=OTHER_GPU, index=1)]
        _, alone = watch(8, seen=gpus[:1])
        rows = f"Device Ordinal,PCI IDs,UUID,Name\n0,00:00.0,{OTHER_GPU},NVIDIA H200\n1,00:01.0,{GPU},NVIDIA H200\n"

        def answer(command: str, at: float) -> ControlReply:
            return reply(command, rows, at=at) if command == "device_query --csv" else healthy(command, at)

        present, asked = watch(8000, seen=gpus, answer=answer)
        assert "device_query --csv" not in alone
        assert asked["device_query --csv"] == [0.5]
        assert present.daemons[DAEMON].runtime.devices == {0: OTHER_GPU, 1: GPU}

    def test_a_daemon_that_does_not_know_its_gpus_is_asked_again_but_seldom(self) -> None:
        """Drivers before R590 may not have the command."""
        _, asked = watch(8000, seen=[gpu_reading([CLIENT]), gpu_reading(gpu=OTHER_GPU, index=1)])
        assert gap(asked["device_query --csv"]) > RHYTHM.limits - 5 * RHYTHM.liveness


class TestDoubt:
    """Two sources disagree, or one alone says something grave."""

    def settled(self) -> Node:
        """A daemon that was asked everything, two minutes ago."""
        return replace(watch(121)[0], at=AT + 121)

    def test_a_client_that_only_nvml_shows_makes_it_ask_for_a_while(self) -> None:
        """It is on its way in, or the log was missed: then the list tells."""
        shown = [gpu_reading([CLIENT, 601], at=AT + 121 + second) for second in range(0, 600, 10)]
        _, asked = watch(290, start=self.settled(), seen=shown)
        in_doubt = [at for at in asked[CLIENTS] if at <= RHYTHM.stale_for + 1]
        assert 3 <= len(in_doubt) <= RHYTHM.stale_for / RHYTHM.stale + 1
        assert gap(asked[CLIENTS]) >= RHYTHM.stale
        assert len(asked[CLIENTS]) - len(in_doubt) <= 1
        assert gap(asked[LIST]) == RHYTHM.liveness

    def test_one_that_nobody_knows_for_hours_is_not_asked_about_for_ever(self) -> None:
        """NVML shows refused clients, and those of other daemons."""
        shown = [gpu_reading([CLIENT, 601], at=AT + 121 + second) for second in range(0, 7200, 10)]
        _, asked = watch(7200, start=self.settled(), seen=shown)
        assert len(asked[CLIENTS]) <= 7200 / RHYTHM.lists + RHYTHM.stale_for / RHYTHM.stale + 2

    def test_nor_where_nvml_fails_now_and_then(self) -> None:
        """A reading that failed has not shown that anybody left."""
        shown: list[Observation] = []
        for second in range(0, 3600, 20):
            shown.append(gpu_reading([CLIENT, 601], at=AT + 121 + second))
            shown.append(GpuReading(at=AT + 131 + second, gpu=GPU, problem=failure("busy")))
        _, asked = watch(3600, start=self.settled(), seen=shown)
        assert len(asked[CLIENTS]) <= 3600 / RHYTHM.lists + RHYTHM.stale_for / RHYTHM.stale + 2

    def test_once_it_is_known_the_doubt_is_over(self) -> None:
        """The log told a second later."""
        shown: list[Observation] = [gpu_reading([CLIENT, 601], at=AT + 122), *server_log(active(601), at=AT + 123)]
        _, asked = watch(60, start=self.settled(), seen=shown)
        assert len(asked[CLIENTS]) <= 1

    def test_a_client_that_nvml_no_longer_shows_makes_it_ask(self) -> None:
        """Its exit was missed."""
        shown = [gpu_reading([CLIENT], at=AT + 122), gpu_reading(at=AT + 132), gpu_reading(at=AT + 142)]
        present, asked = watch(
            40, start=self.settled(), seen=shown, answer=lambda command, at: healthy(command, at, 601)
        )
        assert len(asked[CLIENTS]) == 1
        assert present.daemons[DAEMON].clients.keys() == {601}

    def test_an_empty_list_is_asked_for_again(self) -> None:
        """A lone one proves nothing."""

        def empty(command: str, at: float) -> ControlReply:
            return clients(at=at) if command == CLIENTS else healthy(command, at)

        start = reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), reply("-v", "version: 13000")).node
        start = replace(start, at=AT + 301)
        present, asked = watch(30, start=start, answer=empty)
        assert asked[CLIENTS][:2] == [0.0, RHYTHM.stale]
        assert len(asked[CLIENTS]) == 2
        assert not present.daemons[DAEMON].clients

    def test_a_fault_is_followed_up(self) -> None:
        """Its end matters, and the log may be missed."""

        def faulted(command: str, at: float) -> ControlReply:
            return status("FAULT", at=at) if command == STATUS else healthy(command, at)

        _, asked = watch(60, start=self.settled(), seen=server_log(*FAULT_BLOCK, at=AT + 121), answer=faulted)
        assert asked[STATUS][0] <= RHYTHM.starting
        assert gap(asked[STATUS][1:]) == RHYTHM.fault

    def test_a_suspected_fault_is_settled_soon(self) -> None:
        """A leaving server is called so once."""

        def once(command: str, at: float) -> ControlReply:
            return status("FAULT", at=at) if command == STATUS else healthy(command, at)

        present, asked = watch(10, start=self.settled(), seen=[status("FAULT", at=AT + 121)], answer=once)
        assert asked[CLIENTS][0] <= RHYTHM.starting
        assert present.daemons[DAEMON].servers[SERVER].state == "fault"

    def test_a_suspected_fault_of_a_server_that_has_left_is_none(self) -> None:
        """Such a server is called so once (measured, R580)."""

        def left(command: str, at: float) -> ControlReply:
            return servers(at=at) if command == LIST else reply(command, f"Server {SERVER} not found\n", at=at)

        present, _ = watch(10, start=self.settled(), seen=[status("FAULT", at=AT + 121)], answer=left)
        assert not present.incidents

    def test_an_xid_without_a_fault_in_the_log_has_the_daemon_asked(self) -> None:
        """A tenant may have blocked the log, or taken the lines away."""

        def faulted(command: str, at: float) -> ControlReply:
            return status("FAULT", at=at) if command == STATUS else healthy(command, at)

        start = self.settled()
        at = start.at + 1
        struck = GpuEvent(at=at, gpu=GPU, type=XID_EVENT_TYPE, xid=31)
        present, asked = watch(4, start=start, seen=[struck], answer=faulted)
        assert asked[STATUS][0] == pytest.approx(1 + XID_SECONDS, abs=TICK)
        assert len(present.incidents) == 1

    def test_an_xid_of_a_gpu_that_the_daemon_does_not_serve_changes_nothing(self) -> None:
        """It is another daemon's, or of a process beside MPS."""
        start = self.settled()
        daemon = replace(start.daemons[DAEMON], runtime=replace(start.daemons[DAEMON].runtime, devices={0: GPU}))
        start = replace(start, daemons={DAEMON: daemon})
        others = gpu_reading([], gpu=OTHER_GPU, at=start.at)
        struck = GpuEvent(at=start.at + 1, gpu=OTHER_GPU, type=XID_EVENT_TYPE, xid=31)
        _, asked = watch(4, start=start, seen=[others, struck])
        assert not asked[STATUS]

    @pytest.mark.parametrize("puzzling", [LIST, STATUS])
    def test_an_answer_that_cannot_be_read_is_not_asked_for_for_ever(self, puzzling: str) -> None:
        """Another driver may have no such command, or other words."""

        def answer(command: str, at: float) -> ControlReply:
            return (
                reply(command, f'Unknown command "{command}"\n', at=at) if command == puzzling else healthy(command, at)
            )

        start = reduced(servers(SERVER), clients(CLIENT), reply("-v", "version: 13000")).node
        start = start if puzzling == STATUS else reduced(*control_log("UI closed")).node
        _, asked = watch(3600, start=start, answer=answer)
        assert len(asked[puzzling]) < 300


class TestTrouble:
    """A daemon that is not well is asked one thing alone."""

    @pytest.mark.parametrize(
        ("trouble", "period"),
        [(no_daemon, RHYTHM.liveness / 3), (silence, RHYTHM.fault), (refusal, RHYTHM.fault)],
    )
    def test_one_question_at_its_period(self, trouble: Callable[..., ControlReply], period: float) -> None:
        """Whether it is gone, hangs, or is held by somebody's session."""
        start = replace(watch(2)[0], at=AT + 60)
        _, asked = watch(120, start=start, answer=lambda _command, at: trouble(at=at))
        assert asked.keys() == {LIST}
        assert gap(asked[LIST][1:]) == period

    def test_one_that_begins_is_asked_at_once(self) -> None:
        """Clients come the moment it is there."""
        start = replace(reduced(no_daemon(), no_daemon(at=AT + 9)).node, at=AT + 9)
        began: tuple[Observation, ...] = (
            daemon_process(CONTROL + 1, at=AT + 10),
            *control_log("Starting control daemon using socket /s", at=AT + 10),
        )
        _, asked = watch(5, start=start, seen=began)
        assert asked[LIST][0] <= 1.5

    def test_a_client_program_that_cannot_be_used_is_not_tried_for_ever_twice_a_second(self) -> None:
        """It is not installed, say; each attempt is a process."""

        def unusable(command: str, at: float) -> ControlReply:
            return reply(command, exit_code=127, stderr="nvidia-cuda-mps-control: No such file or directory", at=at)

        _, asked = watch(600, answer=unusable)
        assert len(asked[LIST]) <= 600 / RHYTHM.stale


class TestNvml:
    """NVML is read at its period, and sooner when its lists are out of date."""

    def due(self, present: Node, seconds: float) -> bool:
        """Whether NVML is due this long after it was read."""
        return poll_schedule.nvml_due(replace(present, at=AT + seconds), RHYTHM)

    def read(self, *seen: Observation) -> Node:
        """A daemon at work, whose client NVML has just read."""
        return reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), gpu_reading([CLIENT]), look(), *seen).node

    def test_at_first_at_once(self) -> None:
        """Nothing is known before."""
        assert poll_schedule.nvml_due(node(), RHYTHM)

    def test_then_at_its_period(self) -> None:
        """Its calls may wait for the driver for long."""
        assert not self.due(self.read(), RHYTHM.nvml - 1)
        assert self.due(self.read(), RHYTHM.nvml)

    @pytest.mark.parametrize("line", [active(601), f"Client process {CLIENT} disconnected"])
    def test_sooner_when_somebody_came_or_went(self, line: str) -> None:
        """Their memory is not known yet, or no longer theirs."""
        present = self.read(*server_log(line, at=AT + 1))
        assert not self.due(present, RHYTHM.stale - 0.5)
        assert self.due(present, RHYTHM.stale)

    def test_sooner_until_a_stranger_is_told_of_and_no_longer(self) -> None:
        """Two looks tell it from one that is on its way in or out."""
        present = self.read(gpu_reading([CLIENT], beside=[801]))
        assert self.due(present, RHYTHM.stale)
        looks = (servers(SERVER, at=AT + 1), gpu_reading([CLIENT], beside=[801], at=AT + 2), look(at=AT + 2))
        assert not self.due(reduced(*looks, start=present).node, RHYTHM.stale + 2)

    def test_not_for_ever_where_the_stranger_cannot_be_looked_at_again(self) -> None:
        """NVML has failed since."""
        present = self.read(gpu_reading([CLIENT], beside=[801]))
        for second in range(2, 120, 2):
            present = reduced(look(at=AT + second, problem=failure("lost")), start=present).node
        assert not self.due(present, 120 + RHYTHM.stale)

    def test_a_failing_nvml_is_asked_no_more_often(self) -> None:
        """It fails as often as it would have been read."""
        present = self.read(look(at=AT + 10, problem=failure("lost")))
        assert not self.due(present, 15)
        assert self.due(present, 20)


class TestWatched:
    """Whose exit is news."""

    def test_daemon_servers_clients_those_queued_and_strangers(self) -> None:
        """Everybody who has a PID."""
        queued = control_log("NEW CLIENT 601 from user 0: Server is not ready, push client to pending list")
        present = reduced(
            servers(SERVER), clients(CLIENT), daemon_process(), *queued, gpu_reading([CLIENT], beside=[801])
        ).node
        assert poll_schedule.processes_wanted(present) == {SERVER, CLIENT, CONTROL, 601, 801}

    def test_pids_that_are_none_are_not(self) -> None:
        """A client in another PID namespace is logged as PID 0."""
        zero = control_log("NEW CLIENT 0 from user 0: Server is not ready, push client to pending list")
        assert poll_schedule.processes_wanted(reduced(*zero).node) == frozenset()


words = st.sampled_from(("", "ACTIVE\n", "FAULT\n", f"{SERVER}\n", f"{CLIENT}\n{CLIENT + 1}\n", "what?\n"))
troubles = st.sampled_from((no_daemon, refusal, silence))
surprises = st.lists(
    st.tuples(st.sampled_from((0.0, 0.5, 1.5, 4.0)), st.one_of(log_lines, readings, lives)), max_size=25
).map(timed)


def others(asked: Mapping[str, list[float]]) -> Iterable[list[float]]:
    """When each command was given but the one that is a sign of life."""
    return (times for command, times in asked.items() if command != LIST)


@example(
    timed([(1.5, control_log("Starting control daemon using socket /tmp/nvidia-mps/control")[0])]), ["", no_daemon]
)
@example(timed([(1.5, daemon_process(441))]), ["", no_daemon])
@given(surprises, st.lists(words | troubles, min_size=1, max_size=6))
@settings(max_examples=60)
def test_nothing_is_asked_more_often_than_in_doubt(
    seen: list[Observation], answers: list[str | Callable[..., ControlReply]]
) -> None:
    """Whatever is seen, and whatever the answers; only a daemon that begins is asked sooner, or the next one."""
    assume(sum("Starting control daemon" in getattr(each, "line", "") for each in seen) <= 1)
    assume(len({each.pid for each in seen if isinstance(each, DaemonProcess)} - {None}) <= 1)
    given_so_far = 0

    def answer(command: str, at: float) -> ControlReply:
        nonlocal given_so_far
        chosen = answers[given_so_far % len(answers)]
        given_so_far += 1
        answered = reply(command, chosen, at=at) if isinstance(chosen, str) else chosen(at=at)
        return replace(answered, command=command)

    starts = (each.at - AT for each in seen if "Starting control daemon" in getattr(each, "line", ""))
    found = (each.at - AT for each in seen if isinstance(each, DaemonProcess) and each.pid is not None)
    begun = sorted(next(each, 0.0) for each in (starts, found))
    _, asked = watch(40, seen=seen, answer=answer)
    lives = ([at for at in times if bisect_right(begun, at) == life] for times in others(asked) for life in range(3))
    assert all(gap(times) >= RHYTHM.stale for times in lives)
    assert gap(asked[LIST]) >= RHYTHM.starting
