"""Limits of servers and daemons: accepted sources, scope, and the GPU of an ordinal."""

from dataclasses import replace
from itertools import product

import pytest

from exporter.model.daemon import Daemon, with_runtime
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import MAX_CONNECTIONS
from exporter.state.devices import device_count, gpus_by_ordinal, serves_gpu
from exporter.state.limits import clients_limit, device_limit, queries
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    OTHER_GPU,
    SERVER,
    at_work,
    clients,
    control_log,
    daemon_process,
    exited,
    failure,
    gpu_reading,
    look,
    looks,
    mig,
    node,
    process,
    reduced,
    refusal,
    reply,
    server_log,
    servers,
    silence,
    with_fields,
)

START_BLOCK = (
    "Active Threads Percentage set to 40.0",
    "Device pinned memory limit for device 9 set to 0xc0000000 bytes",
    "Device pinned memory limit for device 0 set to 0x1900000000 bytes",
    "Server has started",
)
DEFAULT_MEMORY, DEFAULT_PRIORITY = "get_default_device_pinned_mem_limit 0", "get_default_client_priority"


def limits(*seen: Observation) -> tuple[float | None, dict[int, int]]:
    """Return the limits of the server after these observations."""
    server = reduced(*at_work(CLIENT), *seen).daemon.servers[SERVER]
    return server.limits.active_thread_percentage, dict(server.limits.pinned_memory)


def defaults(*seen: Observation) -> tuple[float | None, dict[int, int]]:
    """Return the daemon's default limits after these observations."""
    daemon = reduced(*at_work(CLIENT), *seen).daemon
    return daemon.default_limits.active_thread_percentage, dict(daemon.default_limits.pinned_memory)


class TestServer:
    """The server logs its limits, or its daemon reports them."""

    def test_reads_limits_at_the_start(self) -> None:
        """The daemon accepts limits for devices that do not exist (R580)."""
        assert limits(*server_log(*START_BLOCK)) == (40.0, {9: 3 << 30, 0: 100 << 30})

    def test_reads_limits_of_a_server_that_the_daemon_has_not_logged_yet(self) -> None:
        """The server's log is read before the daemon's."""
        daemon = reduced(*at_work(), *server_log(*START_BLOCK, server=700)).daemon
        assert daemon.servers[700].limits.pinned_memory == {9: 3 << 30, 0: 100 << 30}

    def test_a_change_replaces_only_that_limit(self) -> None:
        assert limits(*server_log(*START_BLOCK), *server_log("Active Threads Percentage set to 60.0")) == (
            60.0,
            {9: 3 << 30, 0: 100 << 30},
        )

    def test_reads_the_priority_at_the_start_and_at_a_change_of_the_default(self) -> None:
        """A change applies to running servers (measured, R580)."""
        priority = "Server Priority set to 0"
        for lines, expected in (((), None), ((priority,), 0), ((priority, "Client Priority set to 1"), 1)):
            assert (
                reduced(*at_work(CLIENT), *server_log(*lines)).daemon.servers[SERVER].limits.client_priority == expected
            )

    def test_reads_limits_from_replies(self) -> None:
        """The queries have the PID of the server and the ordinal of the device."""
        asked = (
            reply(f"get_active_thread_percentage {SERVER}", "40.0\n"),
            reply(f"get_device_pinned_mem_limit {SERVER} 0", "3000M\n"),
            reply(f"get_device_pinned_mem_limit {SERVER} 1", ""),
        )
        assert limits(*asked) == (40.0, {0: 3000 << 20})

    def test_defaults_do_not_change_a_running_server(self) -> None:
        assert limits(reply("get_default_active_thread_percentage", "40.0\n"), reply(DEFAULT_MEMORY, "3G\n")) == (
            None,
            {},
        )

    def test_a_logged_command_alone_changes_nothing(self) -> None:
        """The daemon may refuse it, or the server may not exist."""
        seen = server_log(*START_BLOCK)
        commands = control_log(
            f"Cmd:set_active_thread_percentage {SERVER} 10", "Not enough privilege to execute x command"
        )
        assert limits(*seen, *commands) == limits(*seen)

    def test_an_empty_reply_changes_nothing(self) -> None:
        """A refused command may return success and an empty reply (R580)."""
        seen = server_log(*START_BLOCK)
        empty = (reply(f"get_active_thread_percentage {SERVER}"), reply(f"get_device_pinned_mem_limit {SERVER} 0"))
        assert limits(*seen, *empty) == limits(*seen)

    def test_ignores_an_invalid_percentage(self, subtests: pytest.Subtests) -> None:
        """An invalid value is unknown. Digits of other scripts are valid."""
        for words in ["nan", "-1", "0.0", "100.1", "1e400", "many", 'Unknown command "x"', "٤٠", ""]:
            with subtests.test(words=words):
                found = limits(reply(f"get_active_thread_percentage {SERVER}", words))
                assert found == (40.0 if words == "٤٠" else None, {})

    def test_ignores_an_invalid_size(self, subtests: pytest.Subtests) -> None:
        """An unknown size is not 0."""
        for words in ["0", "-3G", "G", "3 G", "0x80", "9" * 400 + "G", "nan"]:
            with subtests.test(words=words):
                assert limits(reply(f"get_device_pinned_mem_limit {SERVER} 0", words)) == (None, {})

    def test_ignores_an_invalid_device(self, subtests: pytest.Subtests) -> None:
        for device in ["64", "99999", "-1", "x", "²", "0 0"]:
            with subtests.test(device=device):
                assert limits(reply(f"get_device_pinned_mem_limit {SERVER} {device}", "3G")) == (None, {})

    @pytest.mark.parametrize(
        "asked", [f"get_active_thread_percentage {SERVER}", f"get_device_pinned_mem_limit {SERVER} 0"]
    )
    def test_server_that_the_daemon_does_not_find_has_exited(self, asked: str) -> None:
        assert not reduced(*at_work(CLIENT), reply(asked, f"Server {SERVER} not found\n")).daemon.servers


