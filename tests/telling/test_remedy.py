"""The commands that end who holds up recovery: for a shell, and safe to copy into one."""

import shlex

import pytest

from exporter.telling.remedy import commands_to_end


def test_mps_is_asked_first_and_the_kernel_only_then() -> None:
    assert commands_to_end(513, 601, "/tmp/nvidia-mps") == (
        'echo "terminate_client 513 601" | CUDA_MPS_PIPE_DIRECTORY=/tmp/nvidia-mps nvidia-cuda-mps-control',
        "kill -KILL 601",
    )


@pytest.mark.parametrize("directory", ["/tmp/a b", "/tmp/$(reboot)", "/tmp/`reboot`", "/tmp/a'; reboot; '", "/tmp/a;b"])
def test_a_directory_s_name_is_one_word_to_the_shell(directory: str) -> None:
    asking, _ = commands_to_end(513, 601, directory)

    assert f"CUDA_MPS_PIPE_DIRECTORY={directory}" in shlex.split(asking)


@pytest.mark.parametrize("directory", [None, "/tmp/a\nreboot", "/tmp/\x1b[2J", "/tmp/\u202ecod", "/tmp/\udcff"])
def test_where_the_daemon_cannot_be_named_it_is_not_asked(directory: str | None) -> None:
    assert commands_to_end(513, 601, directory) == ("kill -KILL 601",)


@pytest.mark.parametrize("pid", [-601, -1, 0, 1])
def test_who_has_no_pid_here_is_not_killed_nor_is_a_group_of_processes(pid: int) -> None:
    assert commands_to_end(513, pid, "/tmp/nvidia-mps") == ()


def test_a_server_that_has_none_cannot_be_told_to() -> None:
    assert commands_to_end(-513, 601, "/tmp/nvidia-mps") == ("kill -KILL 601",)
