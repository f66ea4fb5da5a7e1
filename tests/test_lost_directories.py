"""Daemons whose pipe directory was removed or is another node's, renamed programs, and MPS without a known daemon."""

import os
import shutil
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.daemon_processes import REPEAT_SECONDS, ControlDaemons, PidFile
from exporter.collectors.discovery import Discovery
from exporter.collectors.pipe_dir import CONTROL_SOCKET, PID_FILE, PRIVILEGED_SOCKET, DaemonLocation, Directory, on_host
from exporter.collectors.proc import Proc
from exporter.collectors.thread import BoundedCalls
from exporter.model.daemon import DaemonState, LossReason
from exporter.model.node import CollectorName, Node
from exporter.model.observation import DaemonProcess, DirectoryReading, ProcessReading
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.proc import MpsProgram, is_on_network, mount_type, mps_program
from exporter.report.document_parts import Severity
from exporter.report.finding import Finding
from exporter.report.node_findings import findings
from exporter.state.poll_schedule import PollIntervals, commands
from tests.builders import (
    AT,
    CLIENT,
    CONTROL,
    DAEMON,
    SERVER,
    at_work,
    control_log,
    daemon_process,
    denied,
    exited,
    gpu_reading,
    idle,
    look,
    no_daemon,
    node,
    process,
    reduced,
    server_log,
    servers,
    silence,
    stamped,
)
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.standin.mps import PATIENCE_SECONDS, MpsStandIn, wait_until
from tests.watchdog.watched_daemon import DEATH, WatchedDaemon, dies

OTHER_NODES_PID = 4_100_000
REMOVED = DirectoryReading(exists=False)
TAKEN = DirectoryReading(exists=True, pid=31337, listening=False, file_system="tmpfs")
SHARED = replace(TAKEN, file_system="nfs4")


def unbound(path: Path) -> None:
    """Leave a socket on which no process listens, as one of another node looks."""
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as other:
        other.bind(str(path))


def take_over(mps: MpsStandIn) -> None:
    for name in (CONTROL_SOCKET, PRIVILEGED_SOCKET):
        unbound(mps.pipe_directory / name)
    (mps.pipe_directory / PID_FILE).write_text(f"{OTHER_NODES_PID}\n")


class Directories:
    """What is read of one daemon's directory, with a clock that each reading advances. A call may take `seconds`."""

    def __init__(
        self, mps: MpsStandIn, process: tuple[int, int] | None = None, *, seconds: float = PATIENCE_SECONDS
    ) -> None:
        self._clock = HandClock()
        self._file = PidFile(Proc(Path("/proc"), SystemClock()), self._clock)
        self._file._calls = BoundedCalls(seconds)
        self._location = replace(on_host(DAEMON, mps.pipe_directory, mps.log_directory), process=process)

    @property
    def problem(self) -> Reason | None:
        return self._file.problem

    def read(self) -> DaemonProcess:
        self._clock.time += REPEAT_SECONDS
        return self._file.changed(self._location)[0]


def read_once(mps: MpsStandIn) -> Directories:
    """Start a daemon, and read its directory while all is well."""
    mps.start()
    directories = Directories(mps)
    directories.read()
    return directories


# -- collectors --------------------------------------------------------------------------------------------------------


def test_reads_nothing_of_a_directory_that_is_the_daemons(mps: MpsStandIn) -> None:
    mps.start()
    assert Directories(mps).read().directory is None


def test_reads_that_no_process_of_this_machine_listens(mps: MpsStandIn) -> None:
    mps.start()
    directories = Directories(mps)
    pid = directories.read().pid
    server = mps.connect_and_wait(5_000_000)
    take_over(mps)
    found = directories.read()

    assert found.directory is not None
    assert (found.pid, found.directory.pid, found.directory.listening) == (pid, OTHER_NODES_PID, False)
    assert found.servers, f"the daemon's own servers are known without its list: {server}"


def test_reads_that_the_daemon_listens_beside_a_wrong_pid_file(mps: MpsStandIn) -> None:
    directories = read_once(mps)
    (mps.pipe_directory / PID_FILE).write_text(f"{OTHER_NODES_PID}\n")
    found = directories.read().directory

    assert found is not None
    assert (found.exists, found.listening, found.other) == (True, True, None)


