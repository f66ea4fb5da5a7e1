"""One exporter at a time acts for a daemon: the lock, in whatever directories two exporters share."""

import errno
import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exporter.actions.locks import ActLocks, LockFile
from exporter.model.watchdog import BlockReason
from tests.conftest import Starter
from tests.eventually import until
from tests.tools import not_here

WANTED = {"training": "/run/nvidia/mps/training/pipe"}
HELD = {"training": None}
TAKEN = {"training": BlockReason.ANOTHER_EXPORTER}
HOLDER = """
import sys
from pathlib import Path
from exporter.actions.locks import ActLocks
locks = ActLocks([Path(sys.argv[1])])
locks.open({"training": sys.argv[2]})
print(locks.found, flush=True)
input()
"""


@pytest.fixture
def made() -> Iterator[list[ActLocks]]:
    found: list[ActLocks] = []
    yield found
    for each in found:
        each.close()


def locks(made: list[ActLocks], *directories: Path, wanted: dict[str, str] | None = None) -> ActLocks:
    made.append(ActLocks(directories, retry=0.01))
    made[-1].open(WANTED if wanted is None else wanted)
    return made[-1]


def comes_to(of: ActLocks, found: dict[str, BlockReason | None]) -> None:
    until(lambda: of.found == found)


def test_the_second_exporter_does_not_get_the_lock(made: list[ActLocks], tmp_path: Path) -> None:
    assert locks(made, tmp_path).found == HELD
    assert locks(made, tmp_path).found == TAKEN


def test_one_shared_directory_is_enough(made: list[ActLocks], tmp_path: Path) -> None:
    """Be it the runtime directory or the lock directory."""
    one, other, shared = (tmp_path / name for name in ("one", "other", "a-shared"))
    assert locks(made, one, shared).found == HELD
    assert locks(made, shared, other).found == TAKEN
    assert locks(made, one, other).found == TAKEN
    assert locks(made, other).found == HELD


def test_the_second_exporter_takes_over_when_the_first_releases_the_lock(made: list[ActLocks], tmp_path: Path) -> None:
    first, second = locks(made, tmp_path), locks(made, tmp_path)
    first.close()
    comes_to(second, {"training": None})


