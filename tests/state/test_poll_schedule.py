"""Which queries and readings are due: rarely, sooner if a value is stale, but not forever."""

import contextlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from unittest.mock import Mock

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from exporter.app import Assembly
from exporter.collectors.thread import Inbox
from exporter.config.settings import Config
from exporter.model.action import ActionKind, ActionReason
from exporter.model.node import Node
from exporter.model.observation import ControlReply, DaemonProcess, GpuEvent, GpuReading, LogFile, Observation
from exporter.model.settings import Limits, PollIntervals
from exporter.model.watchdog import OngoingAction, WatchdogState
from exporter.reducer import reduce
from exporter.state import gpus, poll_schedule
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
    at_work,
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
from tests.clocks import HandClock
from tests.program import constants
from tests.state.strategies import lives, log_lines, readings, timed
from tests.works import boot_ns, reading, work

# The tests state these values, so that they notice a change of the program's constants.
XID_SECONDS = 0.5
XID_EVENT_TYPE = 8

RHYTHM = PollIntervals()
TICK = 0.5
NEVER = float("-inf")
LIST, STATUS, CLIENTS, VERSION = "get_server_list", f"get_server_status {SERVER}", f"get_client_list {SERVER}", "-v"

Answer = Callable[[str, float], ControlReply]
Asked = dict[str, list[float]]

FOLLOWED = control_log("UI closed")
"""The daemon's log is followed."""

THREADS, MEMORY = f"get_active_thread_percentage {SERVER}", f"get_device_pinned_mem_limit {SERVER} 0"
DEFAULT_THREADS, DEFAULT_MEMORY = "get_default_active_thread_percentage", "get_default_device_pinned_mem_limit 0"
DEFAULT_PRIORITY = "get_default_client_priority"


def serverless(command: str, at: float) -> ControlReply:
    """Return the answer of a daemon without servers."""
    return servers(at=at) if command == LIST else healthy(command, at)


def healthy(command: str, at: float, *connected: int) -> ControlReply:
    """Return the answer of a daemon with one server."""
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


def poll(
    seconds: float, *, start: Node | None = None, answer: Answer = healthy, seen: Iterable[Observation] = ()
) -> tuple[Node, Asked]:
    """Send the due queries twice a second while other observations come. Return when each query was sent."""
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


def faulted(command: str, at: float) -> ControlReply:
    return status("FAULT", at=at) if command == STATUS else healthy(command, at)