def test_reads_which_other_daemon_of_this_machine_has_the_directory(mps: MpsStandIn, tmp_path: Path) -> None:
    directories = read_once(mps)
    pid, away = mps.pid, mps.pipe_directory.with_name("away")
    mps.pipe_directory.rename(away)
    mps.start()
    other = mps.pid
    found = directories.read().directory
    os.kill(pid, 9)

    assert found is not None
    assert found.other == other


@pytest.mark.parametrize("forged", ["program", "PID file"])
def test_no_user_can_make_a_directory_look_like_that_of_another_daemon(
    mps: MpsStandIn, start: Starter, tmp_path: Path, forged: str
) -> None:
    directories = read_once(mps)
    own = mps.pid
    other = MpsStandIn(tmp_path / "other")
    with other:
        other.start()
        if forged == "program":
            program = start(
                ["nvidia-cuda-mps-control", "-c", "read _", "-d"],
                executable="/bin/sh",
                stdin=subprocess.PIPE,
                env={"CUDA_MPS_PIPE_DIRECTORY": str(mps.pipe_directory)},
            )
        pid = program.pid if forged == "program" else other.pid
        (mps.pipe_directory / PID_FILE).write_text(f"{pid}\n")
        found = directories.read()

    assert found.directory is not None
    assert (found.pid, found.directory.listening, found.directory.other) == (own, True, None)


