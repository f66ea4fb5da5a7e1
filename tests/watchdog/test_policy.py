"""The policy of the watchdog that follows from the configuration."""

from dataclasses import replace
from pathlib import Path

from exporter.model.daemon import Daemon, Declaration
from exporter.model.settings import AllowedAction, Mode, Thresholds
from exporter.policy import policy_of
from exporter.watchdog.context import DaemonPolicy, Policy
from tests.config.reading import config, written
from tests.program import constants

FILE = """
[watchdog]
mode = "act"
allow = ["kill_clients", "end_hung_server"]

[[daemons]]
name = "training"
pipe_directory = "/run/a"
log_directory = "/log/a"
restart_command = ["env", "CUDA_VISIBLE_DEVICES=0,1", "EMPTY=", "/opt/wait", "1", "1"]

[[daemons]]
name = "inference"
pipe_directory = "/run/b"
unit = "nvidia-mps@b.service"
watchdog = "observe"
"""


def policy(directory: Path, text: str, *arguments: str) -> Policy:
    return policy_of(config("serve", "--config.file", written(directory, text), *arguments))


def daemon(name: str, *, expected: bool = True) -> Daemon:
    return Daemon(name=name, pipe_directory="/run/a", log_directory="/log/a", declared=Declaration(expected=expected))


def test_the_watchdog_observes_by_default_and_ends_no_client() -> None:
    given = policy_of(config("serve", "--pipe-directory=/run/a"))
    assert (given.mode, given.thresholds, given.thresholds.allow) == (Mode.OBSERVE, Thresholds(), frozenset())
    assert list(given.daemon_policies.values()) == [DaemonPolicy()]


def test_the_policy_has_the_values_of_the_file(tmp_path: Path) -> None:
    given = policy(tmp_path, FILE)
    assert given.thresholds == Thresholds(allow=frozenset({AllowedAction.KILL_CLIENTS, AllowedAction.END_HUNG_SERVER}))
    assert given.daemon_policies == {
        "training": DaemonPolicy(command=("env", "CUDA_VISIBLE_DEVICES=0,1", "EMPTY=", "/opt/wait", "1", "1")),
        "inference": DaemonPolicy(mode=Mode.OBSERVE, unit="nvidia-mps@b.service"),
    }


def test_other_intervals_do_not_change_permissions(tmp_path: Path) -> None:
    read = config("serve", "--config.file", written(tmp_path, FILE))
    given = policy_of(replace(read, constants=constants({"rules": {"restarts": 2}})))
    assert (given.thresholds.restarts, given.thresholds.allow) == (2, read.watchdog_allow)


def test_the_mode_of_a_daemon_overrides_the_general_one(tmp_path: Path) -> None:
    given = policy(tmp_path, FILE)
    assert [given.mode_of(daemon(name)) for name in ("training", "inference", "another")] == ["act", "observe", "act"]
    assert given.mode_of(daemon("another", expected=False)) is Mode.OBSERVE
