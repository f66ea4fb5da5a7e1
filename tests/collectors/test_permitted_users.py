"""Users who may run an expected daemon. Any user can create a missing directory in /tmp."""

import os
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.collectors.daemon_processes import foreign_listener, foreign_user, may_run
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from tests.tools import not_here

TENANT, OTHER = 65534, 1001


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """A pipe directory in a directory to which only root and the test can write."""
    made = tmp_path / "pipe"
    made.mkdir()
    return made


def location(pipe: Path, owner: int | None = None, *, expected: bool = True) -> DaemonLocation:
    return replace(on_host("training", pipe, pipe), expected=expected, owner=owner)


def test_root_and_the_exporters_own_user_may_run_any_daemon(pipe: Path) -> None:
    assert may_run(location(pipe, OTHER), 0)
    assert may_run(location(pipe), os.geteuid())


def test_only_the_configured_user_may_run_an_expected_daemon(pipe: Path) -> None:
    assert may_run(location(pipe, TENANT), TENANT)
    assert not may_run(location(pipe, OTHER), TENANT)
    assert not may_run(location(pipe), TENANT)


def test_any_user_may_run_a_daemon_that_is_not_expected(pipe: Path) -> None:
    assert may_run(location(pipe, expected=False), TENANT)


@pytest.fixture
def home() -> Iterator[Path]:
    """A directory that root created for one user, below directories to which only root can write."""
    if os.geteuid() != 0:
        not_here("only root can give a directory to another user")
    with tempfile.TemporaryDirectory(prefix="made-for-a-test-", dir="/") as directory:
        made = Path(directory)
        (made / "mps").mkdir()
        os.chown(made, OTHER, OTHER)
        yield made


def test_a_user_to_whom_root_gave_the_directory_may_run_a_daemon_there(home: Path) -> None:
    assert may_run(location(home / "mps"), OTHER)
    assert not may_run(location(home / "mps"), TENANT)


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_no_user_may_run_a_daemon_where_other_users_can_write(home: Path, mode: int) -> None:
    home.chmod(mode)
    assert not may_run(location(home / "mps"), OTHER)


def test_no_user_may_run_a_daemon_behind_a_link_to_a_shared_directory(home: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o1777)
    (tmp_path / "pipe").mkdir()
    (home / "link").symlink_to(tmp_path / "pipe")
    try:
        assert not may_run(location(home / "link"), OTHER)
    finally:
        (home / "link").unlink()


def test_returns_the_owner_of_directory_or_socket_who_may_not_run_the_daemon(pipe: Path) -> None:
    if os.geteuid() != 0:
        not_here("only root can give a file to another user")
    assert (foreign_user(location(pipe)), foreign_listener(location(pipe))) == (None, None)

    (pipe / "control").touch()
    os.chown(pipe / "control", TENANT, TENANT)
    assert (foreign_user(location(pipe)), foreign_listener(location(pipe))) == (TENANT, TENANT)
    assert foreign_listener(location(pipe, expected=False)) is None
    assert foreign_listener(location(pipe, TENANT)) is None

    (pipe / "control").unlink()
    os.chown(pipe, TENANT, TENANT)
    assert (foreign_user(location(pipe)), foreign_listener(location(pipe))) == (TENANT, None)


def test_a_missing_directory_has_no_foreign_owner(tmp_path: Path) -> None:
    assert foreign_user(location(tmp_path / "missing")) is None