def test_it_is_unknown_whether_the_daemon_listens_if_a_process_outside_the_namespace_does(
    mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    directories = read_once(mps)
    (mps.pipe_directory / PID_FILE).write_text(f"{OTHER_NODES_PID}\n")
    monkeypatch.setattr("exporter.collectors.pipe_dir.listener", lambda _: (True, 0))
    found = directories.read().directory

    assert found is not None
    assert (found.listening, found.other) == (None, None)


def test_a_hanging_directory_delays_neither_the_servers_nor_the_end_of_its_daemon(
    mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    mps.start()
    directories, released = Directories(mps, seconds=0.05), threading.Event()
    files, pid = Directory.files, directories.read().pid
    assert pid is not None
    with monkeypatch.context() as patch:
        patch.setattr(Directory, "files", lambda directory: (released.wait(), files(directory))[1])
        found = directories.read()
        problem = directories.problem
        released.set()
    os.kill(pid, 9)
    wait_until(lambda: directories.read().pid is None, "the end of the daemon")

    assert (found.pid, found.directory, problem) == (pid, None, Reason(ReasonCode.DIRECTORY_HANGS))


@pytest.mark.parametrize("what", ["directory", "sockets"])
def test_reads_that_the_directory_was_removed_before_and_after_a_start(mps: MpsStandIn, what: str) -> None:
    mps.start()
    running, pid = Directories(mps), mps.pid
    assert running.read().directory is None
    ticks = Proc(Path("/proc"), SystemClock()).start_ticks(pid)
    assert ticks is not None
    if what == "directory":
        shutil.rmtree(mps.pipe_directory)
    else:
        for name in (CONTROL_SOCKET, PRIVILEGED_SOCKET):
            (mps.pipe_directory / name).unlink()
    for directories in (running, Directories(mps, (pid, ticks))):
        found = directories.read()
        assert (found.pid, found.directory) == (pid, REMOVED)
    os.kill(pid, 9)


def test_a_directory_that_cannot_be_read_is_not_missing(mps: MpsStandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    directories = read_once(mps)
    with monkeypatch.context() as patch:
        patch.setattr(Directory, "files", lambda _: (_ for _ in ()).throw(OSError(5, "an I/O error")))
        found = directories.read()

    assert (found.pid, found.directory) == (mps.pid, None)


def discovered(directory: Path, named: tuple[DaemonLocation, ...] = ()) -> dict[int, str]:
    """Return the names of the daemons below a directory by their PIDs, as a service finds them that starts now."""
    discovery = Discovery(patterns=(), proc=Path("/proc"), clock=HandClock())
    discovery._calls = BoundedCalls(PATIENCE_SECONDS)
    discovery.named = {location.name: location for location in named}
    for _ in range(2):
        discovery.collect()
    locations = {name: each for name, each in discovery.locations.items() if each.pipe.path.is_relative_to(directory)}
    return {each.process[0]: name for name, each in locations.items() if each.process is not None}


def test_a_later_start_finds_the_daemon_of_a_removed_directory(mps: MpsStandIn, tmp_path: Path) -> None:
    mps.start()
    pid = mps.pid
    configured = on_host("configured", mps.pipe_directory, mps.log_directory)
    shutil.rmtree(mps.pipe_directory)

    assert discovered(tmp_path) == {pid: str(mps.pipe_directory)}
    assert discovered(tmp_path, (configured,)) == {pid: "configured"}
    mps.pipe_directory.mkdir()  # Something else created it again.
    assert discovered(tmp_path) == {pid: str(mps.pipe_directory)}
    os.kill(pid, 9)


def test_no_other_user_is_taken_for_an_expected_daemon_with_a_removed_directory(
    mps: MpsStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any user can bind this path in a mount namespace of its own."""
    mps.start()
    pid = mps.pid
    configured = replace(on_host("configured", mps.pipe_directory, mps.log_directory), expected=True)
    monkeypatch.setattr("exporter.collectors.discovery.may_run", lambda *_: False)
    shutil.rmtree(mps.pipe_directory)
    found = discovered(tmp_path, (configured,))
    os.kill(pid, 9)

    assert found == {}


# -- programs ----------------------------------------------------------------------------------------------------------

CONTROL_NAMES = [
    "nvidia-cuda-mps-control",
    ".nvidia-cuda-mps-control.cuda13.0",
    "real-nvidia-cuda-mps-control",
    "cuda-13.0-nvidia-cuda-mps-control",
    "nvidia-cuda-mps-control.bin",
    ".nvidia-cuda-mps-control-wrapped",
]


@pytest.mark.parametrize("name", CONTROL_NAMES)
def test_recognizes_a_renamed_control_program(tmp_path: Path, start: Starter, name: str) -> None:
    program = tmp_path / name
    shutil.copy(Path("/bin/sh").resolve(), program)
    script = ["-c", "read _", "-d"]
    child = start([str(program), *script], stdin=subprocess.PIPE, env={"CUDA_MPS_PIPE_DIRECTORY": "/x"})
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: child.pid in [each.pid for each in daemons.all()], "the renamed program")
    program.unlink()

    assert child.pid in [each.pid for each in ControlDaemons(Proc(Path("/proc"), SystemClock())).all()]


def test_recognizes_a_control_program_by_its_argument_0(start: Starter) -> None:
    child = start(
        ["/usr/bin/nvidia-cuda-mps-control", "-c", "read _", "-d"],
        executable="/bin/sh",
        stdin=subprocess.PIPE,
        env={"CUDA_MPS_PIPE_DIRECTORY": "/x"},
    )
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: child.pid in [each.pid for each in daemons.all()], "the program")


@pytest.mark.parametrize("between", ["", "timeout 1000 "])
def test_a_script_that_waits_for_the_daemon_is_no_daemon(tmp_path: Path, start: Starter, between: str) -> None:
    """Neither while the daemon runs nor later, also if the script does not run it itself."""
    wrapper, real = tmp_path / "nvidia-cuda-mps-control", tmp_path / ".nvidia-cuda-mps-control.cuda13.0"
    shutil.copy(Path("/bin/sh").resolve(), real)
    wrapper.write_text(f'#!/bin/sh\n{between}{real} -c "read _" "$@" <&0\nread _\n')
    wrapper.chmod(0o755)
    script = start([str(wrapper), "-f"], stdin=subprocess.PIPE, env=os.environ | {"CUDA_MPS_PIPE_DIRECTORY": "/x"})
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))

    def found() -> list[int]:
        return [each.pid for each in daemons.all() if each.pid == script.pid or each.facts.executable == str(real)]

    wait_until(lambda: found() and script.pid not in found(), "the program that the script runs")
    os.kill(*found(), 9)
    wait_until(lambda: not found(), "the end of the program")
    assert script.poll() is None


def test_finds_the_program_that_a_script_of_the_same_name_becomes(tmp_path: Path, start: Starter) -> None:
    (tmp_path / "bin").mkdir()
    wrapper, real = tmp_path / "nvidia-cuda-mps-control", tmp_path / "bin" / "nvidia-cuda-mps-control"
    shutil.copy(Path("/bin/sh").resolve(), real)
    wrapper.write_text(f'#!/bin/sh\nread _\nexec {real} -c "read _" "$@"\n')
    wrapper.chmod(0o755)
    script = start([str(wrapper), "-f"], stdin=subprocess.PIPE, env={"CUDA_MPS_PIPE_DIRECTORY": "/x"})
    daemons = ControlDaemons(Proc(Path("/proc"), SystemClock()))
    wait_until(lambda: Path(f"/proc/{script.pid}/comm").read_text() == "nvidia-cuda-mps\n", "the script")
    daemons.all()
    assert script.stdin is not None
    script.stdin.write(b"\n")
    script.stdin.flush()

    wait_until(lambda: script.pid in [each.pid for each in daemons.all()], "the program")


@pytest.mark.parametrize(
    ("executable", "command", "program"),
    [
        ("/opt/.nvidia-cuda-mps-server.cuda13.0", "x", MpsProgram.SERVER),
        ("/usr/bin/nvidia-cuda-mps-control (deleted)", "x", MpsProgram.CONTROL),
        ("/usr/bin/python3", ".nvidia-cuda-mp", MpsProgram.CONTROL),
        (None, "nvidia-cuda-mps-server", MpsProgram.SERVER),
        ("/home/alice/nvidia-cuda-mps-control/train", "train", None),
        ("/usr/bin/nvidia-cuda-mpi-run", "nvidia-cuda-mpi", None),
    ],
)
def test_a_program_is_known_by_the_name_of_its_file(
    executable: str | None, command: str, program: MpsProgram | None
) -> None:
    assert mps_program(executable, command) is program


# -- file systems ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        *(
            (kind, True)
            for kind in ("nfs", "nfs4", "lustre", "gpfs", "beegfs", "ceph", "glusterfs", "orangefs", "pvfs2")
        ),
        *(
            (kind, True)
            for kind in ("9p", "virtiofs", "cifs", "smb3", "fuse.glusterfs", "fuse.ceph-fuse", "fuse.sshfs", "fuse.mfs")
        ),
        *((kind, False) for kind in ("tmpfs", "ext4", "xfs", "btrfs", "overlay", "zfs", "fuse.portal", "fuse", "")),
    ],
)
def test_knows_which_file_systems_nodes_share(kind: str, network: bool) -> None:
    assert is_on_network(kind) is network


def test_reads_the_type_of_the_mount_that_has_a_file() -> None:
    mounts = (
        "22 1 0:21 / / rw,relatime - ext4 /dev/sda1 rw\n"
        "31 22 0:45 / /home rw shared:1 master:2 - nfs4 fs:/home rw,vers=4.2\n"
        "131 22 0:46 / /tmp/31\\040x rw - tmpfs tmpfs rw\n"
    )
    assert mount_type(mounts, "pos:\t0\nflags:\t012\nmnt_id:\t31\nino:\t1\n") == "nfs4"
    assert mount_type(mounts, "pos:\t0\nmnt_id:\t1\n") is None
    assert mount_type(mounts, "") is None
    diskless = "22 1 0:21 / / rw,relatime shared:1 - nfs4 fs:/node7 rw\n"
    assert mount_type(diskless, "mnt_id:\t22\n") is None, "the root of a diskless node is its own"


def test_reads_the_type_of_a_directorys_file_system(tmp_path: Path) -> None:
    own = Proc(Path("/proc"), SystemClock())
    ticks = own.start_ticks(os.getpid())
    assert ticks is not None
    assert Directory(Path("/proc")).file_system() == "proc"
    assert Directory(tmp_path / "missing").file_system() is None


# -- what follows ------------------------------------------------------------------------------------------------------


def lost(directory: DirectoryReading, *, expected: bool = False, **known: object) -> Node:
    """A daemon with a client, whose directory is lost since AT + 1."""
    return reduced(
        *at_work(CLIENT),
        daemon_process(),
        process(CLIENT),
        process(SERVER, user="root", uid=0),
        gpu_reading([CLIENT]),
        replace(daemon_process(at=AT + 1), directory=directory, servers=(SERVER,)),
        no_daemon(at=AT + 10),
        no_daemon(at=AT + 20),
        look(at=AT + 20),
        start=node(DAEMON, expected=expected),
    ).node


def finding(present: Node) -> Finding:
    (found,) = [each for each in findings(present, present.at) if each.daemon == DAEMON]
    return found


def text(found: Finding) -> str:
    return " ".join((found.text, *found.facts, *(f"{each.text} {each.commands}" for each in found.all_steps)))


@pytest.mark.parametrize("directory", [REMOVED, TAKEN, SHARED])
def test_a_daemon_that_lost_its_directory_lives_with_its_clients(directory: DirectoryReading) -> None:
    present = lost(directory)
    daemon, found = present.daemons[DAEMON], finding(present)

    assert (daemon.state, daemon.pid, set(daemon.servers), set(daemon.clients)) == (None, CONTROL, {SERVER}, {CLIENT})
    assert (found.problem.code, found.severity) == ("directory_lost", Severity.WARNING)
    assert finding(lost(directory, expected=True)).severity is Severity.WARNING, "no alert is critical"
    shown = text(found)
    assert "echo" not in shown
    assert ".pid" not in shown
    assert f"kill -TERM {CONTROL}" in shown
    assert [each.ends for each in found.all_steps if each.commands] == [1]
    assert ("-control -d" in shown) is (directory is REMOVED)
    assert ("nodes share the directory (nfs4)" in shown) is (directory is SHARED)
    assert "New clients here fail" in found.definition.meaning


def test_only_a_file_system_of_a_network_is_called_shared() -> None:
    assert "has ended, or nodes share the directory" in text(finding(lost(TAKEN)))


def test_another_daemon_of_this_machine_is_named() -> None:
    shown = text(finding(lost(replace(TAKEN, listening=True, other=7000))))

    assert "PID 7000 on this machine" in shown
    assert "share" not in shown


@pytest.mark.parametrize("directory", [REMOVED, TAKEN])
def test_no_process_is_told_to_use_a_lost_directory(directory: DirectoryReading) -> None:
    """It would fail there, or bypass MPS again."""
    readings = [gpu_reading([CLIENT], beside=[4000], at=AT + second) for second in (5, 7)]
    present = reduced(process(4000), *readings, start=lost(directory)).node
    found = {each.problem.code: each for each in findings(present, AT + 7)}
    bypassing = found["process_bypassing"]

    assert bypassing.follows == "lost its directory"
    assert [each for step in bypassing.all_steps for each in step.commands] == ["cuda-mps-exporter doctor"]


def test_a_pid_file_with_a_wrong_pid_beside_the_daemons_socket_is_reported_as_such() -> None:
    assert finding(lost(replace(TAKEN, listening=True))).problem.code == "pid_file_wrong"
    assert finding(lost(replace(TAKEN, listening=None))).problem.code != "pid_file_wrong"


def test_a_daemon_that_is_quitting_has_lost_nothing() -> None:
    assert finding(lost(replace(TAKEN, pid=None))).problem.code == "daemon_unknown"


def test_a_directory_that_is_the_daemons_again_is_no_problem() -> None:
    present = reduced(daemon_process(at=AT + 30), servers(SERVER, at=AT + 31), start=lost(TAKEN)).node

    assert present.daemons[DAEMON].state is DaemonState.UP
    assert [each for each in findings(present, present.at) if each.daemon == DAEMON] == []


def test_a_lost_directory_is_no_hang() -> None:
    """The PID of another node's daemon can be that of any process here, so commands may get no answer."""
    silences = [silence(at=AT + 10 * number) for number in range(2, 12)]
    present = reduced(*silences, start=lost(TAKEN, expected=True)).node

    assert present.daemons[DAEMON].state is None


# -- the log of another node's daemon ----------------------------------------------------------------------------------

ANOTHER = 31337


def other_nodes_lines(at: float) -> tuple[object, ...]:
    started = replace(
        control_log("x", at=at)[0], line=stamped("Starting new server 31405 for user 0", pid=31405, at=at)
    )
    queued = "NEW CLIENT 31400 from user 0: Server is not ready, push client to pending list"
    return (
        *control_log("Accepting connection...", queued, at=at, pid=ANOTHER),
        started,
        *control_log("NEW SERVER 31405: Ready", at=at, pid=ANOTHER),
        *server_log("Received new client request", "New client 31400 connected", at=at, server=31405),
    )


@pytest.mark.parametrize("directory", [None, SHARED], ids=["log", "pipe-and-log"])
def test_lists_no_server_of_another_node_with_the_same_log(directory: DirectoryReading | None) -> None:
    lines = other_nodes_lines(AT + 1)
    present = reduced(
        *at_work(CLIENT),
        daemon_process(),
        *lines,
        replace(daemon_process(at=AT + 2), directory=directory, servers=None if directory is None else (SERVER,)),
        *other_nodes_lines(AT + 3),
    ).node
    daemon = present.daemons[DAEMON]

    assert (set(daemon.servers), set(daemon.clients), dict(daemon.connections.queued)) == ({SERVER}, {CLIENT}, {})
    assert daemon.log.contradicted_at is None


def test_a_forged_line_of_another_daemon_hides_no_server_for_long() -> None:
    """The daemon is asked at once, and its answer is believed."""
    forged = control_log("Accepting connection...", at=AT + 20, pid=ANOTHER)
    begin = reduced(*at_work(CLIENT), daemon_process()).node
    due = reduced(*forged, look(at=AT + 21), start=begin).node
    assert "get_server_list" not in commands(due, DAEMON, PollIntervals())
    lines = server_log("Received new client request", at=AT + 22, server=4711)
    due = reduced(*lines, look(at=AT + 22), start=due).node
    assert "get_server_list" in commands(due, DAEMON, PollIntervals())
    listed = reduced(servers(SERVER, 4711, at=AT + 22.1), start=due).node
    assert 4711 in listed.daemons[DAEMON].servers
    lines = server_log("Received new client request", at=AT + 23, server=4712)
    assert "get_server_list" not in commands(reduced(*lines, start=listed).node, DAEMON, PollIntervals())


def test_the_daemons_own_server_starts_by_its_log() -> None:
    """The process that becomes the server writes its first line (R580)."""
    line = replace(control_log("x")[0], line=stamped(f"Starting new server {SERVER} for user 0", pid=SERVER))
    present = reduced(daemon_process(), servers(), line).node

    assert set(present.daemons[DAEMON].servers) == {SERVER}


# -- a daemon that ended -----------------------------------------------------------------------------------------------


def left_behind(at: float, pid: int, kind: str) -> DaemonProcess:
    directory = DirectoryReading(exists=True, pid=pid, listening=False, file_system=kind)
    return replace(daemon_process(None, at=at, left=True), directory=directory if kind == "nfs4" else None)


@pytest.mark.parametrize(
    ("pid", "kind", "restarted"),
    [(31337, "nfs4", False), (CONTROL, "nfs4", True), (31337, "ext4", True)],
)
def test_starts_no_daemon_over_that_of_another_node(pid: int, kind: str, restarted: bool) -> None:
    """On a local disk, as after a reboot, and with its own PID in the file, nothing changes."""
    post = WatchedDaemon()
    end, _, last_look = dies()
    post.observe(end, left_behind(DEATH + 0.1, pid, kind), last_look)
    post.until(DEATH + 2000)

    assert bool(post.actions) is restarted
    if not restarted:
        assert post.watch.reason == Reason(ReasonCode.DIRECTORY_TAKEN)
        shown = {each.problem.code: each for each in findings(post.node, post.at)}
        assert shown["directory_lost"].severity is Severity.WARNING
        assert shown["daemon_down"].severity is Severity.CRITICAL, "as its alert"
        commands = [each for found in shown.values() for step in found.all_steps for each in step.commands]
        assert not any("-control" in each or "systemctl" in each for each in commands), commands


# -- MPS without a known daemon ----------------------------------------------------------------------------------------


def server_process(pid: int = SERVER) -> ProcessReading:
    return replace(process(pid, user="root", uid=0), executable="/opt/.nvidia-cuda-mps-server.cuda13.0")


def unknown(present: Node, at: float | None = None) -> list[str]:
    return [each.problem.code for each in findings(present, present.at if at is None else at) if each.gpu is None]


DISCOVERY = look(CollectorName.DISCOVERY)


def test_reports_an_mps_client_without_a_known_daemon() -> None:
    present = reduced(DISCOVERY, gpu_reading([CLIENT], server=None), process(CLIENT), start=Node()).node

    assert unknown(present) == ["mps_without_daemon"]


def test_reports_a_server_without_a_known_daemon() -> None:
    present = reduced(DISCOVERY, gpu_reading(), server_process(), start=Node()).node

    assert unknown(present) == ["mps_without_daemon"]


def test_reports_no_use_of_mps_before_its_daemon_can_be_known() -> None:
    """Without the collector of daemons, at the start of a client of another namespace, and beside a known daemon."""
    reading = gpu_reading([CLIENT], server=None)
    assert "mps_without_daemon" not in unknown(reduced(reading, process(CLIENT), start=Node()).node)
    hidden = reduced(DISCOVERY, reading, start=Node()).node
    assert "mps_without_daemon" not in unknown(hidden, AT + 60), "no search began after the client was seen"
    hidden = reduced(look(CollectorName.DISCOVERY, at=AT + 12), start=hidden).node
    assert "mps_without_daemon" not in unknown(hidden, AT + 9)
    assert "mps_without_daemon" in unknown(hidden, AT + 12)
    failed = look(CollectorName.DISCOVERY, at=AT + 60, problem=denied("/proc"))
    assert "mps_without_daemon" not in unknown(reduced(failed, start=hidden).node, AT + 60)
    beside = reduced(DISCOVERY, gpu_reading([CLIENT], at=AT + 9), process(CLIENT), start=idle()).node
    assert "mps_without_daemon" not in unknown(beside, AT + 300)
    assert "mps_without_daemon" not in unknown(lost(REMOVED), AT + 60)


def test_reports_a_client_of_an_unknown_daemon_beside_a_known_one() -> None:
    present = reduced(DISCOVERY, gpu_reading([CLIENT, 4000]), process(4000), start=idle()).node
    served = reduced(*at_work(CLIENT, 4000), gpu_reading([CLIENT, 4000]), process(4000), start=present).node

    assert "mps_without_daemon" in unknown(present, AT + 700)
    assert "mps_without_daemon" not in unknown(served, AT + 700)


def test_reports_no_client_as_unknown_that_a_known_daemon_may_have() -> None:
    """After a quit, and of a daemon with unknown GPUs that shows no PIDs of this machine."""
    served = reduced(DISCOVERY, *at_work(CLIENT), gpu_reading([CLIENT]), process(CLIENT), start=idle()).node
    quit_at = reduced(exited(CONTROL, at=AT + 50), start=served).node
    assert "mps_without_daemon" not in unknown(quit_at, AT + 55)
    later = look(CollectorName.DISCOVERY, at=AT + 60)
    beside = reduced(later, gpu_reading([4000], at=AT + 9), process(4000), start=served).node
    assert "mps_without_daemon" in unknown(beside, AT + 700)
    daemon = beside.daemons[DAEMON]
    foreign = replace(daemon, runtime=replace(daemon.runtime, in_foreign_namespace=True, devices={}))
    assert "mps_without_daemon" not in unknown(replace(beside, daemons={DAEMON: foreign}), AT + 700)


def test_a_process_outside_mps_needs_no_daemon() -> None:
    present = reduced(DISCOVERY, gpu_reading(beside=[CLIENT], server=None), process(CLIENT), start=Node()).node

    assert unknown(present) == []


def test_a_loss_is_still_a_loss_beside_a_removed_directory() -> None:
    present = reduced(exited(CONTROL, at=AT + 40), daemon_process(None, at=AT + 40.1), start=lost(REMOVED)).node
    present = reduced(look(at=AT + 60), start=present).node

    assert present.daemons[DAEMON].totals.losses[LossReason.DIED] == 1
