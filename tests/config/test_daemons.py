"""Which daemons are watched, and under what names."""

from pathlib import Path

import pytest
from exporter.config.daemon_keys import LONGEST_NAME
from exporter.config.daemons import MOST_DAEMONS

from exporter.config import DaemonConfig
from exporter.errors import ConfigError
from exporter.model.limits import Limits
from tests.config.reading import config, written

TWO = """
[[daemons]]
name = "training"
pipe_directory = "/run/nvidia/mps/training/pipe"
log_directory = "/run/nvidia/mps/training/log"
unit = "nvidia-mps@training.service"
expected = false
clients_limit = 48
active_thread_percentage = 40
pinned_memory_limits = ["0=2G", "1=512M"]
client_priority = 1

[[daemons]]
pipe_directory = "/run/other"
"""
TRAINING = DaemonConfig(
    pipe_directory=Path("/run/nvidia/mps/training/pipe"),
    log_directory=Path("/run/nvidia/mps/training/log"),
    expected=False,
    label="training",
    unit="nvidia-mps@training.service",
    clients_limit=48,
    active_thread_percentage=40.0,
    pinned_memory_limits=((0, 2 << 30), (1, 512 << 20)),
    client_priority=1,
)


def daemons(directory: Path, text: str, *arguments: str, **environment: str) -> tuple[DaemonConfig, ...]:
    return config("serve", "--config.file", written(directory, text), *arguments, **environment).daemons


def test_the_file_names_several(tmp_path: Path) -> None:
    training, other = daemons(tmp_path, TWO)
    assert (training, training.name) == (TRAINING, "training")
    assert (other.name, other.log_directory, other.expected) == ("/run/other", Path("/var/log/nvidia-mps"), True)


def test_the_limits_that_are_to_hold_are_named_each_for_itself(tmp_path: Path) -> None:
    """Where none is named, none is wanted."""
    training, other = daemons(tmp_path, TWO)
    memory = {0: 2 << 30, 1: 512 << 20}
    assert training.limits == Limits(active_thread_percentage=40.0, pinned_memory=memory, client_priority=1)
    assert not other.limits


def test_the_file_outweighs_the_variables_of_mps_itself(tmp_path: Path) -> None:
    """These say which daemon a CUDA process would use; the unit always sets them."""
    variables = {"CUDA_MPS_PIPE_DIRECTORY": "/run/e", "CUDA_MPS_LOG_DIRECTORY": "/log/e"}
    assert daemons(tmp_path, TWO, **variables) == daemons(tmp_path, TWO)
    assert [each.name for each in daemons(tmp_path, "", **variables)] == ["/run/e"]


def test_a_flag_names_one_to_be_watched_alone(tmp_path: Path) -> None:
    (one,) = daemons(tmp_path, TWO, "--pipe-directory", "/run/f", CUDA_MPS_LOG_DIRECTORY="/log/e")
    assert (one.name, one.log_directory, one.expected) == ("/run/f", Path("/log/e"), True)


def test_what_the_file_says_of_the_one_that_a_flag_names_counts(tmp_path: Path) -> None:
    """To look at one of the service's daemons, its pipe directory is enough."""
    pipe = ("--pipe-directory", "/run/nvidia/mps/training/pipe/")
    assert daemons(tmp_path, TWO, *pipe) == (TRAINING,)
    (one,) = daemons(tmp_path, TWO, *pipe, "--log-directory", "/log/f")
    assert (one.name, one.log_directory) == ("training", Path("/log/f"))