class TestUnchangedDaemon:
    """Each command costs five lines of the daemon's log."""

    def test_queries_an_unknown_daemon_for_its_servers_first(self) -> None:
        assert poll_schedule.commands(node(), DAEMON, RHYTHM) == (LIST,)

    def test_queries_state_and_clients_of_listed_servers_at_once(self) -> None:
        """No other source has reported them."""
        _, asked = poll(2)
        at_once = (VERSION, STATUS, CLIENTS, DEFAULT_THREADS, DEFAULT_PRIORITY, THREADS)
        assert asked == {LIST: [0.0]} | {each: [0.5] for each in at_once}

    def test_sends_one_query_every_30_seconds_to_a_known_daemon(self) -> None:
        _, asked = poll(7201, seen=[*FOLLOWED, gpu_reading([CLIENT])])
        times = sorted(at for times in asked.values() for at in times if at > 1)
        assert times == [0.5 + 30.0 * number for number in range(1, 241)]

    def test_queries_full_lists_every_5_minutes(self) -> None:
        """Each replaces a query that only tests whether the daemon lives."""
        _, asked = poll(7201, seen=FOLLOWED)
        for question in (STATUS, CLIENTS):
            assert max(later - earlier for earlier, later in pairwise(asked[question])) <= RHYTHM.lists
            assert len(asked[question]) <= 1 + 7201 / (RHYTHM.lists - RHYTHM.liveness)
        assert max(later - earlier for earlier, later in pairwise(asked[LIST])) <= RHYTHM.lists
        assert asked[VERSION] == [0.5]

    def test_queries_limits_about_once_an_hour(self) -> None:
        """They rarely change, and the log reports commands that change them."""
        _, asked = poll(7300, seen=[gpu_reading([CLIENT])])
        for question in (THREADS, DEFAULT_THREADS, MEMORY, DEFAULT_MEMORY, DEFAULT_PRIORITY):
            assert 2 <= len(asked[question]) <= 3
            assert gap(asked[question]) > RHYTHM.limits - 5 * RHYTHM.liveness

    def test_queries_the_default_limits_of_another_daemon_at_once(self) -> None:
        start = reduced(daemon_process(), start=poll(60)[0]).node
        another = reduced(daemon_process(900, at=start.at + 1), start=start).node
        _, asked = poll(10, start=another)
        assert {DEFAULT_THREADS, DEFAULT_PRIORITY} <= asked.keys()

    def test_only_lists_the_servers_of_a_daemon_without_servers(self) -> None:
        _, asked = poll(600, answer=serverless)
        assert asked[LIST][0] == 0.0
        assert asked[LIST][1:] == [0.5 + 30.0 * number for number in range(1, 20)]
        assert asked.keys() == {LIST, VERSION, DEFAULT_THREADS, DEFAULT_PRIORITY}

    def test_lists_servers_every_minute_if_the_log_cannot_be_followed(self) -> None:
        _, asked = poll(3600)
        assert max(later - earlier for earlier, later in pairwise(asked[LIST])) <= 60

    def test_does_not_query_what_the_log_reports(self) -> None:
        start, _ = poll(2, answer=serverless)
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        limits = server_log("Active Threads Percentage set to 40.0", "Server has started", at=AT + 10)
        _, asked = poll(120, start=start, seen=(*born, *limits, *server_log(active(), at=AT + 11)))
        assert asked.keys() == {LIST, CLIENTS}
        assert len(asked[CLIENTS]) == 1

    def test_does_not_query_a_client_that_nvml_confirms(self) -> None:
        """Only a client that the log alone reports is queried."""
        start, _ = poll(2, answer=serverless)
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        limits = server_log("Active Threads Percentage set to 40.0", "Server has started", at=AT + 10)
        seen = (*born, *limits, *server_log(active(), at=AT + 11), gpu_reading([CLIENT], at=AT + 12))
        _, asked = poll(120, start=start, seen=seen)
        assert CLIENTS not in asked

    def test_uses_answers_to_other_programs_too(self) -> None:
        """A recording may have them."""
        limits = (reply(DEFAULT_THREADS, "100.0\n"), reply(DEFAULT_PRIORITY, "0\n"), reply(THREADS, "100.0\n"))
        answers = (reply("-v", "version: 13000"), *limits)
        start = reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), *answers).node
        assert poll_schedule.commands(start, DAEMON, RHYTHM) == ()