class TestDefaults:
    """The limits of the daemon's next server."""

    def test_the_priority_is_0_or_1(self, subtests: pytest.Subtests) -> None:
        """Other values are ignored (R580)."""
        for words, priority in [("1\n", 1), ("0", 0), ("", None), ("2", None), ("x", None), ("1 0", None)]:
            with subtests.test(words=words, priority=priority):
                assert (
                    reduced(*at_work(), reply(DEFAULT_PRIORITY, words)).daemon.default_limits.client_priority
                    == priority
                )

    @pytest.mark.parametrize("words", ["", "x\n"])
    def test_an_unreadable_reply_does_not_change_the_known_priority(self, words: str) -> None:
        replies = (reply(DEFAULT_PRIORITY, "1\n"), reply(DEFAULT_PRIORITY, words, at=AT + 1))
        assert reduced(*at_work(), *replies).daemon.default_limits.client_priority == 1

    def test_a_client_keeps_the_limit_of_its_start_after_several_changes(self) -> None:
        """Limits of a server are for clients that connect later (measured, R580)."""
        command, query = (f"{verb}_active_thread_percentage {SERVER}" for verb in ("set", "get"))
        for changes in ((60, 80), (60, 20)):
            seen = [reply(query, "40.0\n")]
            for number, percentage in enumerate(changes):
                at = AT + 1 + number
                seen += [*control_log(f"Cmd:{command} {percentage}", at=at), reply(query, f"{percentage}.0\n", at=at)]
            daemon = reduced(*at_work(CLIENT), *seen).daemon
            assert daemon.servers[SERVER].limits_of(daemon.clients[CLIENT]).active_thread_percentage == 40.0

    @pytest.mark.parametrize(("before", "after"), [(40.0, 20.0), (20.0, 40.0)])
    def test_a_client_from_before_a_change_by_an_unknown_command_has_at_most_the_larger_limit(
        self, before: float, after: float
    ) -> None:
        query = f"get_active_thread_percentage {SERVER}"
        replies = (reply(query, f"{each}\n", at=AT + seconds) for seconds, each in ((1, before), (9, after)))
        daemon = reduced(*at_work(CLIENT), *replies).daemon
        server = daemon.servers[SERVER]
        assert server.limits.active_thread_percentage == after
        assert server.limits_of(daemon.clients[CLIENT]).active_thread_percentage == 40.0

    def test_reply_to_a_set_command_gives_the_percentage_in_force(self) -> None:
        """If the new value is invalid, the reply has the old one (R580)."""
        assert defaults(reply("set_default_active_thread_percentage abc", "40.0\n")) == (40.0, {})

    def test_ignores_the_output_of_ps_in_the_log(self) -> None:
        """A client can choose its command line."""
        assert defaults(*control_log("Cmd:ps", "Cmd:set_default_device_pinned_mem_limit 0 100G")) == (None, {})

    def test_a_restarted_daemon_has_no_defaults(self) -> None:
        asked = (
            daemon_process(),
            reply(DEFAULT_PRIORITY, "1\n"),
            reply("get_default_active_thread_percentage", "40.0\n"),
            reply(DEFAULT_MEMORY, "3G\n"),
        )
        again = (exited(CONTROL, at=AT + 1), daemon_process(CONTROL + 1, at=AT + 2), servers(at=AT + 3))
        assert defaults(*asked) == (40.0, {0: 3 << 30})
        daemon = reduced(*at_work(CLIENT), *asked, *again).daemon
        assert (daemon.default_limits.active_thread_percentage, dict(daemon.default_limits.pinned_memory)) == (None, {})
        assert daemon.default_limits.client_priority is None


