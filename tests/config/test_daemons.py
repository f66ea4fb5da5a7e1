"""The configured daemons and their names."""

from pathlib import Path

import pytest

from exporter.config.load import MAX_DAEMONS
from exporter.config.settings import DaemonConfig
from exporter.errors import ConfigError
from exporter.model.settings import Limits
from tests.config.reading import config, written

TWO = """
[[daemons]]
name = "training"
pipe_directory = "/run/nvidia/mps/training/pipe"
log_directory = "/run/nvidia/mps/training/log"
unit = "nvidia-mps@training.service"
active_thread_percentage = 40
pinned_memory_limits = ["0=2G", "1=512M"]

[[daemons]]
pipe_directory = "/run/other"
"""
TRAINING = DaemonConfig(
    pipe_directory=Path("/run/nvidia/mps/training/pipe"),
    log_directory=Path("/run/nvidia/mps/training/log"),
    label="training",
    unit="nvidia-mps@training.service",
    active_thread_percentage=40.0,
    pinned_memory_limits=((0, 2 << 30), (1, 512 << 20)),
)


def daemons(directory: Path, text: str, *arguments: str, **environment: str) -> tuple[DaemonConfig, ...]:
    return config("serve", "--config.file", written(directory, text), *arguments, **environment).daemons


def test_without_options_the_exporter_discovers_the_daemons() -> None:
    """The variable of the log directory alone declares none."""
    assert config("serve").daemons == config("serve", CUDA_MPS_LOG_DIRECTORY="/log").daemons == ()


def test_flags_override_the_variables_of_mps(subtests: pytest.Subtests) -> None:
    variables = {"CUDA_MPS_PIPE_DIRECTORY": "/run/e", "CUDA_MPS_LOG_DIRECTORY": "/log/e"}
    flags = ("--pipe-directory=/run/f", "--log-directory=/log/f")
    for given, environment, expected in (
        (flags, {}, ("/run/f", "/log/f")),
        ((), variables, ("/run/e", "/log/e")),
        (flags[:1], variables, ("/run/f", "/log/e")),
        (flags[1:], {}, ("/tmp/nvidia-mps", "/log/f")),
        (flags[:1], {}, ("/run/f", "/var/log/nvidia-mps")),
    ):
        with subtests.test(flags=given, environment=environment):
            (daemon,) = config("serve", *given, **environment).daemons
            assert (daemon.name, str(daemon.log_directory)) == expected


def test_the_file_names_several_daemons(tmp_path: Path) -> None:
    training, other = daemons(tmp_path, TWO)
    assert (training, training.name) == (TRAINING, "training")
    assert training.limits == Limits(active_thread_percentage=40.0, pinned_memory={0: 2 << 30, 1: 512 << 20})
    assert (other.name, other.log_directory) == ("/run/other", Path("/var/log/nvidia-mps"))
    assert not other.limits, "a limit that the file does not name is not enforced"


def test_the_file_overrides_the_variables_of_mps(tmp_path: Path) -> None:
    """They select the daemon of a CUDA process, and the unit always sets them."""
    variables = {"CUDA_MPS_PIPE_DIRECTORY": "/run/e", "CUDA_MPS_LOG_DIRECTORY": "/log/e"}
    assert daemons(tmp_path, TWO, **variables) == daemons(tmp_path, TWO)
    assert [each.name for each in daemons(tmp_path, "", **variables)] == ["/run/e"]


def test_the_files_keys_apply_to_the_daemon_of_a_flag(tmp_path: Path) -> None:
    """The pipe directory is enough to select one of the service's daemons, or another."""
    pipe = ("--pipe-directory", "/run/nvidia/mps/training/pipe/")
    assert daemons(tmp_path, TWO, *pipe) == (TRAINING,)
    (one,) = daemons(tmp_path, TWO, *pipe, "--log-directory", "/log/f")
    assert (one.name, one.log_directory) == ("training", Path("/log/f"))
    (one,) = daemons(tmp_path, TWO, "--pipe-directory", "/run/f", CUDA_MPS_LOG_DIRECTORY="/log/e")
    assert (one.name, one.log_directory) == ("/run/f", Path("/log/e"))


def test_a_log_directory_flag_is_ambiguous_if_the_file_names_daemons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--log-directory: .* names daemons; add --pipe-directory$"):
        daemons(tmp_path, TWO, "--log-directory", "/log/f")


def test_refuses_a_relative_variable_and_names_it() -> None:
    with pytest.raises(ConfigError, match=r"^CUDA_MPS_LOG_DIRECTORY: invalid value 'log': expected an absolute path"):
        config("serve", CUDA_MPS_LOG_DIRECTORY="log")


ONE = 'pipe_directory = "/a"\nlog_directory = "/log"\n'
HEAD = "[[daemons]]\n" + ONE
WRONG = (
    ("[daemons]\n" + ONE, "daemons: begin each daemon with a line"),
    ("daemons = ['/a']", "daemons: begin each daemon with a line"),
    ("[[daemons]]\nname = 'a'", "daemons[1]: pipe_directory is missing; add it"),
    ("[[daemons]]\npipe_dir = '/a'", "daemons[1]: unknown key 'pipe_dir'; did you mean pipe_directory?"),
    (HEAD + "level = 'info'", "daemons[1]: unknown key 'level'; it belongs to [log]"),
    (HEAD + "unit = 'a.service'\nrestart_command = ['a']", "daemons[1]: unit and restart_command exclude each other;"),
    (HEAD * 2, "daemons: 2 daemons have the name '/a'; each needs its own"),
    (f"{HEAD}name = '/b'\n[[daemons]]\npipe_directory = '/b'", "daemons: 2 daemons have the name '/b'; each needs"),
    (f"{HEAD}name = 'a'\n{HEAD}name = 'b'", "daemons: 2 daemons have the pipe_directory '/a'; each needs its own"),
    (f"{HEAD}[[daemons]]\npipe_directory = '/b'\nlog_directory = '/log'", "daemons: 2 daemons have the log_directory"),
    ("[[daemons]]\n" * (MAX_DAEMONS + 1), f"daemons: {MAX_DAEMONS + 1} daemons; at most {MAX_DAEMONS}"),
)


def test_refuses_an_unusable_daemon_and_names_its_place(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for text, problem in WRONG:
        with subtests.test(problem=problem):
            with pytest.raises(ConfigError) as refused:
                daemons(tmp_path, text)
            assert str(refused.value).startswith(f"{tmp_path}/config.toml: {problem}")


def test_a_user_is_a_name_or_a_number(subtests: pytest.Subtests, tmp_path: Path) -> None:
    for user, uid in {"'root'": 0, "'0'": 0, "1000": 1000}.items():
        with subtests.test(user=user):
            assert daemons(tmp_path, f"{HEAD}user = {user}")[0].owner == uid


def test_daemons_that_log_to_the_journal_need_no_log_directory(tmp_path: Path) -> None:
    text = "".join(f"[[daemons]]\npipe_directory = '/{each}'\nunit = '{each}.service'\n" for each in "ab")
    assert [each.unit for each in daemons(tmp_path, text)] == ["a.service", "b.service"]
