"""Finder finds the daemons that run, wherever they are, and is not led by those who would be taken for one."""

import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import discovery
from exporter.collectors.control_daemons import ControlDaemons
from exporter.collectors.discovery import Discovery
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.model.daemon import FORGOTTEN_SECONDS, NamedBy
from exporter.model.observation import DaemonFound
from exporter.model.problem import Problem, ProblemCode
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.containers import Container
from tests.standin.mps import MpsStandIn, is_alive, wait_until
from tests.tools import not_here

NOBODY = 65534


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., "Looking"]:
    """Makes a finder that tells only of daemons below the test's directory: others may run on this machine."""
    return lambda *given, patterns=(), clock=None: Looking(tmp_path, given, patterns, clock or HandClock())


class Looking:
    """A finder, and what it finds in a test's directory."""

    def __init__(
        self, directory: Path, given: Sequence[DaemonLocation], patterns: Sequence[str], clock: HandClock
    ) -> None:
        self.discovery = Discovery(patterns=patterns, proc=Path("/proc"), clock=clock)
        self.discovery.set_named(given)
        self.clock = clock
        self._directory = str(directory)

    def collect(self) -> list[DaemonFound]:
        """What is new."""
        self.clock.time += 10
        seen = self.discovery.collect().observations
        return [each for each in seen if isinstance(each, DaemonFound) and self._directory in each.pipe_directory]

    @property
    def locations(self) -> dict[str, DaemonLocation]:
        """Where the daemons are."""
        return {
            name: location
            for name, location in self.discovery.locations.items()
            if str(location.pipe.path).startswith(self._directory)
        }


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[MpsStandIn, MpsStandIn]]:
    with MpsStandIn(tmp_path / "a") as one, MpsStandIn(tmp_path / "b") as other:
        one.start()
        other.start(foreground=True)
        yield one, other


# -- on the host ---------------------------------------------------------------------------------------------------


def test_daemons_that_run_are_found_with_nothing_given(
    make: Callable[..., Looking], two: tuple[MpsStandIn, MpsStandIn]
) -> None:
    looking = make()

    found = looking.collect()

    assert {(each.daemon, each.log_directory, each.expected) for each in found} == {
        (str(mps.pipe_directory), str(mps.log_directory), None) for mps in two
    }
    for mps in two:
        location = looking.locations[str(mps.pipe_directory)]
        assert location.process is not None
        assert location.process[0] == mps.pid
        assert (location.pipe.root, location.log.root, location.namespace) == (None, None, None)


def test_what_was_told_is_told_again_only_when_it_changes(make: Callable[..., Looking], mps: MpsStandIn) -> None:
    mps.start()
    looking = make()
    assert len(looking.collect()) == 1
    assert looking.collect() == []

    mps.kill()
    assert looking.collect() == []
    mps.log_directory = mps.log_directory.with_name("elsewhere")
    mps.start()

    assert [each.log_directory for each in looking.collect()] == [str(mps.log_directory)]


def test_a_daemon_that_was_given_keeps_its_name_and_directories(
    make: Callable[..., Looking], mps: MpsStandIn, tmp_path: Path
) -> None:
    mps.start()
    (tmp_path / "link").symlink_to(mps.pipe_directory)
    looking = make(on_host("night", tmp_path / "link", tmp_path / "logs"))

    (found,) = looking.collect()

    assert (found.daemon, found.pipe_directory, found.log_directory, found.expected) == (
        "night", str(tmp_path / "link"), str(tmp_path / "logs"), None
    )  # fmt: skip
    assert list(looking.locations) == ["night"]
    assert looking.locations["night"].process is not None


def test_a_given_place_is_one_before_any_daemon_is_there(make: Callable[..., Looking], tmp_path: Path) -> None:
    looking = make(on_host("night", tmp_path / "pipe", tmp_path / "log"))

    assert [each.daemon for each in looking.collect()] == ["night"]
    assert looking.locations["night"].process is None


