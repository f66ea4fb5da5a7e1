"""The commands that end who holds up recovery: for a shell, and safe to copy into one."""

import shlex

import pytest

from exporter.telling.remedy import command_to_end, command_to_end_server


def test_a_client_is_ended_by_the_kernel_and_mps_is_not_asked_which_would_hang() -> None:
    assert command_to_end(601) == "kill -KILL 601"


@pytest.mark.parametrize("pid", [-601, -1, 0, 1])
def test_who_has_no_pid_here_is_not_killed_nor_is_a_group_of_processes(pid: int) -> None:
    assert command_to_end(pid) is None


@pytest.mark.parametrize("directory", ["/tmp/a b", "/tmp/$(reboot)", "/tmp/`reboot`", "/tmp/a'; reboot; '", "/tmp/a;b"])
def test_a_directory_s_name_is_one_word_to_the_shell(directory: str) -> None:
    assert f"CUDA_MPS_PIPE_DIRECTORY={directory}" in shlex.split(command_to_end_server(513, directory) or "")


@pytest.mark.parametrize("directory", [None, "/tmp/a\nreboot", "/tmp/\x1b[2J", "/tmp/\u202ecod", "/tmp/\udcff"])
def test_where_the_daemon_cannot_be_named_it_is_not_asked(directory: str | None) -> None:
    assert command_to_end_server(513, directory) is None


def test_a_server_that_has_no_pid_here_cannot_be_named_to_its_daemon() -> None:
    assert command_to_end_server(-513, "/tmp/nvidia-mps") is None
