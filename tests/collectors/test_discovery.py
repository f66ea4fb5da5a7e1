"""Discovery of daemons: in all namespaces, declared by an installation, by name, not deceived by imitations."""

import json
import os
import socket
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors import discovery
from exporter.collectors.daemon_processes import ControlDaemons
from exporter.collectors.discovery import LONGEST_NAME, STARTUP_LOG, Declarations, Discovery, is_nameable, is_path
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.thread import BoundedCalls
from exporter.model.daemon import FORGOTTEN_SECONDS, NamedBy
from exporter.model.observation import DaemonFound
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.printable import LONGEST_TEXT, printable
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.containers import Container
from tests.standin.mps import PATIENCE_SECONDS, MpsStandIn, is_alive, wait_until
from tests.tools import not_here

NOBODY = 65534


@pytest.fixture(autouse=True)
def _patient_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine, a call may take longer than the service waits for one that may hang."""
    monkeypatch.setattr(discovery, "BoundedCalls", partial(BoundedCalls, PATIENCE_SECONDS))


@pytest.fixture
def create(tmp_path: Path) -> "Create":
    """Create a discovery that reports only daemons below the test's directory. Others may run on this machine."""
    return lambda *given, patterns=(), clock=None: LocalDiscovery(tmp_path, given, patterns, clock or HandClock())


class LocalDiscovery:
    """A discovery, and the daemons that it finds below a test's directory."""

    def __init__(
        self, directory: Path, given: Sequence[DaemonLocation], patterns: Sequence[str], clock: HandClock
    ) -> None:
        self.discovery = Discovery(patterns=patterns, proc=Path("/proc"), clock=clock)
        self.discovery.named = {location.name: location for location in given}
        self.clock = clock
        self._directory = str(directory)

    def collect(self) -> list[DaemonFound]:
        self.clock.time += 10
        seen = self.discovery.collect().observations
        return [each for each in seen if isinstance(each, DaemonFound) and self._directory in each.pipe_directory]

    @property
    def locations(self) -> dict[str, DaemonLocation]:
        return {
            name: location
            for name, location in self.discovery.locations.items()
            if str(location.pipe.path).startswith(self._directory)
        }


Create = Callable[..., LocalDiscovery]


@pytest.fixture
def two_daemons(tmp_path: Path) -> Iterator[tuple[MpsStandIn, MpsStandIn]]:
    with MpsStandIn(tmp_path / "a") as one, MpsStandIn(tmp_path / "b") as other:
        one.start()
        other.start(foreground=True)
        yield one, other


