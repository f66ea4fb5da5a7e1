"""Limits in force: who is believed, what they hold for, and which GPU an ordinal means."""

from dataclasses import replace

import pytest

from exporter.model.daemon import Daemon
from exporter.model.observation import Observation
from exporter.state.gpus import gpus_by_ordinal
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    GPU,
    OTHER_GPU,
    SERVER,
    at_work,
    control_log,
    daemon_process,
    exited,
    gpu_reading,
    node,
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
    """What the server grants its clients, after all this was seen of a daemon at work."""
    server = reduced(*at_work(CLIENT), *seen).daemon.servers[SERVER]
    return server.active_thread_percentage, dict(server.pinned_memory_limits)


def defaults(*seen: Observation) -> tuple[float | None, dict[int, int]]:
    """What the daemon will give its next server."""
    daemon = reduced(*at_work(CLIENT), *seen).daemon
    return daemon.default_limits.active_thread_percentage, dict(daemon.default_limits.pinned_memory)


class TestServer:
    """It says itself what is in force, or its daemon says it of this server."""

    def test_its_start_tells(self) -> None:
        """Also of a device that is not there: the daemon takes a limit for any number (R580)."""
        assert limits(*server_log(*START_BLOCK)) == (40.0, {9: 3 << 30, 0: 100 << 30})

    def test_its_start_tells_before_the_daemon_has_told_of_it(self) -> None:
        """The logs are read one after the other, the server's first."""
        daemon = reduced(*at_work(), *server_log(*START_BLOCK, server=700)).daemon
        assert daemon.servers[700].pinned_memory_limits == {9: 3 << 30, 0: 100 << 30}

    def test_a_change_tells_of_that_alone(self) -> None:
        """What it told at its start still holds."""
        assert limits(*server_log(*START_BLOCK), *server_log("Active Threads Percentage set to 60.0")) == (
            60.0,
            {9: 3 << 30, 0: 100 << 30},
        )

    def test_its_priority_is_told_at_its_start_and_when_the_default_changes(self) -> None:
        """That reaches the servers that run (measured, R580)."""
        priority = "Server Priority set to 0"
        for lines, expected in (((), None), ((priority,), 0), ((priority, "Client Priority set to 1"), 1)):
            assert reduced(*at_work(CLIENT), *server_log(*lines)).daemon.servers[SERVER].client_priority == expected

    def test_asked_for_they_are_told_too(self) -> None:
        """With the server's PID, and the device's ordinal."""
        asked = (
            reply(f"get_active_thread_percentage {SERVER}", "40.0\n"),
            reply(f"get_device_pinned_mem_limit {SERVER} 0", "3000M\n"),
            reply(f"get_device_pinned_mem_limit {SERVER} 1", ""),
        )
        assert limits(*asked) == (40.0, {0: 3000 << 20})

    def test_the_daemons_defaults_are_not_the_servers(self) -> None:
        """They reach only servers that start later."""
        assert limits(reply("get_default_active_thread_percentage", "40.0\n"), reply(DEFAULT_MEMORY, "3G\n")) == (
            None,
            {},
        )

    def test_an_operators_command_alone_is_not_believed(self) -> None:
        """It may be refused, or name what is not there."""
        seen = server_log(*START_BLOCK)
        commands = control_log(
            f"Cmd:set_active_thread_percentage {SERVER} 10", "Not enough privilege to execute x command"
        )
        assert limits(*seen, *commands) == limits(*seen)

    def test_an_empty_answer_takes_nothing_back(self) -> None:
        """A refused command may come back with success and nothing at all (R580)."""
        seen = server_log(*START_BLOCK)
        empty = (reply(f"get_active_thread_percentage {SERVER}"), reply(f"get_device_pinned_mem_limit {SERVER} 0"))
        assert limits(*seen, *empty) == limits(*seen)

    @pytest.mark.parametrize("words", ["nan", "-1", "0.0", "100.1", "1e400", "many", 'Unknown command "x"', "٤٠", ""])
    def test_no_percentage_no_limit(self, words: str) -> None:
        """A value that is none is not known; another script's digits are digits."""
        told_of = limits(reply(f"get_active_thread_percentage {SERVER}", words))
        assert told_of == (40.0 if words == "٤٠" else None, {})

    @pytest.mark.parametrize("words", ["0", "-3G", "G", "3 G", "0x80", "9" * 400 + "G", "nan"])
    def test_no_size_no_limit(self, words: str) -> None:
        """Nor 0 where it cannot be told."""
        assert limits(reply(f"get_device_pinned_mem_limit {SERVER} 0", words)) == (None, {})

    @pytest.mark.parametrize("device", ["64", "99999", "-1", "x", "²", "0 0"])
    def test_a_device_beyond_all_is_not_remembered(self, device: str) -> None:
        """However many anybody names."""
        assert limits(reply(f"get_device_pinned_mem_limit {SERVER} {device}", "3G")) == (None, {})

    @pytest.mark.parametrize(
        "asked", [f"get_active_thread_percentage {SERVER}", f"get_device_pinned_mem_limit {SERVER} 0"]
    )
    def test_one_that_the_daemon_does_not_have_has_gone(self, asked: str) -> None:
        """As with any other question about it."""
        assert not reduced(*at_work(CLIENT), reply(asked, f"Server {SERVER} not found\n")).daemon.servers

    def test_the_next_server_has_its_own(self) -> None:
        """Nothing is carried over."""
        gone = control_log(f"Server {SERVER} exited with status 0", "Starting new server 700 for user 0", at=AT + 1)
        after = reduced(*at_work(CLIENT), *server_log(*START_BLOCK), *gone).daemon
        assert after.servers[700].active_thread_percentage is None