def test_a_daemon_that_has_gone_is_forgotten_after_a_while(make: Callable[..., Looking], mps: MpsStandIn) -> None:
    mps.start()
    looking = make()
    looking.collect()
    mps.kill()

    looking.collect()
    assert len(looking.locations) == 1
    looking.clock.time += FORGOTTEN_SECONDS
    looking.collect()

    assert looking.locations == {}


def test_neither_a_server_nor_a_command_is_a_daemon(make: Callable[..., Looking], mps: MpsStandIn) -> None:
    mps.start()
    mps.connect_and_wait(5_000_000)
    with mps.held_session():
        looking = make()
        looking.collect()
        (location,) = looking.locations.values()

        assert location.process is not None
        assert location.process[0] == mps.pid


def test_who_only_starts_a_daemon_over_anothers_remains_is_not_taken_for_it(
    make: Callable[..., Looking], mps: MpsStandIn, start: Starter
) -> None:
    """Its end would be told as a daemon's loss."""
    mps.start()
    mps.kill()
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory)}
    starting = start(imitation(["-d"]), env=variables, **SHELL)
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: starting.pid in [each.pid for each in daemons.all()], "the imitation")
    looking = make()

    assert looking.collect() == []
    assert [each.daemon for each in looking.collect()] == [str(mps.pipe_directory)]


@pytest.mark.parametrize(
    ("arguments", "variables", "protocol"),
    [
        (["-d"], {}, 2),
        (["-d", "-p", "3"], {}, 3),
        (["-d", "--protocol=3"], {}, 3),
        (["-f", "--protocol", "3"], {"CUDA_MPS_PROTOCOL_VERSION": "2"}, 2),
        (["-f"], {"CUDA_MPS_PROTOCOL_VERSION": "x"}, 2),
        (["-d", "-p"], {}, 2),
    ],
)
def test_a_daemon_says_how_it_was_started(
    start: Starter, arguments: list[str], variables: dict[str, str], protocol: int
) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/x", "SECRET": "x", **variables}
    pid = start(imitation(arguments), **SHELL, env=environment).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))

    wait_until(lambda: pid in [each.pid for each in daemons.all()], "the imitation")
    (daemon,) = [each for each in daemons.all() if each.pid == pid]

    assert (daemon.protocol, daemon.observation("x").foreground) == (protocol, "-f" in arguments)
    assert daemon.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/x", **variables}


