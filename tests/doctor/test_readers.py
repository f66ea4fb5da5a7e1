"""What is looked at is read as it is; what cannot be looked at is said, and nothing is raised."""

import os
import shutil
import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from exporter.collectors.units import Systemctl
from exporter.config.settings import Config
from exporter.doctor.directory_readers import read_directory, read_logs, read_rotations
from exporter.doctor.facts import Area, DaemonFacts, DirectoryFacts, LogFacts, ProcessFacts, Programs
from exporter.doctor.readers import (
    TimeLimit,
    read_exporter,
    read_libcuda_probes,
    read_listeners,
    read_process,
    read_programs,
    read_units,
)
from exporter.model.daemon import Daemon
from exporter.service_socket import ServiceSocket
from tests.conftest import Starter
from tests.eventually import eventually
from tests.tools import needed

PROC = Proc(Path("/proc"), SystemClock())


def daemon(directory: Path) -> Daemon:
    return Daemon(name="d", pipe_directory=str(directory / "pipe"), log_directory=str(directory / "log"))


def test_of_an_environment_the_variables_of_mps_and_cuda_are_kept_and_nothing_else(start: Starter) -> None:
    secret = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "AWS_SECRET_ACCESS_KEY": "s3cret", "PATH": os.environ["PATH"]}
    pid = start(env=secret).pid

    def read() -> ProcessFacts:
        """While a process has its program put in place, its environment is empty."""
        reading = PROC.facts(pid)
        assert reading is not None
        facts = read_process(reading, PROC)
        assert facts.variables == {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
        return facts

    facts = eventually(read)
    assert "s3cret" not in repr(facts)
    assert (facts.pipe_directory, facts.pipe) == ("/run/mps", None)


def test_a_process_that_is_told_nothing_looks_in_the_default_directory(start: Starter) -> None:
    reading = PROC.facts(start(env={"CUDA_MPS_PIPE_DIRECTORY": ""}).pid)
    assert reading is not None
    assert read_process(reading, PROC).pipe_directory == "/tmp/nvidia-mps"


def test_a_program_whose_file_has_gone_is_known_as_such(tmp_path: Path, start: Starter) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(needed("sleep"), program)
    child = start((str(program), "600"))
    assert eventually(lambda: _some(PROC.program(child.pid) == str(program)))
    program.unlink()
    assert PROC.program(child.pid) == f"{program} (deleted)"


def _some(found: bool) -> bool:
    assert found
    return found


def test_a_directory_is_read_with_the_way_to_it(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    assert read_directory(daemon(tmp_path), None, PROC) == DirectoryFacts(path=daemon(tmp_path).pipe_directory)
    pipe.mkdir(mode=0o755)
    pipe.chmod(0o777)
    file = pipe / "nvidia-cuda-mps-control.pid"
    file.write_text("441\n")
    file.chmod(0o666)
    facts = read_directory(daemon(tmp_path), None, PROC)
    assert (facts.writable, facts.pid, facts.pid_file_mode) == (True, 441, 0o666)
    assert facts.closed is not None, "pytest's own directories are for their owner alone"
    pipe.chmod(0o1777)
    assert not read_directory(daemon(tmp_path), None, PROC).writable, "nobody can replace what is another's"


def test_a_pid_file_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    (tmp_path / "elsewhere").write_text("1\n")
    (tmp_path / "pipe" / "nvidia-cuda-mps-control.pid").symlink_to(tmp_path / "elsewhere")
    assert read_directory(daemon(tmp_path), None, PROC).pid is None


def test_a_directory_that_is_none_is_a_problem_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "pipe").write_text("")
    assert "Not a directory" in (read_directory(daemon(tmp_path), None, PROC).problem or "")


def test_logs_are_read_by_their_size_and_a_pipe_is_none(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    (log / "server.log").write_text("x" * 10)
    os.mkfifo(log / "control.log")
    logs = {Path(each.path).name: each for each in read_logs(daemon(tmp_path), None, PROC)}
    assert logs["server.log"].size == 10
    assert logs["control.log"].problem == "it is not a regular file"


def test_a_server_that_has_not_begun_has_no_log(tmp_path: Path) -> None:
    (missing,) = read_logs(daemon(tmp_path), None, PROC)
    assert (Path(missing.path).name, missing.problem) == ("control.log", "No such file or directory")


def test_a_log_that_was_renamed_is_known_by_what_the_daemon_has_open(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.mkdir()
    with (log / "control.log").open("w"):
        (log / "control.log").rename(log / "control.log.1")
        (log / "control.log").touch()
        ourselves = DaemonFacts(name="d", process=ProcessFacts(pid=os.getpid()), own_pid=os.getpid())
        (read,) = read_logs(daemon(tmp_path), ourselves, PROC)
    assert read.renamed == str(log / "control.log.1")


def test_of_logrotates_files_those_count_that_name_the_log(tmp_path: Path) -> None:
    log = LogFacts(path="/var/log/nvidia-mps/control.log")
    (tmp_path / "mps").write_text("/var/log/nvidia-mps/*.log {\n copytruncate\n}\n")
    (tmp_path / "rsyslog").write_text("/var/log/syslog {\n}\n")
    (rotation,), problem = read_rotations((log,), tmp_path)
    assert (rotation.path, rotation.file, rotation.truncates, problem) == (log.path, str(tmp_path / "mps"), True, None)
    assert read_rotations((log,), tmp_path / "none") == ((), None)
    (tmp_path / "a directory").mkdir()
    assert "Is a directory" in (read_rotations((log,), tmp_path)[1] or "")


def test_units_tell_of_their_tmp(tmp_path: Path) -> None:
    systemctl = tmp_path / "systemctl"
    known = "Id=a.service\nLoadState=loaded\nPrivateTmp=yes\n\nId=b.service\nLoadState=loaded\nPrivateTmp=no\n"
    systemctl.write_text(f"#!/bin/sh\necho '{known}\nId=c.service\nLoadState=not-found\nPrivateTmp=yes'\n")
    systemctl.chmod(0o755)
    names = ("a.service", "b.service", "c.service", "*; reboot")
    units, problem = read_units(names, Systemctl(SystemClock(), executable=str(systemctl), deadline=30))
    assert problem is None
    assert units is not None
    assert {name: unit.private_tmp for name, unit in units.items()} == {"a.service": True, "b.service": False}


def test_where_systemd_does_not_run_units_are_not_known(tmp_path: Path) -> None:
    missing = Systemctl(SystemClock(), executable=str(tmp_path / "systemctl"))
    assert read_units(("a.service",), missing) == (None, None)
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    units, problem = read_units(("a.service",), missing)
    assert (units, problem is None) == (None, False)


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo CUDA MPS Control binary version: 13000", ("13000", None)),
        ("echo what?", (None, None)),
        ("echo no such library >&2; exit 127", (None, "no such library")),
        ("exit 3", (None, "exit code 3")),
    ],
)
def test_programs_are_found_and_asked_for_their_version(
    tmp_path: Path, script: str, told: tuple[str | None, str | None]
) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    control.write_text(f"#!/bin/sh\n{script}\n")
    control.chmod(0o755)
    programs = read_programs(Config(daemons=()), f"{tmp_path}:{os.defpath}", SystemClock())
    assert (programs.version, programs.problem) == told
    assert (programs.control, programs.server) == (str(control), None)


def test_programs_that_are_not_there_are_none(tmp_path: Path) -> None:
    assert read_programs(Config(daemons=()), str(tmp_path), SystemClock()) == Programs()


def test_whoever_looks_is_the_watcher_where_no_service_runs(tmp_path: Path) -> None:
    config = Config(daemons=(), runtime_directory=tmp_path, state_directory=tmp_path)
    found = read_exporter(config, PROC, SystemClock())
    assert (found.pid, found.uid, found.is_service) == (os.getpid(), os.geteuid(), False)
    assert (found.unanswering, found.state_problem) == (None, None)


def test_the_service_is_the_watcher_where_one_runs_and_its_port_is_its_own(tmp_path: Path) -> None:
    service = ServiceSocket(tmp_path, {})
    service.open()
    try:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            address = listening.getsockname()
            config = Config(daemons=(), runtime_directory=tmp_path, state_directory=tmp_path, listen=(address,))
            found = read_exporter(config, PROC, SystemClock())
            assert found.is_service
            ((listener,), problem) = read_listeners(config, found, PROC)
            assert (listener.is_service, problem) == (True, None)
    finally:
        service.close()


def test_whether_a_port_is_the_services_is_not_told_where_that_may_not_be_asked(tmp_path: Path) -> None:
    """As by another user than root, while all is well."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        config = Config(daemons=(), runtime_directory=tmp_path, listen=(listening.getsockname(),))
        closed = replace(read_exporter(config, PROC, SystemClock()), unanswering="Permission denied")
        listeners, problem = read_listeners(config, closed, PROC)
    assert listeners == ()
    assert problem is not None


def test_a_hung_reading_is_given_up_and_its_area_not_read_again() -> None:
    released, limit = threading.Event(), TimeLimit(seconds=0.01)
    assert limit.read(Area.LOGS, released.wait) is None
    released.set()
    assert limit.read(Area.LOGS, released.wait) is None
    assert limit.hung == [Area.LOGS]
    assert TimeLimit(seconds=30).read(Area.LOGS, released.wait) is True


def test_an_error_of_a_reading_is_not_reported_as_a_hang() -> None:
    with pytest.raises(FileNotFoundError):
        TimeLimit(seconds=30).read(Area.LOGS, Path("/nowhere").read_text)


def test_a_state_directory_that_is_a_file_cannot_be_written_to(tmp_path: Path) -> None:
    file = tmp_path / "state"
    file.write_text("")
    config = Config(daemons=(), runtime_directory=tmp_path, state_directory=file)
    assert read_exporter(config, PROC, SystemClock()).state_problem == "it is not a directory"


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to try the kernel")
def test_the_kernel_is_tried_and_nothing_stays_there() -> None:
    """Where the kernel forbids it, that is what is told."""
    before = set(os.listdir("/proc/self/fd"))
    found = read_libcuda_probes([os.getpid()], PROC, SystemClock())

    assert found.tried
    assert found.refused is None or found.refused.startswith("cannot ")
    assert found.problems == ()
    assert set(os.listdir("/proc/self/fd")) <= before