def test_reads_an_environment_again_that_could_not_be_read_once(
    mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps.start()
    proc = Proc(Path("/proc"), HandClock())
    daemons = ControlDaemons(proc)

    def environment() -> object:
        return next(daemon.environment for daemon in daemons.all() if daemon.pid == mps.pid)

    with monkeypatch.context() as patch:
        patch.setattr(proc, "variables", lambda _pid, _names: None)
        assert environment() is None
    assert environment()


# -- on the host ---------------------------------------------------------------------------------------------------


def test_finds_running_daemons_without_configuration(
    create: Create, two_daemons: tuple[MpsStandIn, MpsStandIn]
) -> None:
    local = create()

    found = local.collect()

    assert {(each.daemon, each.log_directory, each.expected) for each in found} == {
        (str(mps.pipe_directory), str(mps.log_directory), None) for mps in two_daemons
    }
    for mps in two_daemons:
        location = local.locations[str(mps.pipe_directory)]
        assert location.process is not None
        assert location.process[0] == mps.pid
        assert (location.pipe.root, location.log.root, location.namespace) == (None, None, None)


def test_reports_a_location_again_only_after_a_change(create: Create, mps: MpsStandIn) -> None:
    mps.start()
    local = create()
    assert len(local.collect()) == 1
    assert local.collect() == []

    mps.kill()
    assert local.collect() == []
    mps.log_directory = mps.log_directory.with_name("elsewhere")
    mps.start()

    assert [each.log_directory for each in local.collect()] == [str(mps.log_directory)]


def test_keeps_the_name_and_directories_of_a_named_daemon(create: Create, mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    (tmp_path / "link").symlink_to(mps.pipe_directory)
    local = create(on_host("night", tmp_path / "link", tmp_path / "logs"))

    (found,) = local.collect()

    assert (found.daemon, found.pipe_directory, found.log_directory, found.expected) == (
        "night", str(tmp_path / "link"), str(tmp_path / "logs"), None
    )  # fmt: skip
    assert list(local.locations) == ["night"]
    assert local.locations["night"].process is not None


def test_reports_a_named_location_without_a_daemon(create: Create, tmp_path: Path) -> None:
    local = create(on_host("night", tmp_path / "pipe", tmp_path / "log"))

    assert [each.daemon for each in local.collect()] == ["night"]
    assert local.locations["night"].process is None


def test_forgets_an_ended_daemon(create: Create, mps: MpsStandIn) -> None:
    mps.start()
    local = create()
    local.collect()
    mps.kill()

    local.collect()
    assert len(local.locations) == 1
    local.clock.time += FORGOTTEN_SECONDS
    local.collect()

    assert local.locations == {}


def test_does_not_mistake_a_server_or_a_session_for_a_daemon(create: Create, mps: MpsStandIn) -> None:
    mps.start()
    mps.connect_and_wait(5_000_000)
    with mps.held_session():
        local = create()
        local.collect()
        (location,) = local.locations.values()

        assert location.process is not None
        assert location.process[0] == mps.pid


def test_does_not_mistake_the_starting_process_for_the_daemon(create: Create, mps: MpsStandIn, start: Starter) -> None:
    """Its end would be reported as the loss of a daemon."""
    mps.start()
    mps.kill()
    variables = {"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory)}
    starting = start(imitation(["-d"]), env=variables, **SHELL)
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: starting.pid in [each.pid for each in daemons.all()], "the imitation")
    local = create()

    assert local.collect() == []
    assert [each.daemon for each in local.collect()] == [str(mps.pipe_directory)]


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
def test_reads_how_a_daemon_was_started(
    start: Starter, arguments: list[str], variables: dict[str, str], protocol: int
) -> None:
    environment = {"CUDA_MPS_PIPE_DIRECTORY": "/x", "SECRET": "x", **variables}
    pid = start(imitation(arguments), **SHELL, env=environment).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))

    wait_until(lambda: pid in [each.pid for each in daemons.all()], "the imitation")
    (daemon,) = [each for each in daemons.all() if each.pid == pid]

    assert (daemon.protocol, daemon.observation("x").foreground) == (protocol, "-f" in arguments)
    assert daemon.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/x", **variables}


def test_reads_a_program_only_after_its_exec(start: Starter, monkeypatch: pytest.MonkeyPatch) -> None:
    """During an exec, a process has its name, but no arguments and no environment."""
    pid = start(imitation(["-d"]), **SHELL, env={"CUDA_MPS_PIPE_DIRECTORY": "/x"}).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    with monkeypatch.context() as beginning:
        beginning.setattr(Proc, "arguments", lambda *_: ())
        beginning.setattr(Proc, "variables", lambda *_: {})
        wait_until(lambda: Proc(Path("/proc"), SystemClock()).name(pid) == "nvidia-cuda-mps", "the imitation")
        assert pid not in [each.pid for each in daemons.all()]

    (daemon,) = [each for each in daemons.all() if each.pid == pid]

    assert daemon.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/x"}


@pytest.mark.parametrize(("name", "in_file"), [("stdout.log", True), ("mps.log", False)])
def test_reports_whether_stdout_is_the_log_file(start: Starter, tmp_path: Path, name: str, in_file: bool) -> None:
    with (tmp_path / name).open("ab") as file:
        pid = start(imitation(["-f"]), **SHELL, env={}, stdout=file).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))

    wait_until(lambda: pid in [each.pid for each in daemons.all()], "the imitation")

    assert [each.observation("x").stdout_in_file for each in daemons.all() if each.pid == pid] == [in_file]