class TestStaleness:
    """A stale value becomes current only by a reply."""

    def stale(self, *seen: Observation) -> frozenset[str]:
        """Return the stale queries after a logged command and these observations."""
        set_by_operator = control_log("Cmd:set_default_device_pinned_mem_limit 0 3G")
        return reduced(*at_work(CLIENT), *set_by_operator, *seen).daemon.default_limits.stale

    def test_a_logged_command_makes_a_value_stale(self) -> None:
        """The command may have changed the value."""
        assert self.stale() == {DEFAULT_MEMORY}

    @pytest.mark.parametrize(
        ("asked", "later", "stale"),
        [
            (("set_default_device_pinned_mem_limit 0 3G", DEFAULT_MEMORY), 1.0, False),
            ((DEFAULT_MEMORY, "set_default_device_pinned_mem_limit 0 3G"), 1.0, True),
            (("set_default_device_pinned_mem_limit 0 2G", DEFAULT_MEMORY), 1.0, True),
            (("set_default_device_pinned_mem_limit 0 3G", DEFAULT_MEMORY), 60.0, True),
        ],
        ids=["own", "not queried since", "another value", "long ago"],
    )
    def test_an_own_command_that_the_log_shows_after_the_query_changes_nothing(
        self, asked: tuple[str, str], later: float, stale: bool
    ) -> None:
        """Also if it is the first command of a new daemon."""
        replies = [reply(command, "", at=AT + 3 + place / 100) for place, command in enumerate(asked)]
        line = control_log("Cmd:set_default_device_pinned_mem_limit 0 3G", at=AT + 3 + later, pid=CONTROL + 1)
        found = daemon_process(CONTROL + 1, at=AT + 3.5)
        ended = (daemon_process(), exited(CONTROL, at=AT + 1))
        daemon = reduced(*at_work(CLIENT), *ended, *replies, found, *line).daemon
        assert daemon.default_limits.stale == ({DEFAULT_MEMORY} if stale else set())

    def test_a_reply_ends_staleness(self) -> None:
        """The reply may be invalid."""
        assert not self.stale(reply(DEFAULT_MEMORY, "what?"))

    def test_the_reply_to_a_command_does_not_end_staleness(self) -> None:
        """It does not have the value."""
        assert self.stale(reply("set_default_device_pinned_mem_limit 0 3G", "")) == {DEFAULT_MEMORY}

    @pytest.mark.parametrize("unanswered", [refusal(at=AT + 1), silence(at=AT + 1)], ids=["refused", "silent"])
    def test_an_unanswered_query_does_not_end_staleness(self, unanswered: Observation) -> None:
        assert self.stale(replace(unanswered, command=DEFAULT_MEMORY)) == {DEFAULT_MEMORY}  # type: ignore[call-arg]

    @pytest.mark.parametrize("unanswered", [refusal(at=AT + 1), silence(at=AT + 1)], ids=["refused", "silent"])
    def test_an_unanswered_query_makes_its_value_stale(self, unanswered: Observation) -> None:
        assert reduced(*at_work(), replace(unanswered, command=DEFAULT_PRIORITY)).daemon.default_limits.stale == {  # type: ignore[call-arg]
            DEFAULT_PRIORITY
        }
        assert not reduced(*at_work(), unanswered).daemon.default_limits.stale

    def test_number_of_stale_queries_is_limited(self) -> None:
        many = [
            f"Cmd:set_device_pinned_mem_limit {pid} {device} 1G" for pid in range(500, 520) for device in range(200)
        ]
        assert len(self.stale(*control_log(*many))) == 64 + 1

    def test_stale_queries_of_an_exited_server_are_removed(self) -> None:
        stale = control_log(f"Cmd:set_active_thread_percentage {SERVER} 1")
        gone = (
            *stale,
            *control_log(f"Server {SERVER} exited with status 0"),
            *(servers(at=AT + at) for at in (1, 3)),
        )
        assert self.stale(*gone, *control_log("Cmd:set_default_active_thread_percentage 1")) == {
            DEFAULT_MEMORY,
            "get_default_active_thread_percentage",
        }