def test_a_log_directory_alone_is_ambiguous_where_the_file_names_daemons(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^--log-directory: of which daemon\? .*add --pipe-directory$"):
        daemons(tmp_path, TWO, "--log-directory", "/log/f")


def test_a_relative_variable_is_refused_by_its_name() -> None:
    with pytest.raises(ConfigError, match=r"^CUDA_MPS_LOG_DIRECTORY: 'log' is no absolute path"):
        config("serve", CUDA_MPS_LOG_DIRECTORY="log")


ONE = 'pipe_directory = "/a"\nlog_directory = "/log"\n'
WRONG = (
    ("[daemons]\n" + ONE, ": daemons: begin each daemon with a line"),
    ("daemons = ['/a']", ": daemons: begin each daemon with a line"),
    ("[[daemons]]\nname = 'a'", ": daemons[1]: it has no pipe_directory"),
    ("[[daemons]]\npipe_dir = '/a'", ": daemons[1] 'pipe_dir': unknown key; did you mean pipe_directory?"),
    ("[[daemons]]\npipe_directory = 'a'", ": daemons[1].pipe_directory: 'a' is no absolute path"),
    (f"[[daemons]]\npipe_directory = '/{'x' * 90}'", f": daemons[1].pipe_directory: /{'x' * 90}/control_privileged is"),
    ("[[daemons]]\n" + ONE + "name = ''", ": daemons[1].name: '' is empty"),
    ("[[daemons]]\n" + ONE + 'name = "a\\nb"', ": daemons[1].name: 'a\\nb' is empty, too long, or has characters"),
    ("[[daemons]]\n" + ONE + f"name = '{'n' * (LONGEST_NAME + 1)}'", ": daemons[1].name: 'nnn"),
    ("[[daemons]]\n" + ONE + "unit = 'mps'", ": daemons[1].unit: 'mps' is no service"),
    ("[[daemons]]\n" + ONE + "unit = '-mps.service'", ": daemons[1].unit: '-mps.service' is no service"),
    ("[[daemons]]\n" + ONE + "expected = 1", ": daemons[1].expected: 1 is neither true nor false"),
    ("[[daemons]]\n" + ONE + "clients_limit = 0", ": daemons[1].clients_limit: 0 is not from 1 to 10000"),
    *(
        (
            "[[daemons]]\n" + ONE + f"active_thread_percentage = {wrong}",
            f": daemons[1].active_thread_percentage: {told}",
        )
        for wrong, told in (
            ("0", "0 is not more than 0, and at most 100"),
            ("100.1", "100.1 is not more than 0"),
            ("nan", "nan is not more than 0"),
            ("true", "True is no number"),
            ("'40'", "'40' is no number"),
        )
    ),
    *(
        (
            "[[daemons]]\n" + ONE + f"pinned_memory_limits = [{', '.join(map(repr, wrong))}]",
            f": daemons[1].pinned_memory_limits: {told}",
        )
        for wrong, told in (
            (["2G"], "'2G' is no limit"),
            (["0=2"], "'0=2' is no limit"),
            (["0=2K"], "'0=2K' is no limit"),
            (["0=0G"], "'0=0G' is no limit"),
            (["64=2G"], "'64=2G' is no limit"),
            (["0=999999999999G"], "'0=999999999999G' is no limit"),
            (["0=2G "], "'0=2G ' is no limit"),
            (["0=2G", "0=2G"], "'0=2G' stands there twice"),
            (["0=2G", "1=2G", "0=3G"], "'0=2G' stands there twice"),
            ([], "0 of them"),
        )
    ),
    ("[[daemons]]\n" + ONE + "client_priority = 2", ": daemons[1].client_priority: 2 is not from 0 to 1"),
    ("[[daemons]]\n" + ONE + "watchdog = 'on'", ": daemons[1].watchdog: 'on' is none of observe, act"),
    ("[[daemons]]\n" + ONE + "restart_command = 'mps'", ": daemons[1].restart_command: 'mps' is no list"),
    ("[[daemons]]\n" + ONE + "restart_command = []", ": daemons[1].restart_command: 0 of them; name 1 to 64"),
    ("[[daemons]]\n" + ONE + "restart_command = ['']", ": daemons[1].restart_command: '' is empty"),
    ("[[daemons]]\n" + ONE + "environment = ['A']", ": daemons[1].environment: 'A' is no variable; write it as in"),
    ("[[daemons]]\n" + ONE + "environment = ['A B=1']", ": daemons[1].environment: 'A B=1' is no variable"),
    ("[[daemons]]\n" + ONE + 'environment = ["A=\\n"]', ": daemons[1].environment: 'A=\\n' is empty, too long, or"),
    ("[[daemons]]\n" + ONE + "environment = ['A=1', 'A=2']", ": daemons[1].environment: 'A=1' stands there twice"),
    (
        "[[daemons]]\n" + ONE + "environment = ['CUDA_MPS_PIPE_DIRECTORY=/b']",
        ": daemons[1].environment: CUDA_MPS_PIPE_DIRECTORY is set by pipe_directory; leave it out",
    ),
    (
        "[[daemons]]\n" + ONE + "unit = 'a.service'\nrestart_command = ['a']",
        ": daemons[1]: it has unit and restart_command; who restarts it? leave one out",
    ),
    (
        "[[daemons]]\n" + ONE + "expected = false\nwatchdog = 'act'",
        ": daemons[1]: nothing is ever done for a daemon that is not expected; leave expected out",
    ),
    ("[[daemons]]\n" + ONE + "expected = false\nrestart_command = ['a']", ": daemons[1]: nothing is ever done for"),
    (("[[daemons]]\n" + ONE) * 2, ": daemons: 2 of them have the name '/a'; each needs its own"),
    (
        "[[daemons]]\nname = '/b'\n" + ONE + "[[daemons]]\npipe_directory = '/b'",
        ": daemons: 2 of them have the name '/b'; each needs its own",
    ),
    (
        "[[daemons]]\nname = 'a'\n" + ONE + "[[daemons]]\nname = 'b'\n" + ONE,
        ": daemons: 2 of them have the pipe_directory '/a'; each needs its own",
    ),
    (
        "[[daemons]]\n" + ONE + "[[daemons]]\npipe_directory = '/b'\nlog_directory = '/log'",
        ": daemons: 2 of them have the log_directory '/log'; each needs its own",
    ),
    ("[[daemons]]\n" * (MOST_DAEMONS + 1), f": daemons: {MOST_DAEMONS + 1} of them; at most {MOST_DAEMONS}"),
)


@pytest.mark.parametrize(("text", "problem"), WRONG, ids=[problem[:60] for _, problem in WRONG])
def test_a_daemon_that_cannot_be_used_is_refused_by_its_place(text: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as refused:
        daemons(tmp_path, text)
    assert str(refused.value).startswith(f"{tmp_path}/config.toml{problem}")


def test_those_that_log_to_their_journals_may_leave_the_log_directory_out(tmp_path: Path) -> None:
    text = "".join(f"[[daemons]]\npipe_directory = '/{each}'\nunit = '{each}.service'\n" for each in "ab")
    assert [each.unit for each in daemons(tmp_path, text)] == ["a.service", "b.service"]