class TestLimits:
    """Queries of limits, and commands that may have changed them."""

    def with_session(self, *lines: str) -> Node:
        """Return a daemon whose limits are known, after a session with these lines in its log."""
        start, _ = poll(2, seen=[gpu_reading([CLIENT])])
        return reduced(*control_log("NEW UI", *lines, "UI closed", at=AT + 10), start=start).node

    def test_queries_a_limit_once_after_a_command_that_sets_it(self, subtests: pytest.Subtests) -> None:
        for command, question in [
            ("set_default_active_thread_percentage 40", DEFAULT_THREADS),
            (f"set_active_thread_percentage {SERVER} 40", THREADS),
            ("set_default_device_pinned_mem_limit 0 3G", DEFAULT_MEMORY),
            ("set_default_client_priority 1", DEFAULT_PRIORITY),
            (f"set_device_pinned_mem_limit {SERVER} 0 3G", MEMORY),
        ]:
            with subtests.test(command=command, question=question):
                _, asked = poll(8, start=self.with_session(f"Cmd:{command}"))
                assert {each: len(times) for each, times in asked.items()} == {question: 1}

    def test_queries_no_limit_after_other_commands(self, subtests: pytest.Subtests) -> None:
        """These include the exporter's own queries, and commands for a server or device that does not exist."""
        for command in [
            *(DEFAULT_THREADS, THREADS, DEFAULT_MEMORY, MEMORY, LIST, "ps"),
            *("set_default_active_thread_percentage_x 4", "get_default_client_priority"),
            *(
                "set_active_thread_percentage 99999 40",
                "set_device_pinned_mem_limit 513",
                "set_device_pinned_mem_limit",
            ),
            *("set_default_device_pinned_mem_limit 9 3G", "set_default_device_pinned_mem_limit 99999999999999 3G"),
        ]:
            with subtests.test(command=command):
                _, asked = poll(8, start=self.with_session(f"Cmd:{command}"))
                assert not asked

    def test_bounds_queries_after_repeated_set_commands(self) -> None:
        """Any user may send such a command, which is logged before it is refused."""
        sets = [
            each
            for second in range(60)
            for each in control_log(f"Cmd:set_active_thread_percentage {SERVER} 1", at=AT + 10 + second)
        ]
        _, asked = poll(60, start=self.with_session(), seen=sets)
        assert gap(asked[THREADS]) >= RHYTHM.stale

    def test_queries_enforced_limits_within_a_second(self) -> None:
        start = replace(
            self.with_session(), watches={DAEMON: WatchdogState(wanted_limits=Limits(active_thread_percentage=40.0))}
        )
        sets = [
            each
            for second in range(10)
            for each in control_log(f"Cmd:set_active_thread_percentage {SERVER} 1", at=AT + 10 + second)
        ]
        _, asked = poll(10, start=start, seen=sets)
        assert max(later - earlier for earlier, later in pairwise(asked[THREADS])) <= 1

    def test_queries_the_limit_of_a_configured_device(self) -> None:
        start = replace(
            self.with_session(), watches={DAEMON: WatchdogState(wanted_limits=Limits(pinned_memory={1: 1 << 30}))}
        )
        _, asked = poll(2, start=start)
        assert asked.keys() == {DEFAULT_MEMORY.replace(" 0", " 1"), MEMORY.replace(" 0", " 1")}

    def test_queries_limits_of_a_new_server_at_once_if_its_log_cannot_be_read(self) -> None:
        start, _ = poll(
            2, answer=serverless, seen=[LogFile(at=AT, daemon=DAEMON, file="server.log", problem=failure("denied"))]
        )
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        _, asked = poll(30, start=start, seen=born)
        (since_start,) = (start.at + at - (AT + 10) for at in asked[THREADS])
        assert since_start <= 0.5

    def test_waits_until_a_new_server_logs_its_limits(self) -> None:
        """If it does not, the daemon is queried."""
        start, _ = poll(2, answer=serverless)
        born = control_log("Starting new server 513 for user 0", "NEW SERVER 513: Ready", at=AT + 10)
        _, asked = poll(30, start=start, seen=born)
        (since_start,) = (start.at + at - (AT + 10) for at in asked[THREADS])
        assert 2.0 <= since_start <= 3.0

    def test_queries_the_devices_of_a_daemon_once_on_a_node_with_several_gpus(self) -> None:
        """With one GPU, the query is not necessary."""
        gpus = [gpu_reading([CLIENT]), gpu_reading(gpu=OTHER_GPU, index=1)]
        _, alone = poll(8, seen=gpus[:1])
        rows = f"Device Ordinal,PCI IDs,UUID,Name\n0,00:00.0,{OTHER_GPU},NVIDIA H200\n1,00:01.0,{GPU},NVIDIA H200\n"

        def answer(command: str, at: float) -> ControlReply:
            return reply(command, rows, at=at) if command == "device_query --csv" else healthy(command, at)

        present, asked = poll(8000, seen=gpus, answer=answer)
        assert "device_query --csv" not in alone
        assert asked["device_query --csv"] == [0.5]
        assert present.daemons[DAEMON].runtime.devices == {0: OTHER_GPU, 1: GPU}

    def test_repeats_an_unknown_device_query_rarely(self) -> None:
        """Drivers before R590 may not have the command."""
        _, asked = poll(8000, seen=[gpu_reading([CLIENT]), gpu_reading(gpu=OTHER_GPU, index=1)])
        assert gap(asked["device_query --csv"]) > RHYTHM.limits - 5 * RHYTHM.liveness