class TestDefaults:
    """What the daemon will give the next server."""

    def test_asked_for_they_are_told(self) -> None:
        """A percentage, and a size for a device."""
        asked = (reply("get_default_active_thread_percentage", "40.0\n"), reply(DEFAULT_MEMORY, "3G\n"))
        assert defaults(*asked) == (40.0, {0: 3 << 30})

    @pytest.mark.parametrize(
        ("words", "priority"), [("1\n", 1), ("0", 0), ("", None), ("2", None), ("x", None), ("1 0", None)]
    )
    def test_the_priority_is_one_of_two(self, words: str, priority: int | None) -> None:
        """Anything else is none (R580)."""
        assert reduced(*at_work(), reply(DEFAULT_PRIORITY, words)).daemon.default_limits.client_priority == priority

    def test_a_command_that_sets_a_percentage_is_answered_with_what_now_holds(self) -> None:
        """The old value, where the new one is none (R580)."""
        assert defaults(reply("set_default_active_thread_percentage abc", "40.0\n")) == (40.0, {})

    def test_a_line_that_one_was_set_makes_the_daemon_be_asked(self) -> None:
        """Any user can write such a line."""
        daemon = reduced(*at_work(), *control_log("set_default_device_pinned_mem_limit 0 100G.")).daemon
        assert (daemon.default_limits.pinned_memory, daemon.default_limits.stale) == ({}, {DEFAULT_MEMORY})

    def test_not_in_the_echo_of_ps(self) -> None:
        """A client's command line may read like anything."""
        assert defaults(*control_log("Cmd:ps", "set_default_device_pinned_mem_limit 0 100G.")) == (None, {})

    def test_a_daemon_that_is_started_again_has_none_of_them(self) -> None:
        """They live in its memory."""
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


class TestDoubt:
    """An answer settles it, and nothing else."""

    def doubted(self, *seen: Observation) -> frozenset[str]:
        """What is to be asked again."""
        set_by_operator = control_log("Cmd:set_default_device_pinned_mem_limit 0 3G")
        return reduced(*at_work(CLIENT), *set_by_operator, *seen).daemon.default_limits.stale

    def test_an_operators_command_makes_it(self) -> None:
        """Which may have changed the answer."""
        assert self.doubted() == {DEFAULT_MEMORY}

    def test_an_answer_ends_it(self) -> None:
        """Whatever it says."""
        assert not self.doubted(reply(DEFAULT_MEMORY, "what?"))

    @pytest.mark.parametrize("unanswered", [refusal(at=AT + 1), silence(at=AT + 1)], ids=["refused", "silent"])
    def test_no_answer_does_not(self, unanswered: Observation) -> None:
        """It is asked again once the daemon is well."""
        assert self.doubted(replace(unanswered, command=DEFAULT_MEMORY)) == {DEFAULT_MEMORY}  # type: ignore[call-arg]

    @pytest.mark.parametrize("unanswered", [refusal(at=AT + 1), silence(at=AT + 1)], ids=["refused", "silent"])
    def test_a_question_without_an_answer_makes_it(self, unanswered: Observation) -> None:
        """It is not known now, though it was asked; other questions have their own rhythm."""
        assert reduced(*at_work(), replace(unanswered, command=DEFAULT_PRIORITY)).daemon.default_limits.stale == {  # type: ignore[call-arg]
            DEFAULT_PRIORITY
        }
        assert not reduced(*at_work(), unanswered).daemon.default_limits.stale

    def test_nobody_can_make_many(self) -> None:
        """Only about servers that are there, and so many devices as a machine may have."""
        many = [
            f"Cmd:set_device_pinned_mem_limit {pid} {device} 1G" for pid in range(500, 520) for device in range(200)
        ]
        assert len(self.doubted(*control_log(*many))) == 64 + 1

    def test_those_about_a_server_that_has_gone_go_too(self) -> None:
        """With the next doubt."""
        doubted = control_log(f"Cmd:set_active_thread_percentage {SERVER} 1")
        gone = (
            *doubted,
            *control_log(f"Server {SERVER} exited with status 0"),
            *(servers(at=AT + at) for at in (1, 3)),
        )
        assert self.doubted(*gone, *control_log("Cmd:set_default_active_thread_percentage 1")) == {
            DEFAULT_MEMORY,
            "get_default_active_thread_percentage",
        }