def test_a_program_that_is_just_beginning_is_met_once_it_has(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the midst of an exec its name is there, and neither arguments nor environment."""
    pid = start(imitation(["-d"]), **SHELL, env={"CUDA_MPS_PIPE_DIRECTORY": "/x"}).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    with monkeypatch.context() as beginning:
        beginning.setattr(Proc, "arguments", lambda *_: ())
        beginning.setattr(Proc, "variables", lambda *_: {})
        wait_until(lambda: Proc(Path("/proc"), SystemClock()).name(pid) == "nvidia-cuda-mps", "the imitation")
        assert pid not in [each.pid for each in (*daemons.all(), *daemons.sessions())]

    (daemon,) = [each for each in daemons.all() if each.pid == pid]

    assert daemon.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/x"}


@pytest.mark.parametrize(("name", "kept"), [("stdout.log", True), ("mps.log", False)])
def test_a_daemon_whose_stdout_is_a_log_is_told_of_so(start: Starter, tmp_path: Path, name: str, kept: bool) -> None:
    with (tmp_path / name).open("ab") as file:
        pid = start(imitation(["-f"]), **SHELL, env={}, stdout=file).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))

    wait_until(lambda: pid in [each.pid for each in daemons.all()], "the imitation")

    assert [each.observation("x").stdout_in_file for each in daemons.all() if each.pid == pid] == [kept]


def imitation(arguments: Sequence[str]) -> list[str]:
    """A process that is called like a control daemon; to be run by a shell that has something to read."""
    return ["nvidia-cuda-mps-control", "-c", "printf nvidia-cuda-mps > /proc/$$/comm; read _", *arguments]


SHELL = {"executable": "/bin/sh", "stdin": subprocess.PIPE}


# -- by directories ------------------------------------------------------------------------------------------------


def test_a_directory_that_a_pattern_names_is_known_by_that_path(make: Callable[..., Looking], tmp_path: Path) -> None:
    with MpsStandIn(tmp_path / "nvidia.com" / "gpu.shared") as mps:
        mps.start()
        looking = make(patterns=[f"{tmp_path}/*/*/pipe"])

        assert [each.daemon for each in looking.collect()] == [str(mps.pipe_directory)]


@pytest.mark.parametrize("resource", ["gpu", "gpu.shared"])
def test_a_daemon_of_the_device_plugin_is_expected_from_its_start_to_its_stop(
    make: Callable[..., Looking], tmp_path: Path, resource: str
) -> None:
    """Whatever the resource is called, and whichever is installed first."""
    looking = make(patterns=[f"{tmp_path}/*/*/pipe"])
    assert looking.collect() == []

    with MpsStandIn(tmp_path / "nvidia.com" / resource) as mps:
        mps.start()
        started = mps.pipe_directory.with_name(".started")
        started.touch()
        assert replace(looking.collect()[-1], at=0.0) == DaemonFound(
            at=0.0,
            daemon=str(mps.pipe_directory),
            pipe_directory=str(mps.pipe_directory),
            log_directory=str(mps.log_directory),
            expected=True,
            by=NamedBy.DEVICE_PLUGIN,
        )

        mps.kill()
        assert [each.expected for each in looking.collect()] == [True]

        started.unlink()
        assert [each.expected for each in looking.collect()] == [False]
        assert looking.collect() == []


def test_nothing_is_expected_in_a_directory_without_a_daemon_that_the_plugin_started(
    make: Callable[..., Looking], tmp_path: Path
) -> None:
    (tmp_path / "nvidia.com" / "gpu" / "pipe").mkdir(parents=True)
    assert make(patterns=[f"{tmp_path}/*/*/pipe"]).collect() == []


def test_another_user_cannot_declare_a_daemon(make: Callable[..., Looking], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    directory = tmp_path / "nvidia.com" / "gpu"
    (directory / "pipe").mkdir(parents=True)
    (directory / ".started").touch()
    os.chown(directory / ".started", NOBODY, NOBODY)
    (tmp_path / "nvidia.com" / "link" / "pipe").mkdir(parents=True)
    (tmp_path / "nvidia.com" / "link" / ".started").symlink_to("/etc/passwd")
    assert make(patterns=[f"{tmp_path}/*/*/pipe"]).collect() == []


def test_without_the_right_to_look_into_a_daemon_its_pid_file_says_where_it_is(
    make: Callable[..., Looking], mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "variables", lambda *_: None)
    mps.start()

    looking = make(patterns=[f"{mps.pipe_directory.parent}/*"])

    assert [(each.daemon, each.log_directory) for each in looking.collect()] == [
        (str(mps.pipe_directory), str(mps.log_directory))
    ]
    (location,) = looking.locations.values()
    assert location.process is not None
    unseen = ControlDaemons(Proc(Path("/proc"), SystemClock())).at(location.process[0])
    assert unseen is not None
    assert (unseen.protocol, unseen.observation("x").foreground) == (None, False)
    problem = Discovery(patterns=(), proc=Path("/proc"), clock=HandClock()).collect().problem
    assert problem is not None
    assert problem.code is ProblemCode.PROCESS_NOT_READABLE


def pids_of(problem: Problem | None) -> list[int | None]:
    """The processes of which a problem speaks."""
    return [] if problem is None else [each.pid for each in problem.each]


def test_where_the_kernel_has_no_way_below_another_root_it_is_said(
    mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Linux 5.5, and under systemd's RestrictSUIDSGID=."""
    monkeypatch.setattr("exporter.collectors.pipe_dir.OPENAT2", 9999)
    mps.start()

    reading = Discovery(patterns=(), proc=Path("/proc"), clock=HandClock()).collect()

    assert reading.observations == ()
    assert reading.problem is not None
    assert Problem(code=ProblemCode.NOT_SUPPORTED, subject="openat2(2)", pid=mps.pid) in reading.problem.each

    beside = Discovery(patterns=[f"{mps.pipe_directory.parent}/*"], proc=Path("/proc"), clock=HandClock())
    assert [each.daemon for each in beside.collect().observations] == [str(mps.pipe_directory)]
    assert mps.pid not in pids_of(beside.collect().problem)


def test_a_directory_without_a_daemon_is_no_daemon(make: Callable[..., Looking], tmp_path: Path) -> None:
    planted = tmp_path / "nvidia-mps-evil"
    planted.mkdir()
    listeners = [bound(planted / name) for name in ("control", "control_privileged")]
    (planted / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))

    assert make(patterns=[f"{tmp_path}/nvidia-mps*"]).collect() == []
    for listener in listeners:
        listener.close()