def test_the_kernel_releases_the_lock_of_a_killed_exporter(
    made: list[ActLocks], tmp_path: Path, start: Starter
) -> None:
    command = [sys.executable, "-c", HOLDER, str(tmp_path), WANTED["training"]]
    first = start(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert first.stdout is not None
    assert first.stdout.readline() == b"{'training': None}\n"
    first.stdout.close()
    second = locks(made, tmp_path)
    assert second.found == TAKEN

    first.kill()
    comes_to(second, {"training": None})


def test_exporters_of_different_daemons_do_not_exclude_each_other(made: list[ActLocks], tmp_path: Path) -> None:
    assert locks(made, tmp_path).found == HELD
    assert locks(made, tmp_path, wanted={"training": "/run/other"}).found == HELD


def test_the_daemon_is_known_by_its_directory_and_not_by_its_name(made: list[ActLocks], tmp_path: Path) -> None:
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    pipe.mkdir()
    link.symlink_to(pipe)
    assert locks(made, tmp_path / "locks", wanted={"a": str(pipe)}).found == {"a": None}
    assert locks(made, tmp_path / "locks", wanted={"b": str(link)}).found == {"b": BlockReason.ANOTHER_EXPORTER}


def test_a_lock_that_is_no_longer_wanted_is_released(made: list[ActLocks], tmp_path: Path) -> None:
    first, second = locks(made, tmp_path), locks(made, tmp_path)
    first.want({})
    comes_to(second, {"training": None})
    comes_to(first, {})


def test_a_lock_that_is_wanted_later_is_taken(made: list[ActLocks], tmp_path: Path) -> None:
    late = locks(made, tmp_path, wanted={})
    late.want(WANTED)
    comes_to(late, {"training": None})


def test_a_removed_lock_file_locks_nothing(made: list[ActLocks], tmp_path: Path) -> None:
    """As when systemd removes the runtime directory of a service: one of the two holds the new file."""
    first, second = locks(made, tmp_path), locks(made, tmp_path)
    for _ in range(20):
        for file in tmp_path.glob("*.lock"):
            file.unlink()

    until(lambda: sorted(map(str, (first.found["training"], second.found["training"]))) == ["None", "another_exporter"])


def test_without_a_usable_directory_there_is_no_lock(made: list[ActLocks], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert locks(made, tmp_path / "file").found == {"training": BlockReason.NO_LOCK}
    assert locks(made, tmp_path / "missing" / "locks").found == {"training": BlockReason.NO_LOCK}


def test_a_lock_that_the_kernel_refuses_leaves_no_descriptor_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS without its lock daemon answers ENOLCK; the attempt is repeated every second."""

    def refuse(_descriptor: int, _how: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    lock = LockFile(tmp_path / "act.lock")
    assert [lock.take() for _ in range(3)] == [BlockReason.NO_LOCK] * 3
    assert not [each for each in Path("/proc/self/fd").iterdir() if os.path.realpath(each).startswith(str(tmp_path))]


def test_a_lock_file_that_cannot_be_opened_now_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process has a lease on the file (fcntl(2), F_SETLEASE)."""

    def is_leased(*_: object) -> int:
        raise BlockingIOError(errno.EWOULDBLOCK, "Resource temporarily unavailable")

    monkeypatch.setattr(os, "open", is_leased)
    assert LockFile(tmp_path / "act.lock").take() is BlockReason.NO_LOCK


def test_one_usable_directory_of_two_is_enough(made: list[ActLocks], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert locks(made, tmp_path / "file", tmp_path).found == HELD


@pytest.mark.parametrize("mode", [0o777, 0o1777, 0o775])
def test_a_directory_that_other_users_can_write_to_is_not_used(made: list[ActLocks], tmp_path: Path, mode: int) -> None:
    """They could make the file first, and hold it."""
    tmp_path.chmod(mode)
    assert locks(made, tmp_path).found == {"training": BlockReason.NO_LOCK}
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("mode", "found", "after"), [
    (0o777, None, 0o755),
    (0o1777, BlockReason.NO_LOCK, 0o1777),
])  # fmt: skip
def test_an_own_volume_that_the_kubelet_lets_all_users_write_to_is_closed_to_them(
    made: list[ActLocks],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: int,
    found: BlockReason | None,
    after: int,
) -> None:
    """An emptyDir has 0777. A mounted /tmp stays as it is."""
    monkeypatch.setattr(Path, "is_mount", lambda _: True)
    tmp_path.chmod(mode)
    assert locks(made, tmp_path).found == {"training": found}
    assert tmp_path.stat().st_mode & 0o7777 == after


def test_a_link_in_place_of_the_file_is_not_followed(made: list[ActLocks], tmp_path: Path) -> None:
    first = locks(made, tmp_path)
    (file,) = tmp_path.glob("*.lock")
    first.close()
    file.symlink_to(tmp_path / "target")

    assert locks(made, tmp_path).found == {"training": BlockReason.NO_LOCK}
    assert not (tmp_path / "target").exists()


def test_other_users_cannot_open_the_file(made: list[ActLocks], tmp_path: Path) -> None:
    locks(made, tmp_path)
    (file,) = tmp_path.glob("*.lock")
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_file_that_root_made_belongs_to_the_owner_of_the_directory(made: list[ActLocks], tmp_path: Path) -> None:
    """The service's own user must be able to take the lock after root."""
    if os.geteuid() != 0:
        not_here("only root can give a file to another user")
    os.chown(tmp_path, 65534, 65534)
    locks(made, tmp_path)
    (file,) = tmp_path.glob("*.lock")
    assert (file.stat().st_uid, file.stat().st_gid) == (65534, 65534)