class TestDevices:
    """The GPU of an ordinal."""

    def ordinals(self, *gpus: str, **known: object) -> dict[int, str]:
        """Return the GPU of each ordinal for a daemon with these fields, on a node with these GPUs."""
        present = reduced(*(gpu_reading(gpu=gpu, index=index) for index, gpu in enumerate(gpus))).node
        daemon = with_fields(node().daemons[DAEMON], **known)
        return dict(gpus_by_ordinal(present, daemon))

    def test_visible_devices_give_the_order(self, subtests: pytest.Subtests) -> None:
        """As in CUDA, an entry that is unknown or ambiguous ends the list. Numbers are of the daemon's view."""
        for visible, ordinals in [
            ("0,1", {}),
            ("1", {}),
            ("GPU-6edbf013,0", {}),
            (f"{OTHER_GPU},{GPU}", {0: OTHER_GPU, 1: GPU}),
            ("GPU-6edbf013,GPU-1efa3f60", {0: OTHER_GPU, 1: GPU}),
            (f"{OTHER_GPU},-1,{GPU}", {0: OTHER_GPU}),
            (f"{OTHER_GPU},GPU-7,{GPU}", {0: OTHER_GPU}),
            (f"{OTHER_GPU},{OTHER_GPU},{GPU}", {0: OTHER_GPU}),
            (f"GPU-,{GPU}", {}),
            ("10000", {}),
            ("None", {}),
            ("", {}),
        ]:
            with subtests.test(visible=visible, ordinals=ordinals):
                assert self.ordinals(GPU, OTHER_GPU, runtime__visible_devices=visible) == ordinals
        assert self.ordinals(GPU, runtime__visible_devices="0") == {0: GPU}

    def test_the_devices_that_the_daemon_reports_have_precedence(self) -> None:
        reported = {0: OTHER_GPU, 1: GPU}
        assert self.ordinals(GPU, OTHER_GPU, runtime__visible_devices="0,1", runtime__devices=reported) == reported

    def after_device_query(self, stdout: str) -> Daemon:
        return reduced(*at_work(), reply("device_query --csv", stdout)).daemon

    def test_reads_rows_of_the_device_query(self) -> None:
        """A row has an ordinal first and a full UUID. Other columns are ignored."""
        rows = (
            f"Device Ordinal,PCI IDs,UUID,Name\n0,00:00.0,{OTHER_GPU},NVIDIA H200\n1, 00:01.0, {GPU}, NVIDIA H200, x\n"
        )
        assert self.after_device_query(rows).runtime.devices == {0: OTHER_GPU, 1: GPU}

    def test_ignores_an_invalid_device_query_reply(self, subtests: pytest.Subtests) -> None:
        """Drivers before R590 may not know the command."""
        for stdout in [
            "",
            'Unknown command "device_query --csv"',
            "0,GPU-1efa3f60",
            f"x,{GPU}",
            f"0,{GPU},{OTHER_GPU}",
        ]:
            with subtests.test(stdout=stdout):
                assert self.after_device_query(stdout).runtime.devices == {}