def test_a_link_to_a_daemons_directory_is_not_another_daemon(
    make: Callable[..., Looking], mps: MpsStandIn, tmp_path: Path
) -> None:
    mps.start()
    (tmp_path / "nvidia-mps-link").symlink_to(mps.pipe_directory)

    assert [each.daemon for each in make(patterns=[f"{tmp_path}/*"]).collect()] == [str(mps.pipe_directory)]


def test_a_users_process_does_not_pass_for_roots_daemon(
    make: Callable[..., Looking], mps: MpsStandIn, start: Starter, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    mps.start()
    mine = start(
        imitation(["-d"]),
        **SHELL,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory)},
        user=NOBODY,
    )
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: mine.pid in [each.pid for each in daemons.all()], "the imitation")
    looking = make()
    looking.collect()

    (location,) = looking.locations.values()

    assert location.process is not None
    assert location.process[0] == mps.pid
    assert mine.pid not in pids_of(looking.discovery.collect().problem)


@pytest.mark.parametrize("path", ["relative", "/new\nline", "/" + "x" * 300, "/nowhere", "", "/\x1b[31m"])
def test_a_daemon_that_says_anything_of_itself_is_passed_over(
    make: Callable[..., Looking], start: Starter, path: str
) -> None:
    pid = start(imitation(["-d"]), **SHELL, env={"CUDA_MPS_PIPE_DIRECTORY": path}).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: pid in [each.pid for each in daemons.all()], "the imitation")
    looking = make()

    reading = looking.discovery.collect()

    assert [each for each in looking.discovery.locations.values() if each.process and each.process[0] == pid] == []
    assert pid not in pids_of(reading.problem)


def test_however_many_users_have_daemons_roots_are_found(
    make: Callable[..., Looking], two: tuple[MpsStandIn, MpsStandIn], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "MOST_DAEMONS", 0)
    looking = make()

    looking.collect()

    assert len(looking.locations) == (2 if os.geteuid() == 0 else 0)
    assert two


