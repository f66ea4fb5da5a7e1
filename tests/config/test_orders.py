"""The watchdog's orders, as the configuration gives them."""

from dataclasses import replace
from pathlib import Path

import pytest
from exporter.config.orders import orders_of

from exporter.config import as_toml
from exporter.core.watchdog.orders import Mandate, Orders
from exporter.errors import ConfigError
from exporter.model.daemon import Daemon
from exporter.model.settings import Mode, Rules
from tests.config.reading import config, written

FILE = """
[watchdog]
mode = "act"
restarts = 2
hung_after_seconds = 120

[[daemons]]
name = "training"
pipe_directory = "/run/a"
log_directory = "/log/a"
restart_command = ["/opt/wait", "1", "1"]
environment = ["CUDA_VISIBLE_DEVICES=0,1", "EMPTY=", "A=b=c"]

[[daemons]]
name = "inference"
pipe_directory = "/run/b"
unit = "nvidia-mps@b.service"
watchdog = "observe"
"""


def orders(directory: Path, text: str, *arguments: str) -> Orders:
    return orders_of(config("serve", "--config.file", written(directory, text), *arguments))


def daemon(name: str, *, expected: bool = True) -> Daemon:
    return Daemon(name=name, pipe_directory="/run/a", log_directory="/log/a", expected=expected)


def test_where_nobody_says_anything_it_observes() -> None:
    given = orders_of(config("serve", "--no-discovery"))
    assert (given.mode, given.rules) == (Mode.OBSERVE, Rules())
    assert list(given.mandates.values()) == [Mandate()]


def test_the_rules_and_the_mandates_are_those_of_the_file(tmp_path: Path) -> None:
    given = orders(tmp_path, FILE)
    assert given.rules == replace(Rules(), restarts=2, hung_after=120.0)
    assert given.mandates == {
        "training": Mandate(
            command=("/opt/wait", "1", "1"),
            environment={"CUDA_VISIBLE_DEVICES": "0,1", "EMPTY": "", "A": "b=c"},
        ),
        "inference": Mandate(mode=Mode.OBSERVE, unit="nvidia-mps@b.service"),
    }


def test_what_a_daemon_says_outweighs_the_general_mode(tmp_path: Path) -> None:
    given = orders(tmp_path, FILE)
    assert [given.mode_of(daemon(name)) for name in ("training", "inference", "another")] == ["act", "observe", "act"]
    assert given.mode_of(daemon("another", expected=False)) is Mode.OBSERVE


def test_a_mandate_is_printed_as_it_is_read(tmp_path: Path) -> None:
    read = config("serve", "--config.file", written(tmp_path, FILE))
    assert config("serve", "--config.file", written(tmp_path, as_toml(read), "again.toml")) == read


def test_the_longest_backoff_is_not_the_shortest() -> None:
    with pytest.raises(ConfigError, match=r"^watchdog.longest_backoff_seconds: 1 is less than"):
        config("serve", "--watchdog.backoff=2s", "--watchdog.longest-backoff=1s")


@pytest.mark.parametrize("flag", ["--watchdog.hung-after=1s", "--watchdog.restarts=0", "--watchdog.window=0s"])
def test_what_would_kill_the_merely_slow_or_never_end_is_refused(flag: str) -> None:
    with pytest.raises(ConfigError):
        config("serve", flag)