class TestStaleValues:
    """Two sources disagree, or only one reports a fault."""

    def up_to_date(self) -> Node:
        """Return a daemon whose values are known, two minutes after the start."""
        return replace(poll(121)[0], at=AT + 121)

    def test_queries_clients_for_some_time_if_only_nvml_shows_a_client(self) -> None:
        shown = [gpu_reading([CLIENT, 601], at=AT + 121 + second) for second in range(0, 600, 10)]
        _, asked = poll(290, start=self.up_to_date(), seen=shown)
        in_doubt = [at for at in asked[CLIENTS] if at <= RHYTHM.stale_for + 1]
        assert 3 <= len(in_doubt) <= RHYTHM.stale_for / RHYTHM.stale + 1
        assert gap(asked[CLIENTS]) >= RHYTHM.stale
        assert len(asked[CLIENTS]) - len(in_doubt) <= 1
        assert gap(asked[LIST]) == RHYTHM.liveness

    def test_does_not_query_an_unknown_client_forever_if_nvml_fails_at_times(self) -> None:
        """A failed reading does not show that a client left."""
        shown: list[Observation] = []
        for second in range(0, 3600, 20):
            shown.append(gpu_reading([CLIENT, 601], at=AT + 121 + second))
            shown.append(GpuReading(at=AT + 131 + second, gpu=GPU, problem=failure("busy")))
        _, asked = poll(3600, start=self.up_to_date(), seen=shown)
        assert len(asked[CLIENTS]) <= 3600 / RHYTHM.lists + RHYTHM.stale_for / RHYTHM.stale + 2

    def test_stops_queries_once_the_log_reports_the_client(self) -> None:
        shown: list[Observation] = [gpu_reading([CLIENT, 601], at=AT + 122), *server_log(active(601), at=AT + 123)]
        _, asked = poll(60, start=self.up_to_date(), seen=shown)
        assert len(asked[CLIENTS]) <= 1

    def test_queries_the_clients_once_after_nvml_has_stopped_to_show_one(self) -> None:
        """The daemon can list it longer, as while another process has its connection."""
        known = (servers(SERVER, at=AT + 2), clients(CLIENT, at=AT + 2))
        left = (*at_work(CLIENT), gpu_reading([CLIENT], at=AT + 1), *known, gpu_reading([], at=AT + 5))
        for seen, due in ((left, True), ((*left, clients(CLIENT, at=AT + 7)), False)):
            present = reduced(*seen).node
            commands = poll_schedule.commands(replace(present, at=AT + 10), DAEMON, RHYTHM)
            assert (CLIENTS in commands) is due

    def test_queries_clients_if_nvml_no_longer_shows_one(self) -> None:
        shown = [gpu_reading([CLIENT], at=AT + 122), gpu_reading(at=AT + 132), gpu_reading(at=AT + 142)]
        present, asked = poll(
            40, start=self.up_to_date(), seen=shown, answer=lambda command, at: healthy(command, at, 601)
        )
        assert len(asked[CLIENTS]) == 1
        assert present.daemons[DAEMON].clients.keys() == {601}

    def test_repeats_the_query_after_an_empty_list(self) -> None:
        def empty(command: str, at: float) -> ControlReply:
            return clients(at=at) if command == CLIENTS else healthy(command, at)

        start = reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), reply("-v", "version: 13000")).node
        start = replace(start, at=AT + 301)
        present, asked = poll(30, start=start, answer=empty)
        assert asked[CLIENTS][:2] == [0.0, RHYTHM.stale]
        assert len(asked[CLIENTS]) == 2
        assert not present.daemons[DAEMON].clients

    def test_queries_a_server_in_fault_more_often(self) -> None:
        """Log lines of its recovery may be lost."""
        _, asked = poll(60, start=self.up_to_date(), seen=server_log(*FAULT_BLOCK, at=AT + 121), answer=faulted)
        assert asked[STATUS][0] <= RHYTHM.starting
        assert gap(asked[STATUS][1:]) == RHYTHM.fault

    def test_confirms_a_suspected_fault_by_the_list_of_clients(self) -> None:
        """The daemon reports FAULT once for a server that is exiting."""
        present, asked = poll(10, start=self.up_to_date(), seen=[status("FAULT", at=AT + 121)], answer=faulted)
        assert asked[CLIENTS][0] <= RHYTHM.starting
        assert present.daemons[DAEMON].servers[SERVER].state == "fault"

    def test_queries_the_state_after_an_xid_without_a_fault_in_the_log(self) -> None:
        """A workload may have blocked the log, or removed lines."""
        start = self.up_to_date()
        at = start.at + 1
        with_incidents = GpuEvent(at=at, gpu=GPU, type=XID_EVENT_TYPE, xid=31)
        present, asked = poll(4, start=start, seen=[with_incidents], answer=faulted)
        assert 1 + XID_SECONDS <= asked[STATUS][0] <= 1 + XID_SECONDS + TICK
        assert len(present.incidents) == 1

    def test_sends_no_query_after_an_xid_on_a_gpu_of_another_daemon(self) -> None:
        start = self.up_to_date()
        daemon = replace(start.daemons[DAEMON], runtime=replace(start.daemons[DAEMON].runtime, devices={0: GPU}))
        start = replace(start, daemons={DAEMON: daemon})
        other_queries = gpu_reading([], gpu=OTHER_GPU, at=start.at)
        with_incidents = GpuEvent(at=start.at + 1, gpu=OTHER_GPU, type=XID_EVENT_TYPE, xid=31)
        _, asked = poll(4, start=start, seen=[other_queries, with_incidents])
        assert not asked[STATUS]

    @pytest.mark.parametrize("puzzling", [LIST, STATUS])
    def test_does_not_repeat_a_query_with_an_unreadable_answer_forever(self, puzzling: str) -> None:
        """Another driver may not have the command, or print other text."""

        def answer(command: str, at: float) -> ControlReply:
            return (
                reply(command, f'Unknown command "{command}"\n', at=at) if command == puzzling else healthy(command, at)
            )

        start = reduced(servers(SERVER), clients(CLIENT), reply("-v", "version: 13000")).node
        start = start if puzzling == STATUS else reduced(*control_log("UI closed")).node
        _, asked = poll(3600, start=start, answer=answer)
        assert len(asked[puzzling]) < 300