class TestDevices:
    """Which GPU an ordinal means."""

    def ordinals(self, *gpus: str, **known: object) -> dict[int, str]:
        """By a daemon of which this is known, on a node with these GPUs."""
        present = reduced(*(gpu_reading(gpu=gpu, index=index) for index, gpu in enumerate(gpus))).node
        daemon = with_fields(node().daemons[DAEMON], **known)
        return dict(gpus_by_ordinal(present, daemon))

    def test_a_lone_gpu_is_the_first(self) -> None:
        """There is no other."""
        assert self.ordinals(GPU) == {0: GPU}

    def test_of_several_none_is_sure(self) -> None:
        """A variable that is not set and one that may not be read look the same."""
        assert self.ordinals(GPU, OTHER_GPU) == {}

    @pytest.mark.parametrize(
        ("visible", "ordinals"),
        [
            ("0,1", {0: GPU, 1: OTHER_GPU}),
            ("1,0", {0: OTHER_GPU, 1: GPU}),
            ("1", {0: OTHER_GPU}),
            (f"{OTHER_GPU},{GPU}", {0: OTHER_GPU, 1: GPU}),
            ("GPU-6edbf013,0", {0: OTHER_GPU, 1: GPU}),
            ("1,-1,0", {0: OTHER_GPU}),
            ("1,7,0", {0: OTHER_GPU}),
            ("1,1,0", {0: OTHER_GPU}),
            ("GPU-,0", {}),
            ("", {}),
        ],
    )
    def test_what_the_daemon_may_see_is_in_order(self, visible: str, ordinals: dict[int, str]) -> None:
        """As CUDA reads it: what names no GPU, or none alone, ends the list."""
        assert self.ordinals(GPU, OTHER_GPU, runtime__visible_devices=visible) == ordinals

    def test_what_the_daemon_told_outweighs_all(self) -> None:
        """It is the daemon's own order."""
        told_by_it = {0: OTHER_GPU, 1: GPU}
        assert self.ordinals(GPU, OTHER_GPU, runtime__visible_devices="0,1", runtime__devices=told_by_it) == told_by_it

    def devices_told(self, stdout: str) -> Daemon:
        """After such an answer."""
        return reduced(*at_work(), reply("device_query --csv", stdout)).daemon

    def test_it_tells_them_in_rows(self) -> None:
        """An ordinal first, a whole UUID somewhere; more columns do no harm."""
        rows = (
            f"Device Ordinal,PCI IDs,UUID,Name\n0,00:00.0,{OTHER_GPU},NVIDIA H200\n1, 00:01.0, {GPU}, NVIDIA H200, x\n"
        )
        assert self.devices_told(rows).runtime.devices == {0: OTHER_GPU, 1: GPU}

    @pytest.mark.parametrize(
        "stdout", ["", 'Unknown command "device_query --csv"', "0,GPU-1efa3f60", f"x,{GPU}", f"0,{GPU},{OTHER_GPU}"]
    )
    def test_what_is_no_row_tells_nothing(self, stdout: str) -> None:
        """Drivers before R590 may not know the command."""
        assert self.devices_told(stdout).runtime.devices == {}
