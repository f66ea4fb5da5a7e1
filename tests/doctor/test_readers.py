"""Readers return the facts, or the problem. They never raise."""

import os
import shutil
import threading
from pathlib import Path

import pytest

from exporter.clock import SystemClock
from exporter.collectors.proc import Proc
from exporter.collectors.systemd import Systemctl
from exporter.config.settings import Config
from exporter.doctor.facts import Area, DirectoryFacts, ProcessFacts, Programs
from exporter.doctor.readers import (
    HUNG,
    NOT_TRIED,
    TimeLimit,
    read_directory,
    read_exporter,
    read_libcuda_probes,
    read_process,
    read_programs,
    read_units,
)
from exporter.model.daemon import Daemon
from exporter.web.server import ServiceSocket
from tests.clocks import HandClock
from tests.conftest import Starter
from tests.eventually import eventually
from tests.tools import needed

PROC = Proc(Path("/proc"), SystemClock())


def daemon(directory: Path) -> Daemon:
    return Daemon(name="d", pipe_directory=str(directory / "pipe"), log_directory=str(directory / "log"))


def test_reads_only_the_variables_of_mps_and_cuda(start: Starter) -> None:
    secret = {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps", "AWS_SECRET_ACCESS_KEY": "s3cret", "PATH": os.environ["PATH"]}
    pid = start(env=secret).pid

    def read() -> ProcessFacts:
        """During execve(2), the environment of a process is empty."""
        reading = PROC.facts(pid)
        assert reading is not None
        facts = read_process(reading, PROC)
        assert facts.environment == {"CUDA_MPS_PIPE_DIRECTORY": "/run/mps"}
        return facts

    facts = eventually(read)
    assert "s3cret" not in repr(facts)
    assert (facts.pipe_directory, facts.pipe) == ("/run/mps", None)


def test_an_empty_pipe_directory_means_the_default(start: Starter) -> None:
    reading = PROC.facts(start(env={"CUDA_MPS_PIPE_DIRECTORY": ""}).pid)
    assert reading is not None
    assert read_process(reading, PROC).pipe_directory == "/tmp/nvidia-mps"


def test_recognizes_a_deleted_program(tmp_path: Path, start: Starter) -> None:
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(needed("sleep"), program)
    child = start((str(program), "600"))
    assert eventually(lambda: _some(PROC.program(child.pid) == str(program)))
    program.unlink()
    assert PROC.program(child.pid) == f"{program} (deleted)"


def _some(found: bool) -> bool:
    assert found
    return found


def test_reads_modes_and_pid_file_of_a_directory(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    assert read_directory(daemon(tmp_path), None, PROC) == DirectoryFacts(path=daemon(tmp_path).pipe_directory)
    pipe.mkdir(mode=0o755)
    pipe.chmod(0o777)
    file = pipe / "nvidia-cuda-mps-control.pid"
    file.write_text("441\n")
    file.chmod(0o666)
    facts = read_directory(daemon(tmp_path), None, PROC)
    assert (facts.writable, facts.pid, facts.pid_file_mode) == (True, 441, 0o666)
    assert facts.closed is not None, "only the owner can enter the directories of pytest"
    pipe.chmod(0o1777)
    assert not read_directory(daemon(tmp_path), None, PROC).writable, "the sticky bit protects the files of other users"


def test_does_not_follow_a_pid_file_that_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "pipe").mkdir()
    (tmp_path / "elsewhere").write_text("1\n")
    (tmp_path / "pipe" / "nvidia-cuda-mps-control.pid").symlink_to(tmp_path / "elsewhere")
    assert read_directory(daemon(tmp_path), None, PROC).pid is None


def test_returns_a_problem_for_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    (tmp_path / "pipe").write_text("")
    assert "Not a directory" in (read_directory(daemon(tmp_path), None, PROC).problem or "")


def test_reads_whether_units_have_a_private_tmp(tmp_path: Path) -> None:
    systemctl = tmp_path / "systemctl"
    known = "Id=a.service\nLoadState=loaded\nPrivateTmp=yes\n\nId=b.service\nLoadState=loaded\nPrivateTmp=no\n"
    systemctl.write_text(f"#!/bin/sh\necho '{known}\nId=c.service\nLoadState=not-found\nPrivateTmp=yes'\n")
    systemctl.chmod(0o755)
    names = ("a.service", "b.service", "c.service", "*; reboot")
    units, problem = read_units(names, Systemctl(SystemClock(), executable=str(systemctl), deadline=30))
    assert problem is None
    assert units is not None
    assert units == {"a.service": True, "b.service": False}


def test_units_are_unknown_without_systemd(tmp_path: Path) -> None:
    missing = Systemctl(SystemClock(), executable=str(tmp_path / "systemctl"))
    assert read_units(("a.service",), missing) == (None, None)
    (tmp_path / "systemctl").write_text("#!/bin/sh\necho broken >&2\nexit 1\n")
    (tmp_path / "systemctl").chmod(0o755)
    units, problem = read_units(("a.service",), missing)
    assert (units, problem is None) == (None, False)


def test_reads_the_version_of_the_programs(tmp_path: Path, subtests: pytest.Subtests) -> None:
    control = tmp_path / "nvidia-cuda-mps-control"
    for script, version, problem in [
        ("echo CUDA MPS Control binary version: 13000", "13000", None),
        ("echo what?", None, None),
        ("echo no such library >&2; exit 127", None, "no such library"),
        ("exit 3", None, "exit code 3"),
    ]:
        control.write_text(f"#!/bin/sh\n{script}\n")
        control.chmod(0o755)
        with subtests.test(script=script):
            programs = read_programs(Config(daemons=()), f"{tmp_path}:{os.defpath}", SystemClock())
            assert programs == Programs(control=str(control), version=version, problem=problem)


def test_the_command_itself_is_the_exporter_process_without_a_service(tmp_path: Path) -> None:
    config = Config(daemons=(), runtime_directory=tmp_path, state_directory=tmp_path)
    found = read_exporter(config, PROC, SystemClock())
    assert (found.pid, found.uid, found.is_service) == (os.getpid(), os.geteuid(), False)
    assert (found.unanswering, found.state_problem) == (None, None)


def test_identifies_the_service(tmp_path: Path) -> None:
    service = ServiceSocket(tmp_path, lambda _: {})
    service.open()
    try:
        found = read_exporter(
            Config(daemons=(), runtime_directory=tmp_path, state_directory=tmp_path), PROC, SystemClock()
        )
        assert (found.pid, found.is_service) == (os.getpid(), True)
    finally:
        service.close()


def test_gives_up_a_hung_reading_and_skips_its_area() -> None:
    released, limit = threading.Event(), TimeLimit(HandClock(), seconds=0.01)
    assert limit.read(Area.LOGS, released.wait) is None
    released.set()
    assert limit.read(Area.LOGS, released.wait) is None
    assert limit.problems == {Area.LOGS: HUNG}
    assert TimeLimit(HandClock(), seconds=30).read(Area.LOGS, released.wait) is True


def test_begins_no_reading_after_the_time_of_all() -> None:
    clock = HandClock()
    limit = TimeLimit(clock, total=28)
    assert limit.read(Area.LOGS, lambda: "read") == "read"
    clock.time += 28
    assert limit.read(Area.DAEMONS, lambda: "read") is None
    assert limit.problems == {Area.DAEMONS: NOT_TRIED}


def test_an_error_of_a_reading_is_not_a_hang() -> None:
    with pytest.raises(FileNotFoundError):
        TimeLimit(HandClock(), seconds=30).read(Area.LOGS, Path("/nowhere").read_text)


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to test the kernel")
def test_tests_the_kernel_and_leaves_no_descriptor() -> None:
    """A kernel may refuse the programs."""
    before = set(os.listdir("/proc/self/fd"))
    found = read_libcuda_probes([os.getpid()], PROC, SystemClock())

    assert found.tried
    assert found.refused is None or found.refused.startswith("cannot ")
    assert found.problems == ()
    assert set(os.listdir("/proc/self/fd")) <= before