class TestUnresponsiveDaemon:
    """A daemon that does not answer gets one kind of query."""

    @pytest.mark.parametrize(
        ("trouble", "period", "query"),
        [
            (no_daemon, RHYTHM.liveness / 3, LIST),
            (silence, RHYTHM.fault, LIST),
            (refusal, RHYTHM.fault, DEFAULT_THREADS),
        ],
    )
    def test_sends_one_query_at_a_fixed_interval(
        self, trouble: Callable[..., ControlReply], period: float, query: str
    ) -> None:
        """The daemon has ended, hangs, or is held by another session. Then an empty reply is no answer."""
        start = replace(poll(2)[0], at=AT + 60)
        _, asked = poll(120, start=start, answer=lambda command, at: replace(trouble(at=at), command=command))
        assert asked.keys() <= {LIST, query}
        assert asked[LIST][:1] == [0.0]
        assert gap(asked[query][1:]) == period

    def test_a_users_program_that_never_answers_is_queried_more_and_more_rarely(self) -> None:
        """Any user can start one."""
        start = reduced(replace(daemon_process(), uid=1001), servers(SERVER), start=Node()).node
        _, asked = poll(1200, start=start, answer=lambda command, at: replace(silence(at=at), command=command))
        times = sorted(at for each in asked.values() for at in each if at > 600)
        assert 2 * RHYTHM.liveness <= gap(times) < 3 * RHYTHM.liveness

    def test_queries_a_starting_daemon_at_once(self) -> None:
        """Clients connect as soon as it runs."""
        start = replace(reduced(no_daemon(), no_daemon(at=AT + 9)).node, at=AT + 9)
        began: tuple[Observation, ...] = (
            daemon_process(CONTROL + 1, at=AT + 10),
            *control_log("Starting control daemon using socket /s", at=AT + 10),
        )
        _, asked = poll(5, start=start, seen=began)
        assert asked[LIST][0] <= 1.5

    def test_sends_no_query_while_a_restart_may_set_the_limits_of_a_new_daemon(self) -> None:
        """Its commands come first: a client that waits gets a server at once."""
        acting = OngoingAction(kind=ActionKind.RESTART, reason=ActionReason.DOWN, began_at=AT + 9)
        began = (
            daemon_process(CONTROL + 1, at=AT + 10),
            *control_log("Starting control daemon using socket /s", at=AT + 10),
        )
        ended = reduced(no_daemon(), no_daemon(at=AT + 9)).node

        def queries(present: Node, at: float, acting: OngoingAction) -> bool:
            present = replace(present, at=at, watches={DAEMON: WatchdogState(acting=acting)})
            return bool(poll_schedule.commands(present, DAEMON, RHYTHM))

        new = reduced(*began, start=ended).node
        assert not queries(ended, AT + 30, acting)
        assert not queries(new, AT + 10.9, acting)
        assert queries(new, AT + 11, acting)
        assert queries(new, AT + 10.9, replace(acting, done_at=AT + 10.5))

    def test_bounds_attempts_with_an_unusable_control_program(self) -> None:
        def unusable(command: str, at: float) -> ControlReply:
            return reply(command, exit_code=127, stderr="nvidia-cuda-mps-control: No such file or directory", at=at)

        _, asked = poll(600, answer=unusable)
        assert len(asked[LIST]) <= 600 / RHYTHM.stale