def imitation(arguments: Sequence[str]) -> list[str]:
    return ["nvidia-cuda-mps-control", "-c", "printf nvidia-cuda-mps > /proc/$$/comm; read _", *arguments]


SHELL = {"executable": "/bin/sh", "stdin": subprocess.PIPE}


# -- directories ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("resource", ["gpu", "gpu.shared"])
def test_expects_a_daemon_of_the_device_plugin_from_its_start_to_its_stop(
    create: Create, tmp_path: Path, resource: str
) -> None:
    """The name of the resource does not matter, nor which of the two_daemons is installed first."""
    local = create(patterns=[f"{tmp_path}/*/*/pipe"])
    assert local.collect() == []

    with MpsStandIn(tmp_path / "nvidia.com" / resource) as mps:
        mps.start()
        started = mps.pipe_directory.with_name(".started")
        started.touch()
        (tmp_path / ".ready").touch()
        assert replace(local.collect()[-1], at=0.0) == DaemonFound(
            at=0.0,
            daemon=str(mps.pipe_directory),
            pipe_directory=str(mps.pipe_directory),
            log_directory=str(mps.log_directory),
            expected=True,
            by=NamedBy.DEVICE_PLUGIN,
        )

        mps.kill()
        assert [each.expected for each in local.collect()] == [True]

        started.unlink()
        assert [each.expected for each in local.collect()] == [False]
        assert local.collect() == []