def bound(path: Path) -> socket.socket:
    """A socket that somebody listens at."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.open(path.parent, os.O_PATH)
    listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    os.close(descriptor)
    listener.listen()
    return listener


def test_a_daemon_that_returns_when_the_old_one_is_forgotten_is_told_of(
    make: Callable[..., Looking], mps: MpsStandIn
) -> None:
    mps.start()
    looking = make()
    looking.collect()
    mps.kill()
    looking.collect()

    mps.start()
    looking.clock.time += FORGOTTEN_SECONDS

    assert [each.daemon for each in looking.collect()] == [str(mps.pipe_directory)]


def test_a_name_that_is_given_to_another_directory_leaves_the_one_where_it_was_found(
    make: Callable[..., Looking], mps: MpsStandIn, tmp_path: Path
) -> None:
    mps.start()
    looking = make(on_host("night", mps.pipe_directory, mps.log_directory))
    looking.collect()
    moved = on_host("night", tmp_path / "elsewhere", tmp_path / "logs")

    looking.discovery.set_named([moved])
    looking.collect()

    assert looking.locations["night"] == moved
    assert str(mps.pipe_directory) in looking.locations


@pytest.mark.parametrize("most", [0, 64])
def test_only_the_hosts_own_root_has_room_beyond_the_bound_and_that_is_bounded_too(
    make: Callable[..., Looking],
    two: tuple[MpsStandIn, MpsStandIn],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    most: int,
) -> None:
    if os.geteuid() != 0:
        not_here("this needs root's daemons")
    monkeypatch.setattr(discovery, "MOST_DAEMONS", 0)
    monkeypatch.setattr(discovery, "MOST_OF_THE_HOST", most)
    with Container(tmp_path / "c") as container:
        container.start()
        looking = make()

        looking.collect()

        assert set(looking.locations) == ({str(mps.pipe_directory) for mps in two} if most else set())


# -- in containers -------------------------------------------------------------------------------------------------


def test_two_daemons_with_one_path_are_two(make: Callable[..., Looking], tmp_path: Path) -> None:
    with Container(tmp_path / "c") as one, Container(tmp_path / "c") as other:
        pids = {one.start(), other.start()}
        looking = make()

        found = looking.collect()

        assert len({each.daemon for each in found}) == 2
        assert all(each.daemon.startswith(f"{tmp_path}/c/pipe@") for each in found)
        assert {location.process[0] for location in looking.locations.values() if location.process} == pids
        assert all(location.namespace is not None for location in looking.locations.values())


def test_a_daemon_started_again_in_its_container_keeps_its_name_and_what_is_known_of_its_pids(
    make: Callable[..., Looking], tmp_path: Path
) -> None:
    with Container(tmp_path / "c") as container:
        first = container.start()
        looking = make()
        looking.collect()
        (before,) = looking.locations.values()
        os.kill(first, 9)
        wait_until(lambda: not is_alive(first))
        second = container.start()

        assert {each.daemon for each in looking.collect()} <= {before.name}
        (after,) = looking.locations.values()

    assert after.process is not None
    assert (after.name, after.process[0]) == (before.name, second)
    assert after.namespace is before.namespace


def test_a_container_is_named_by_its_id(
    make: Callable[..., Looking], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    container_id = "0123456789ab" + "c" * 52
    real = Proc.text
    monkeypatch.setattr(
        Proc,
        "text",
        lambda self, pid, name, *limit: (
            f"0::/system.slice/docker-{container_id}.scope\n" if name == "cgroup" else real(self, pid, name, *limit)
        ),
    )
    with Container(tmp_path / "c") as container:
        container.start()

        assert [each.daemon for each in make().collect()] == [f"{tmp_path}/c/pipe@0123456789ab"]


def test_a_directory_that_the_host_shares_with_a_container_is_one_daemon_by_its_path_here(
    make: Callable[..., Looking], tmp_path: Path
) -> None:
    """As the Kubernetes device plugin has it: one directory, two paths, and the PID file in the container's numbers."""
    (tmp_path / "mps" / "pipe").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    with Container(tmp_path / "c") as container:
        inside = tmp_path / "c" / "pipe"
        container.run("mkdir", str(inside))
        container.run("mount", "--bind", str(tmp_path / "mps" / "pipe"), str(inside))
        pid = container.start()
        looking = make(patterns=[f"{tmp_path}/mps/*"])

        assert [each.daemon for each in looking.collect()] == [str(tmp_path / "mps" / "pipe")]
        (location,) = looking.locations.values()
        assert location.process is not None
        assert location.process[0] == pid
        assert location.pipe.root is None
        assert location.namespace is not None
        assert location.log.root is not None