class TestNvml:
    """NVML is read at its interval, and sooner if its lists are out of date."""

    def due(self, present: Node, seconds: float) -> bool:
        """Return whether NVML is due this long after it was read."""
        return poll_schedule.nvml_due(replace(present, at=AT + seconds), RHYTHM)

    def just_read(self, *seen: Observation) -> Node:
        """Return a daemon with a client that NVML has just shown."""
        return reduced(servers(SERVER), status("ACTIVE"), clients(CLIENT), gpu_reading([CLIENT]), look(), *seen).node

    def test_reads_nvml_at_once_at_first(self) -> None:
        assert poll_schedule.nvml_due(node(), RHYTHM)

    def test_reads_nvml_at_its_interval(self) -> None:
        assert not self.due(self.just_read(), RHYTHM.nvml - 1)
        assert self.due(self.just_read(), RHYTHM.nvml)

    @pytest.mark.parametrize("line", [active(601), f"Client process {CLIENT} disconnected"])
    def test_reads_nvml_sooner_after_a_client_connects_or_disconnects(self, line: str) -> None:
        """The memory of the client is not known."""
        present = self.just_read(*server_log(line, at=AT + 1))
        assert not self.due(present, RHYTHM.stale - 0.5)
        assert self.due(present, RHYTHM.stale)

    def test_reads_nvml_sooner_after_a_client_first_launches_on_a_gpu(self) -> None:
        """Its context, and so its memory, may be new on one of several GPUs. The exporter may see only one."""
        other = gpu_reading(gpu=OTHER_GPU, index=1)
        parts = [replace(work(CLIENT, launched=AT + 1, first_ns=boot_ns(AT + 1)), device=device) for device in (0, 1)]
        launches = replace(reading(AT + 2, *parts), on_devices=tuple(parts))
        assert self.due(self.just_read(other, launches), RHYTHM.stale)
        assert self.due(self.just_read(launches), RHYTHM.stale)
        assert not self.due(self.just_read(reading(AT + 2, replace(parts[0], device=-1))), RHYTHM.stale)

    def test_reads_nvml_sooner_until_a_bypassing_process_is_confirmed(self) -> None:
        """Two readings distinguish it from a client that connects or disconnects."""
        older = gpu_reading([CLIENT], beside=[802], at=AT - 60)
        present = self.just_read(older, gpu_reading([CLIENT], beside=[801, 802]))
        assert [poll_schedule.is_confirmation_due(present, AT + at, NEVER) for at in (0.9, 1.0)] == [False, True]
        assert self.due(present, RHYTHM.stale)
        looks = (servers(SERVER, at=AT + 1), gpu_reading([CLIENT], beside=[801], at=AT + 2), look(at=AT + 2))
        assert not self.due(reduced(*looks, start=present).node, RHYTHM.stale + 2)

    @pytest.mark.parametrize("lifetime", [0.3, 0.7, 1.2, 2.2, 8.0])
    def test_bounds_readings_for_processes_that_come_and_go_often(self, lifetime: float) -> None:
        present, confirmed_at, confirmations = self.just_read(*FOLLOWED), NEVER, 0
        for tick in range(120):
            at = AT + tick * TICK
            beside = [801 + n for n in range(200) if 0 <= at - AT - n * 0.3 < lifetime]
            confirms = poll_schedule.is_confirmation_due(replace(present, at=at), at, confirmed_at)
            if confirms or at - present.gpus[GPU].reading.at >= RHYTHM.stale:
                present = reduced(gpu_reading([CLIENT], beside=beside, at=at), look(at=at), start=present).node
                confirmations += confirms
                confirmed_at = at if confirms else confirmed_at
        assert 0 < confirmations <= 120 * TICK / 5 + 1

    @pytest.mark.parametrize("begins", range(0, 20, 3))
    def test_counts_a_bypassing_process_after_two_ticks_and_removes_it_in_the_tick_of_its_end(
        self, begins: int
    ) -> None:
        """NVML's lists of processes are compared in each tick."""
        present, counted, readings = self.just_read(*FOLLOWED), [], 0
        for tick in range(60):
            at, beside = AT + tick * TICK, [801] * (begins <= tick < begins + 30)
            read = {process.pid for process in present.gpus[GPU].reading.compute_processes or ()}
            changed = frozenset(read ^ {SERVER, CLIENT, *beside})
            now = replace(present, at=at)
            confirms = poll_schedule.is_confirmation_due(now, at, NEVER)
            if confirms or gpus.may_bypass(now, {GPU: changed}) or poll_schedule.nvml_due(now, RHYTHM):
                present = reduced(gpu_reading([CLIENT], beside=beside, at=at), look(at=at), start=present).node
                readings += 1
            counted.append(present.gpus[GPU].bypassing)
        assert counted == [(801,) if begins + 2 <= tick < begins + 30 else () for tick in range(60)]
        assert readings <= 60 * TICK / RHYTHM.nvml + 3

    def test_bounds_readings_for_lists_that_always_differ(self) -> None:
        clock, asked = HandClock(AT + 1), list[float]()
        with contextlib.closing(Assembly(Config(constants=constants()), clock, Inbox())) as collectors:
            collectors._node = self.just_read(gpu_reading([CLIENT], beside=[801]))
            collectors.nvml = Mock(changed_processes=lambda: {GPU: frozenset({802})})
            for _ in range(12):
                asked += [clock.time - AT] if collectors._gpus_changed() else []
                clock.time += TICK
        assert asked == [1.0, 1.5, 3.5, 5.5, 6.0]

    def test_does_not_read_nvml_sooner_forever_if_readings_fail(self) -> None:
        present = self.just_read(gpu_reading([CLIENT], beside=[801]))
        for second in range(2, 120, 2):
            present = reduced(look(at=AT + second, problem=failure("lost")), start=present).node
        assert not self.due(present, 120 + RHYTHM.stale)

    def test_reads_a_failing_nvml_no_more_often(self) -> None:
        present = self.just_read(look(at=AT + 10, problem=failure("lost")))
        assert not self.due(present, 15)
        assert self.due(present, 20)