# The maximum number of clients of a server, by the GPUs and the version of MPS.


CAPABILITIES = ("6.0", "6.1", "7.0", "7.2", "7.5", "8.0", "8.6", "8.9", "9.0", "10.0", "12.0")

VERSIONS = {
    **dict.fromkeys((11040, 11060, 12000, 12020, 12040, 12080, 12090, 13000), 48),
    **dict.fromkeys((13010, 13020, 13030, 13040), 60),
    **dict.fromkeys((13050, 13060, 14000), None),
}
"""Client contexts per device from Volta on, by the CUDA version of the drivers R470 to R615, and of later ones."""

DEVICES = "Device Ordinal,PCI ID,UUID,Name\n"


def limit(*seen: Observation) -> int | None:
    return limit_of(reduced(*at_work(), *seen).node)


def limit_of(present: Node) -> int | None:
    daemon = present.daemons[DAEMON]
    return device_limit(present, daemon, daemon.servers[SERVER])


def test_the_drivers_cuda_version_replaces_an_unknown_version_of_the_daemon(subtests: pytest.Subtests) -> None:
    for cuda, places in [
        ("12.4", 48),
        ("13.0", 48),
        ("13.1", 60),
        ("13.4", 60),
        ("13.5", None),
        (None, None),
        ("13", None),
        ("²", None),
    ]:
        with subtests.test(cuda=cuda, places=places):
            present = reduced(*at_work(), gpu_reading(cuda_version=cuda)).node
            daemon = replace(present.daemons[DAEMON], runtime=replace(present.daemons[DAEMON].runtime, version=None))
            assert limit_of(replace(present, daemons={DAEMON: daemon})) == places


def test_limit_is_unknown_without_a_gpu() -> None:
    assert limit() is None


def test_limit_is_unknown_if_one_gpu_is_unknown() -> None:
    assert limit(gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1, compute_capability=None)) is None
    assert limit(gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="8.0")) == 48


@pytest.mark.parametrize("visible", [None, "1,0", f"{OTHER_GPU},{GPU}"])
def test_gpus_before_volta_are_ignored_beside_later_ones(visible: str | None) -> None:
    """The control daemon filters them out (NVIDIA's MPS guide, CUDA_VISIBLE_DEVICES)."""
    old = gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="6.1", server=None)
    present = with_visible(visible, reduced(*at_work(), gpu_reading(server=None), old).node)
    daemon = present.daemons[DAEMON]
    known = visible is not None and visible.startswith("GPU")
    served = [serves_gpu(present, daemon, present.gpus[each].reading) for each in (GPU, OTHER_GPU)]
    assert served == ([True, False] if known else [None, None])
    assert limit_of(present) == (48 if known else None)
    assert gpus_by_ordinal(present, daemon) == ({0: GPU} if known else {})


def test_gpus_before_volta_are_served_if_no_later_one_is_visible() -> None:
    old = gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="6.1")
    present = with_visible(OTHER_GPU, reduced(*at_work(), gpu_reading(server=None), old).node)
    assert limit_of(present) == 16
    assert gpus_by_ordinal(present, present.daemons[DAEMON]) == {0: OTHER_GPU}


def with_visible(visible: str | None, present: Node) -> Node:
    """Return the node with a daemon that has no list of its devices, but this CUDA_VISIBLE_DEVICES."""
    daemon = present.daemons[DAEMON]
    runtime = replace(daemon.runtime, devices={}, visible_devices=visible)
    return replace(present, daemons={DAEMON: replace(daemon, runtime=runtime)})


def test_limit_is_right_or_unknown_for_all_architectures_and_versions(subtests: pytest.Subtests) -> None:
    for capability, (version, places) in product(CAPABILITIES, VERSIONS.items()):
        with subtests.test(capability=capability, version=version, places=places):
            line = control_log(f"CUDA MPS Control binary version: {version}")
            expected = 16 if capability.startswith("6.") else places
            assert limit(*line, gpu_reading(compute_capability=capability)) == expected


def test_only_the_gpus_of_the_daemon_matter() -> None:
    answer = reply("device_query --csv", f"{DEVICES}0,00000000:00:06.0,{GPU},NVIDIA H200\n")
    present = reduced(*at_work(), answer, gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1, compute_capability="6.1"))
    assert present.daemon.runtime.devices == {0: GPU}
    assert limit_of(present.node) == 48