def test_another_user_cannot_declare_a_daemon(create: Create, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    directory = tmp_path / "nvidia.com" / "gpu"
    (directory / "pipe").mkdir(parents=True)
    (directory / ".started").touch()
    (tmp_path / ".ready").touch()
    os.chown(directory / ".started", NOBODY, NOBODY)
    (tmp_path / "nvidia.com" / "link" / "pipe").mkdir(parents=True)
    (tmp_path / "nvidia.com" / "link" / ".started").symlink_to("/etc/passwd")
    assert create(patterns=[f"{tmp_path}/*/*/pipe"]).collect() == []


def test_locates_a_daemon_with_unreadable_environment_by_its_pid_file(
    create: Create, mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Proc, "variables", lambda *_: None)
    mps.start()

    local = create(patterns=[f"{mps.pipe_directory.parent}/*"])

    assert [(each.daemon, each.log_directory) for each in local.collect()] == [
        (str(mps.pipe_directory), str(mps.log_directory))
    ]
    (location,) = local.locations.values()
    assert location.process is not None
    unreadable = ControlDaemons(Proc(Path("/proc"), SystemClock())).at(location.process[0])
    assert unreadable is not None
    assert (unreadable.protocol, unreadable.observation("x").foreground) == (None, False)
    problem = Discovery(patterns=(), proc=Path("/proc"), clock=HandClock()).collect().problem
    assert problem is not None
    assert problem.code is ReasonCode.PROCESS_NOT_READABLE


def pids_of(problem: Reason | None) -> list[int | None]:
    return [] if problem is None else [each.parameters.get("pid") for each in problem.each]


def test_reports_a_kernel_without_openat2(mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on Linux 5.5, or with systemd's RestrictSUIDSGID=."""
    monkeypatch.setattr("exporter.collectors.pipe_dir.OPENAT2", 9999)
    mps.start()

    reading = Discovery(patterns=(), proc=Path("/proc"), clock=HandClock()).collect()

    assert reading.observations == ()
    assert reading.problem is not None
    assert Reason(ReasonCode.NOT_SUPPORTED, subject="openat2(2)", pid=mps.pid) in reading.problem.each

    with_patterns = Discovery(patterns=[f"{mps.pipe_directory.parent}/*"], proc=Path("/proc"), clock=HandClock())
    assert [each.daemon for each in with_patterns.collect().observations] == [str(mps.pipe_directory)]
    assert mps.pid not in pids_of(with_patterns.collect().problem)


def test_does_not_report_a_directory_without_a_daemon(create: Create, tmp_path: Path) -> None:
    planted = tmp_path / "nvidia-mps-evil"
    planted.mkdir()
    listeners = [bound(planted / name) for name in ("control", "control_privileged")]
    (planted / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))

    assert create(patterns=[f"{tmp_path}/nvidia-mps*"]).collect() == []
    for listener in listeners:
        listener.close()


def test_does_not_report_a_link_as_another_daemon(create: Create, mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    (tmp_path / "nvidia-mps-link").symlink_to(mps.pipe_directory)

    assert [each.daemon for each in create(patterns=[f"{tmp_path}/*"]).collect()] == [str(mps.pipe_directory)]


def test_does_not_mistake_a_users_process_for_the_daemon_of_root(
    create: Create, mps: MpsStandIn, start: Starter, tmp_path: Path
) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    mps.start()
    imitated = start(
        imitation(["-d"]),
        **SHELL,
        env={"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory)},
        user=NOBODY,
    )
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: imitated.pid in [each.pid for each in daemons.all()], "the imitation")
    local = create()
    local.collect()

    (location,) = local.locations.values()

    assert location.process is not None
    assert location.process[0] == mps.pid
    assert imitated.pid not in pids_of(local.discovery.collect().problem)


@pytest.mark.parametrize("path", ["relative", "/new\nline", "/" + "x" * 300, "/nowhere", "", "/\x1b[31m"])
def test_ignores_daemons_with_invalid_paths(create: Create, start: Starter, path: str) -> None:
    pid = start(imitation(["-d"]), **SHELL, env={"CUDA_MPS_PIPE_DIRECTORY": path}).pid
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: pid in [each.pid for each in daemons.all()], "the imitation")
    local = create()

    reading = local.discovery.collect()

    assert [each for each in local.discovery.locations.values() if each.process and each.process[0] == pid] == []
    assert pid not in pids_of(reading.problem)


def bound(path: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    descriptor = os.open(path.parent, os.O_PATH)
    listener.bind(f"/proc/self/fd/{descriptor}/{path.name}")
    os.close(descriptor)
    listener.listen()
    return listener


def test_reports_a_daemon_that_returns_after_it_was_forgotten(create: Create, mps: MpsStandIn) -> None:
    mps.start()
    local = create()
    local.collect()
    mps.kill()
    local.collect()

    mps.start()
    local.clock.time += FORGOTTEN_SECONDS

    assert [each.daemon for each in local.collect()] == [str(mps.pipe_directory)]


def test_a_name_that_moves_to_another_directory_leaves_the_discovered_one(
    create: Create, mps: MpsStandIn, tmp_path: Path
) -> None:
    mps.start()
    local = create(on_host("night", mps.pipe_directory, mps.log_directory))
    local.collect()
    moved = on_host("night", tmp_path / "elsewhere", tmp_path / "logs")

    local.discovery.named = {moved.name: moved}
    local.collect()

    assert local.locations["night"] == moved
    assert str(mps.pipe_directory) in local.locations


@pytest.mark.parametrize("most", [0, 64])
def test_only_root_of_the_host_has_additional_room_with_a_limit(
    create: Create,
    two_daemons: tuple[MpsStandIn, MpsStandIn],
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
        local = create()

        local.collect()

        assert set(local.locations) == ({str(mps.pipe_directory) for mps in two_daemons} if most else set())


# -- in containers -------------------------------------------------------------------------------------------------


def test_distinguishes_two_containers_with_the_same_path(create: Create, tmp_path: Path) -> None:
    with Container(tmp_path / "c") as one, Container(tmp_path / "c") as other:
        pids = {one.start(), other.start()}
        local = create()

        found = local.collect()

        assert len({each.daemon for each in found}) == 2
        assert all(each.daemon.startswith(f"{tmp_path}/c/pipe@") for each in found)
        assert {location.process[0] for location in local.locations.values() if location.process} == pids
        assert all(location.namespace is not None for location in local.locations.values())


def test_names_a_daemon_in_a_container_by_its_normal_path(create: Create, tmp_path: Path) -> None:
    """By its name it is known to be in a container. Commands for the same path on the host are for another daemon."""
    with Container(tmp_path / "c") as container:
        pipe, logs = f"{tmp_path}/c/pipe", f"{tmp_path}/c/log"
        container.run("mkdir", "-p", pipe, logs)
        directories = {"CUDA_MPS_PIPE_DIRECTORY": f"{pipe}//", "CUDA_MPS_LOG_DIRECTORY": logs}
        environment = container.mps.environment() | directories
        container.start_program("nvidia-cuda-mps-control", "-d", environment=environment)
        local = create()

        def names() -> list[str]:
            local.collect()
            return list(local.locations)

        wait_until(names, "the daemon")
        (name,) = names()

    assert name.startswith(f"{pipe}@")


def test_keeps_name_and_pid_namespace_of_a_daemon_restarted_in_its_container(create: Create, tmp_path: Path) -> None:
    with Container(tmp_path / "c") as container:
        first = container.start()
        local = create()
        local.collect()
        (before,) = local.locations.values()
        os.kill(first, 9)
        wait_until(lambda: not is_alive(first))
        second = container.start()

        assert {each.daemon for each in local.collect()} <= {before.name}
        (after,) = local.locations.values()

    assert after.process is not None
    assert (after.name, after.process[0]) == (before.name, second)
    assert after.namespace is before.namespace


@pytest.mark.parametrize("parent", ["/system.slice", "/user.slice/user-1000.slice/user@1000.service"])
def test_names_a_container_by_its_id_unless_a_user_chose_it(
    create: Create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, parent: str
) -> None:
    cgroup = f"0::{parent}/docker-0123456789ab{'c' * 52}.scope\n"
    real = Proc.text
    monkeypatch.setattr(
        Proc, "text", lambda self, pid, name, *limit: cgroup if name == "cgroup" else real(self, pid, name, *limit)
    )
    with Container(tmp_path / "c") as container:
        container.start()

        (found,) = create().collect()

    assert found.daemon.startswith(f"{tmp_path}/c/pipe@")
    assert (found.daemon == f"{tmp_path}/c/pipe@0123456789ab") == (parent == "/system.slice")


def test_names_a_directory_shared_with_a_container_by_its_path_on_the_host(create: Create, tmp_path: Path) -> None:
    """As with the Kubernetes device plugin: one directory with two paths, and a pid file with container PIDs."""
    (tmp_path / "mps" / "pipe").mkdir(parents=True)
    (tmp_path / "c").mkdir()
    with Container(tmp_path / "c") as container:
        inside = tmp_path / "c" / "pipe"
        container.run("mkdir", str(inside))
        container.run("mount", "--bind", str(tmp_path / "mps" / "pipe"), str(inside))
        pid = container.start()
        local = create(patterns=[f"{tmp_path}/mps/*"])

        assert [each.daemon for each in local.collect()] == [str(tmp_path / "mps" / "pipe")]
        (location,) = local.locations.values()
        assert location.process is not None
        assert location.process[0] == pid
        assert location.pipe.root is None
        assert location.namespace is not None
        assert location.log.root is not None


# -- Paths that can be names of daemons ------------------------------------------------------------------------------


CONTAINER, NAMESPACE = "0123456789ab", str(2**32)


@pytest.mark.parametrize("where", [CONTAINER, NAMESPACE])
def test_a_name_is_never_longer_than_a_label(where: str) -> None:
    """Otherwise two daemons have the same series, and Prometheus rejects both."""
    longest = f"/{'n' * (LONGEST_NAME - 1)}@{where}"

    assert is_nameable(longest.partition("@")[0])
    assert not is_nameable(f"/{'n' * LONGEST_NAME}")
    assert len(longest) <= LONGEST_TEXT
    assert printable(longest) == longest


def test_a_log_directory_can_be_longer_than_a_name() -> None:
    assert is_path(f"/{'n' * LONGEST_NAME}")
    assert not is_path("relative")
    assert not is_path("/new\nline")


# -- Daemons that the node's MPS installation declares ---------------------------------------------------------------


CLAIM = "0b4a3c5e-7f1d-4d0c-9a53-2f6b1c8e9d10"
BOOTED_AT = 1_700_000_000


@pytest.fixture
def node(tmp_path: Path) -> Callable[[], Declarations]:
    (tmp_path / "stat").write_text(f"cpu 1 2 3\nbtime {BOOTED_AT}\nprocesses 7\n")

    def matches() -> list[DaemonLocation]:
        return [on_host(str(each), each, each) for each in sorted(tmp_path.glob("mps/**/pipe"))]

    return lambda: Declarations(
        matches, proc=Proc(tmp_path, HandClock()), stat_file=tmp_path / "stat", gke_config=tmp_path / "gpu_config.json"
    )


def names(declarations: Declarations) -> list[tuple[str, str]]:
    return [(by, Path(name).parent.name) for name, (by, _) in declarations.read()[0].items()]


def claim(tmp_path: Path, *, started_at: float | None = BOOTED_AT + 60.0, uid: str = CLAIM) -> Path:
    """Create the directories of a claim as the DRA driver does, and the file of its pod after the daemon's start."""
    directory = tmp_path / "mps" / f"{uid}-0a1b2"
    for name in ("pipe", "log", "shm"):
        (directory / name).mkdir(parents=True)
    if started_at is not None:
        (directory / STARTUP_LOG).write_text("startup complete\n")
        os.utime(directory / STARTUP_LOG, (started_at, started_at))
    return directory


def test_several_resources_of_the_device_plugin_are_declared(node: Callable[[], Declarations], tmp_path: Path) -> None:
    """A node with a renamed and another resource, of which one is not shared by MPS."""
    for resource, started in (("gpu.shared", True), ("mig-1g.10gb.shared", True), ("gpu", False)):
        directory = tmp_path / "mps" / "nvidia.com" / resource
        (directory / "pipe").mkdir(parents=True)
        if started:
            (directory / ".started").touch()
    (tmp_path / "mps" / ".ready").touch()
    assert names(node()) == [("device_plugin", "gpu.shared"), ("device_plugin", "mig-1g.10gb.shared")]


@pytest.mark.parametrize("resource", ["gpu", "nvidia.com/gpu"])
def test_a_daemon_that_the_device_plugin_could_not_stop_is_withdrawn(
    node: Callable[[], Declarations], tmp_path: Path, resource: str
) -> None:
    """The plugin leaves `.started` if the daemon was dead, but always removes `.ready`, and creates it again later."""
    (tmp_path / "mps" / resource / "pipe").mkdir(parents=True)
    (tmp_path / "mps" / resource / ".started").touch()
    ready = tmp_path / "mps" / ".ready"
    ready.touch()
    declarations = node()
    assert names(declarations) == [("device_plugin", "gpu")]

    ready.unlink()
    declared, withdrawn = declarations.read()
    assert (dict(declared), [by for by, _ in withdrawn.values()]) == ({}, [NamedBy.DEVICE_PLUGIN])
    assert names(node()) == []

    ready.touch()
    assert names(declarations) == [("device_plugin", "gpu")]


@pytest.mark.parametrize(
    ("uid", "name", "declared"), [(0, "mps-control-dae", 1), (1000, "mps-control-dae", 0), (0, "sh", 0)]
)
def test_a_daemon_that_the_device_plugin_cannot_start_is_declared(
    node: Callable[[], Declarations], tmp_path: Path, uid: int, name: str, declared: int
) -> None:
    """The plugin tries again, and creates `.ready` only then."""
    directory = tmp_path / "mps" / "nvidia.com" / "gpu"
    (directory / "pipe").mkdir(parents=True)
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "status").write_text(f"Name:\t{name}\nState:\tS (sleeping)\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n")
    assert names(node()) == [], "it has started no daemon yet"

    (directory / ".started").touch()
    assert names(node()) == [("device_plugin", "gpu")] * declared


def test_a_plugin_that_cannot_be_searched_withdraws_nothing(
    node: Callable[[], Declarations], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As without a free descriptor. Processes are searched once for all resources."""
    for resource in ("gpu", "gpu.shared"):
        directory = tmp_path / "mps" / "nvidia.com" / resource
        (directory / "pipe").mkdir(parents=True)
        (directory / ".started").touch()
    (tmp_path / "77").mkdir()
    (tmp_path / "77" / "status").write_text("Name:\tmps-control-dae\nUid:\t0\t0\t0\t0\n")
    declarations, opened, has_ended = node(), list[int](), iter([True, True, False])

    def fail(_: Proc, pid: int, name: str) -> None:
        opened.append(pid)

    assert len(names(declarations)) == 2
    with monkeypatch.context() as unreadable:
        unreadable.setattr(Proc, "text", fail)
        unreadable.setattr(Proc, "is_unused", lambda _, pid: next(has_ended))
        assert names(declarations) == names(declarations) == [], "it has ended"
        with pytest.raises(OSError, match="process 77 cannot be read"):
            declarations.read()
    assert opened == [77, 77, 77]


def test_a_claim_is_declared_from_the_start_of_its_daemon_to_its_end(
    node: Callable[[], Declarations], tmp_path: Path
) -> None:
    """A new container of the pod removes the file, and may then fail."""
    declarations = node()
    directory = claim(tmp_path, started_at=None)
    assert names(declarations) == []

    (directory / STARTUP_LOG).write_text("startup complete\n")
    assert names(declarations) == [("dra", directory.name)]

    (directory / STARTUP_LOG).unlink()
    assert names(declarations) == [("dra", directory.name)]

    for name in ("pipe", "log", "shm"):
        (directory / name).rmdir()
    declared, withdrawn = declarations.read()
    assert (dict(declared), [by for by, _ in withdrawn.values()]) == ({}, [NamedBy.DRA])


def test_a_claim_from_before_the_boot_is_not_declared(node: Callable[[], Declarations], tmp_path: Path) -> None:
    """Its pod has not started again yet."""
    claim(tmp_path, started_at=BOOTED_AT - 60.0)
    assert names(node()) == []


def test_other_directories_below_the_plugin_are_no_claims(node: Callable[[], Declarations], tmp_path: Path) -> None:
    claim(tmp_path, uid="not-a-uid")
    assert names(node()) == []


def test_another_user_cannot_declare_a_claim(node: Callable[[], Declarations], tmp_path: Path) -> None:
    if os.geteuid() != 0:
        not_here("this needs two users")
    os.chown(claim(tmp_path) / STARTUP_LOG, NOBODY, NOBODY)
    assert names(node()) == []


@pytest.mark.parametrize(
    ("configuration", "declared"),
    [
        ({"GPUSharingConfig": {"GPUSharingStrategy": "mps", "MaxSharedClientsPerGPU": 48}}, True),
        ({"GPUSharingConfig": {"GPUSharingStrategy": "time-sharing", "MaxSharedClientsPerGPU": 48}}, False),
        ({"GPUPartitionSize": "1g.5gb"}, False),
        ({"GPUSharingConfig": None}, False),
        ([], False),
        (None, False),
    ],
)
def test_gke_declares_the_default_directory_if_it_shares_gpus_with_mps(
    node: Callable[[], Declarations], tmp_path: Path, configuration: object, declared: bool
) -> None:
    """Whether or not the directory exists."""
    if configuration is not None:
        (tmp_path / "gpu_config.json").write_text(json.dumps(configuration))
    expected = [(NamedBy.GKE, "/tmp/nvidia-mps", "/var/log/nvidia-mps")] if declared else []
    found = node().read()[0].values()
    assert [(by, str(each.pipe.path), str(each.log.path)) for by, each in found] == expected


def test_a_broken_configuration_of_gke_declares_nothing(node: Callable[[], Declarations], tmp_path: Path) -> None:
    (tmp_path / "gpu_config.json").write_text("[" * 60_000)
    assert names(node()) == []