class TestMonitoredProcesses:
    """Processes whose exit is reported."""

    def test_monitors_daemons_servers_clients_queued_clients_and_bypassing_processes(self) -> None:
        queued = control_log("NEW CLIENT 601 from user 0: Server is not ready, push client to pending list")
        present = reduced(
            servers(SERVER), clients(CLIENT), daemon_process(), *queued, gpu_reading([CLIENT], beside=[801])
        ).node
        assert poll_schedule.processes_wanted(present) == {SERVER, CLIENT, CONTROL, 601, 801}

    def test_does_not_monitor_pid_0(self) -> None:
        """A client in another PID namespace is logged as PID 0."""
        zero = control_log("NEW CLIENT 0 from user 0: Server is not ready, push client to pending list")
        assert poll_schedule.processes_wanted(reduced(*zero).node) == frozenset()


words = st.sampled_from(("", "ACTIVE\n", "FAULT\n", f"{SERVER}\n", f"{CLIENT}\n{CLIENT + 1}\n", "what?\n"))
troubles = st.sampled_from((no_daemon, refusal, silence))
surprises = st.lists(
    st.tuples(st.sampled_from((0.0, 0.5, 1.5, 4.0)), st.one_of(log_lines, readings, lives)), max_size=25
).map(timed)


def other_queries(asked: Mapping[str, list[float]]) -> Iterable[list[float]]:
    """Return when each query was sent, except those that test whether the daemon lives."""
    return (times for command, times in asked.items() if command not in (LIST, DEFAULT_THREADS))


@example(
    timed([(1.5, control_log("Starting control daemon using socket /tmp/nvidia-mps/control")[0])]), ["", no_daemon]
)
@example(timed([(1.5, daemon_process(441))]), ["", no_daemon])
@given(surprises, st.lists(words | troubles, min_size=1, max_size=6))
@settings(max_examples=60)
def test_sends_no_query_more_often_than_for_stale_values(
    seen: list[Observation], answers: list[str | Callable[..., ControlReply]]
) -> None:
    """The observations and answers are random. Only a daemon that starts is queried sooner."""
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
    _, asked = poll(40, seen=seen, answer=answer)
    lives = (
        [at for at in times if bisect_right(begun, at) == life] for times in other_queries(asked) for life in range(3)
    )
    assert all(gap(times) >= RHYTHM.stale for times in lives)
    assert all(gap(asked[query]) >= RHYTHM.starting for query in (LIST, DEFAULT_THREADS))