def test_the_server_and_the_configuration_have_precedence_over_the_guide() -> None:
    line = server_log("Failed to accept new client. Maximum number of clients (20) reached.")
    full = (clients(*range(1000, 1020)), *line)
    assert limit(*full, gpu_reading(compute_capability=None)) == 20
    present = reduced(*at_work(), *full, gpu_reading()).node
    daemon = replace(present.daemons[DAEMON], declared=replace(present.daemons[DAEMON].declared, clients_limit=12))
    assert limit_of(replace(present, daemons={DAEMON: daemon})) == 12


def test_a_mig_instance_that_serves_is_no_second_gpu() -> None:
    """NVML shows the server there. Without the variable, the whole GPU may be the daemon's too."""
    present = mig()
    daemon = with_runtime(present.daemons[DAEMON], visible_devices=None)
    assert device_count(present, daemon) == 1
    assert clients_limit(present, daemon, daemon.servers[SERVER]) == 48


@pytest.mark.parametrize(("devices", "whole"), [((GPU,), 48), ((GPU, OTHER_GPU), None)])
def test_a_server_with_several_gpus_has_a_limit_on_each(devices: tuple[str, ...], whole: int | None) -> None:
    """The guide limits the client contexts of each device (release 615)."""
    lines = "".join(f"{number},00:00.0,{uuid},NVIDIA H200\n" for number, uuid in enumerate(devices))
    answer = reply("device_query --csv", f"{DEVICES}{lines}")
    present = reduced(*at_work(), answer, gpu_reading(), gpu_reading(gpu=OTHER_GPU, index=1)).node
    daemon = present.daemons[DAEMON]
    assert (limit_of(present), clients_limit(present, daemon, daemon.servers[SERVER])) == (48, whole)


def test_a_failed_reading_does_not_change_the_limit() -> None:
    """The compute capability of a GPU does not change."""
    assert limit(gpu_reading(), look(at=AT + 60, problem=failure("timeout"))) == 48


def test_limit_is_unknown_if_a_client_requests_more_work_queues(subtests: pytest.Subtests) -> None:
    """All clients share a pool of work queues (NVIDIA's MPS guide, CUDA_DEVICE_MAX_CONNECTIONS)."""
    for queues, places in [(None, 48), ("1", 48), ("2", 48), ("8", None), ("32", None), ("", None), ("x", None)]:
        with subtests.test(queues=queues, places=places):
            environment = {} if queues is None else {MAX_CONNECTIONS: queues}
            line = control_log("CUDA MPS Control binary version: 13000")
            assert limit(*line, gpu_reading(), clients(1000), process(1000, environment=environment)) == places
    overwritten = process(1001, environment=None)
    assert limit(*line, gpu_reading(), clients(1000, 1001), process(1000), overwritten) is None


def test_asks_a_new_server_for_its_limits_at_once_if_the_log_is_blocked() -> None:
    present = reduced(*control_log("Starting new server 513 for user 1001"), *looks()).node
    blocked = replace(present.daemons[DAEMON].log.own_commands, blocked_since=AT)
    daemon = with_fields(present.daemons[DAEMON], log__own_commands=blocked)
    assert "get_active_thread_percentage 513" in [command for command, _ in queries(present, daemon)]


def test_a_daemon_has_at_most_64_devices_whatever_it_reports() -> None:
    """Any user can run a program that answers as a daemon."""
    present = reduced(*at_work(), gpu_reading(), reply("device_query --csv", f"999,{GPU}\n")).node
    assert device_count(present, present.daemons[DAEMON]) == 64


@pytest.mark.parametrize(("after", "asks"), [(0.0, False), (1.9, False), (2.0, True)])
def test_asks_a_server_for_its_limits_if_it_has_not_logged_them_in_two_seconds(after: float, asks: bool) -> None:
    present = reduced(*control_log("Starting new server 513 for user 1001"), *looks()).node
    present = replace(present, at=present.at + after)
    due = [command for command, _ in queries(present, present.daemons[DAEMON])]
    assert ("get_active_thread_percentage 513" in due) is asks
