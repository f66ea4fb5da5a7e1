"""The stand-ins have the measured behaviour of the real programs, above all their failures."""

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from .mps import PATIENCE_SECONDS, MpsStandIn, is_alive, this_process, wait_until
from .mps_daemon import launch
from .mps_daemon.logs import Kind, message, send
from .mps_daemon.sessions import may_query
from .mps_daemon.settings import ASKED_BY
from .nvml import Device, NvmlStandIn

NOT_FOUND = "Cannot find MPS control daemon process\n"
NOT_SENT = "Cannot send command to MPS control daemon process\n"
OTHER_USER = 65534
TWO_GPUS = ("GPU-055a5b27-613d-8c97-6fb4-99d75c28b520", "GPU-87f188b6-25f1-39ad-ceb7-643fc637f1b2")

# PIDs of simulated clients, above the largest PID of Linux.
FIRST, SECOND, THIRD, FOURTH = (5_000_000 + n for n in range(4))


@pytest.fixture
def mps(mps: MpsStandIn) -> MpsStandIn:
    """A running daemon without clients."""
    mps.start()
    return mps


@contextlib.contextmanager
def sleeping_process() -> Iterator["subprocess.Popen[bytes]"]:
    """Yield a real process for a client."""
    process = subprocess.Popen(["sleep", "600"])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def server_status(mps: MpsStandIn) -> str:
    return mps.ask(f"get_server_status {mps.server_pid}").stdout.strip()


def clients_of(mps: MpsStandIn) -> list[int]:
    return [int(line) for line in mps.ask(f"get_client_list {mps.server_pid}").stdout.split()]


def texts(log: str) -> list[str]:
    """Return a log's lines without their times."""
    return [line.partition("] ")[2] for line in log.splitlines()]


# -- replies -------------------------------------------------------------------------------------------------------


def test_without_a_daemon_every_command_fails(tmp_path: Path) -> None:
    reply = MpsStandIn(tmp_path).ask("get_server_list")

    assert (reply.returncode, reply.stdout, reply.stderr) == (1, "", NOT_FOUND)


IDLE_REPLIES = {
    "get_server_list": "",
    "get_client_list 1": "Server 1 not found\n",
    "get_client_list": "Server 0 not found\n",
    "get_server_status 1": "Server 1 not found\n",
    "get_device_client_list": "",
    "ps": "Server not found\n",
    "get_default_active_thread_percentage": "100.0\n",
    "set_default_active_thread_percentage abc": "100.0\n",
    "get_default_device_pinned_mem_limit 0": "",
    "get_default_client_priority": "0\n",
    "bogus": 'Unknown command "bogus"\n',
    "": 'Unknown command ""\n',
    "terminate_client 1 1": "Server 1 not found\nServer 1 not found!\n1\n",
    "get_server_list\nps\nget_default_active_thread_percentage": "Server not found\n100.0\n",
}


def test_an_idle_daemon_answers_as_recorded(mps: MpsStandIn, subtests: pytest.Subtests) -> None:
    for command, expected in IDLE_REPLIES.items():
        with subtests.test(command=command):
            reply = mps.ask(command)
            assert (reply.returncode, reply.stdout, reply.stderr) == (0, expected, "")


def test_each_command_adds_its_lines_to_the_log(mps: MpsStandIn) -> None:
    before = len(texts(mps.control_log))

    mps.ask("get_server_status 1")
    wait_until(lambda: mps.control_log.endswith("UI closed\n"))

    assert texts(mps.control_log)[before:] == [
        "Accepting connection...",
        "NEW UI",
        "Cmd:get_server_status 1",
        "Server 1 not found",
        "UI closed",
    ]
    assert re.match(r"\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} Control [ \d]{4}\d+\] Starting", mps.control_log)


# -- one session at a time -----------------------------------------------------------------------------------------


def test_a_foreign_process_is_neither_answered_nor_logged(tmp_path: Path) -> None:
    """Such as an exporter of the machine, which discovers the daemons of tests."""
    with sleeping_process() as other:
        variables = {ASKED_BY: this_process(other.pid)}
        with MpsStandIn(tmp_path, variables=variables) as mps:
            mps.start()
            before = mps.control_log
            environment = os.environ | mps.environment()
            del environment[ASKED_BY]
            command = ["nvidia-cuda-mps-control", "get_server_list"]
            reply = subprocess.run(command, env=environment, capture_output=True, text=True)

            assert (reply.returncode, reply.stderr) == (1, NOT_SENT)
            assert mps.control_log == before
            assert mps.ask("get_server_list").returncode == 0, "this process has the environment that names the other"


def test_only_the_test_and_its_descendants_get_answers(mps: MpsStandIn) -> None:
    pid, _, start_ticks = this_process(os.getpid()).partition(":")
    test = int(pid), int(start_ticks)

    with sleeping_process() as child:
        assert may_query(child.pid, test)
        assert not may_query(child.pid, (test[0], test[1] + 1))
    assert may_query(mps.pid, test), "the parent of a daemon in the background has ended"
    assert not may_query(1, test)


def test_an_empty_reply_looks_like_success(mps: MpsStandIn) -> None:
    mps.deaf()
    reply = mps.ask("get_default_active_thread_percentage")

    assert (reply.returncode, reply.stdout, reply.stderr) == (0, "", "")


# -- hangs and exits -----------------------------------------------------------------------------------------------


def test_a_stopped_server_hangs_the_daemon(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    server = psutil.Process(mps.server_pid)
    server.suspend()

    assert mps.ask("get_server_list").stdout == f"{server.pid}\n"
    mps.ask_in_background(f"get_server_status {server.pid}")
    wait_until(lambda: f"Cmd:get_server_status {server.pid}" in texts(mps.control_log))
    with pytest.raises(subprocess.TimeoutExpired):
        mps.ask("get_server_list", timeout=0.5)

    server.resume()
    wait_until(lambda: server_status(mps) == "ACTIVE")


@pytest.mark.parametrize("foreground", [False, True])
def test_sigkill_of_a_daemon_ends_its_server_and_leaves_its_files(tmp_path: Path, foreground: bool) -> None:
    with MpsStandIn(tmp_path) as mps:
        mps.start(foreground)
        mps.connect_and_wait(FIRST)
        mps.kill()
        left = {entry.name for entry in mps.pipe_directory.iterdir()}

        assert left >= {"control", "control_privileged", "control_lock", "log", "nvidia-cuda-mps-control.pid"}
        assert mps.ask("get_server_list").stderr == NOT_FOUND

        mps.start(foreground)
        assert mps.ask("get_server_list").returncode == 0


def test_a_stopped_server_outlives_its_daemon_and_the_next_daemon_starts(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    left = psutil.Process(mps.server_pid)
    left.suspend()
    mps.kill()
    mps.start()
    mps.connect_and_wait(SECOND)

    assert left.status() == psutil.STATUS_STOPPED
    assert mps.server_pid != left.pid
    left.resume()
    wait_until(lambda: not is_alive(left.pid), "its end")


def test_in_the_foreground_both_logs_go_to_standard_output(tmp_path: Path) -> None:
    with MpsStandIn(tmp_path) as mps:
        mps.start(foreground=True)
        mps.connect_and_wait(FIRST)
        send(mps.pipe_directory / "log", message(Kind.SERVER, 7, "forged"))
        wait_until(lambda: "forged" in texts(mps.standard_output.read_text()))
        output = texts(mps.standard_output.read_text())

        assert f"NEW SERVER {mps.server_pid}: Ready" in output
        assert f"Status of client {{PID: {FIRST}, Context ID: 1}} is ACTIVE" in output
        assert list(mps.log_directory.iterdir()) == []


def test_a_killed_server_is_logged_as_exited_and_replaced_with_the_next_client(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    killed = psutil.Process(mps.server_pid)
    killed.kill()
    wait_until(lambda: f"Server {killed.pid} exited with status 0" in texts(mps.control_log))

    assert mps.ask("get_server_list").stdout == ""
    assert mps.outcome(FIRST) == "gone"
    mps.connect_and_wait(SECOND)
    assert mps.server_pid not in (None, killed.pid)


def test_quit_removes_the_pid_file_and_leaves_the_sockets(mps: MpsStandIn) -> None:
    reply = mps.ask("quit")
    wait_until(lambda: not mps.is_running())
    left = {entry.name for entry in mps.pipe_directory.iterdir()}

    assert (reply.returncode, reply.stdout) == (0, "")
    assert {"control", "control_privileged"} <= left
    assert not {"log", "nvidia-cuda-mps-control.pid"} & left
    assert texts(mps.control_log)[-1] == "Exit with status 0"


def test_quit_with_a_timeout_ends_a_server_with_clients(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    server = mps.server_pid
    mps.ask("quit -t 1")
    log = texts(mps.control_log)

    assert "quit command issued with timeout of 1" in log
    assert f"Control will try shutting down server {server} again in at most 400ms" in log
    assert log[-3:] == [
        f"Force shutting down server {server}",
        f"Server {server} exited with status 0",
        "Exit with status 0",
    ]


def test_both_processes_have_the_real_names(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    daemon, server = psutil.Process(mps.pid), psutil.Process(mps.server_pid)

    comms = [Path(f"/proc/{process.pid}/comm").read_text() for process in (daemon, server)]
    assert comms == ["nvidia-cuda-mps\n", "nvidia-cuda-mps\n"]
    assert [daemon.cmdline()[0], server.cmdline()[0]] == ["nvidia-cuda-mps-control", "nvidia-cuda-mps-server"]
    assert server.ppid() == daemon.pid


def test_a_server_has_its_name_before_its_program_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any user can write its PID into a log at once. The exporter then reads the process once."""
    waits = tmp_path / "waits"
    waits.write_text("#!/bin/sh\nread line\n")
    waits.chmod(0o755)
    monkeypatch.setenv(launch.INTERPRETER, str(waits))
    with (tmp_path / "log").open("wb") as log:
        server = launch.ServerProcess(log.fileno(), tmp_path)
        comm = Path(f"/proc/{server.pid}/comm").read_text()
        server.kill()
        server.reap()

    assert comm == "nvidia-cuda-mps\n"


def test_logs_are_written_after_a_rename_and_after_a_truncation(mps: MpsStandIn) -> None:
    log = mps.log_directory / "control.log"
    renamed = log.rename(mps.log_directory / "control.log.1")
    mps.ask("bogus")
    wait_until(lambda: texts(renamed.read_text())[-3:] == ["Cmd:bogus", 'Unknown command "bogus"', "UI closed"])
    assert not log.exists()

    os.truncate(renamed, 0)
    mps.say("control", "after truncation")
    assert texts(renamed.read_text()) == ["after truncation"]


# -- clients -------------------------------------------------------------------------------------------------------


def test_the_first_client_waits_for_a_server(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    server = mps.server_pid
    control, log = texts(mps.control_log), texts(mps.server_log)

    assert control[3:] == [
        "Accepting connection...",
        "User did not send valid credentials",
        "Accepting connection...",
        f"NEW CLIENT {FIRST} from user 0: Server is not ready, push client to pending list",
        f"Starting new server {server} for user 0",
        "Accepting connection...",
        f"NEW SERVER {server}: Ready",
        "Accepting connection...",
        f"NEW CLIENT {FIRST} from user 0: Server already exists",
    ]
    assert log[-3:] == [
        f"Creating worker thread for client {{PID: {FIRST}, Context ID: 1}}",
        "Device NVIDIA H200 (uuid GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b) is associated",
        f"Status of client {{PID: {FIRST}, Context ID: 1}} is ACTIVE",
    ]
    assert "Received new client request for {PID: -1333654781, Context ID: 0}" in log


def test_the_end_of_a_real_process_is_a_normal_exit(mps: MpsStandIn) -> None:
    with sleeping_process() as process:
        mps.connect_and_wait(process.pid)
        assert clients_of(mps) == [process.pid]
    wait_until(lambda: texts(mps.server_log)[-1] == f"Client process {process.pid} disconnected")

    assert texts(mps.server_log)[-4:-1] == [
        f"Server failed to recevie command with status 806, assuming client {{PID: {process.pid}, Context ID: 1}} exit",
        f"Client {{PID: {process.pid}, Context ID: 1}} exiting. Number of active client contexts is 0.",
        f"Server failed to recevie command with status 806, assuming client {{PID: {process.pid}, Context ID: 0}} exit",
    ]
    assert clients_of(mps) == []


def test_clients_by_device_and_as_a_table(tmp_path: Path) -> None:
    with MpsStandIn(tmp_path, gpus=TWO_GPUS) as mps:
        mps.start()
        mps.connect_and_wait(FIRST, devices=(0, 1))
        mps.connect_and_wait(SECOND, devices=(1,))

        assert mps.ask("get_device_client_list").stdout == (
            f"[1] 00:01.0, NVIDIA H200\n{FIRST}.2\n{SECOND}.1\n[0] 00:00.0, NVIDIA H200\n{FIRST}.1\n"
        )
        rows = mps.ask("ps").stdout.splitlines()
        assert rows[0].split() == ["PID", "ID", "SERVER", "DEVICE", "NAMESPACE", "COMMAND"]
        assert rows[1].split()[:4] == [str(FIRST), "1", str(mps.server_pid), TWO_GPUS[0][:22]]


def test_a_terminated_client_affects_no_other(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    mps.connect_and_wait(SECOND)

    assert mps.ask(f"terminate_client {mps.server_pid} {FIRST}").stdout == "0\n"
    assert mps.ask(f"terminate_client {mps.server_pid} {FIRST}").stdout == f"Invalid process {FIRST}!\n1\n"
    assert clients_of(mps) == [SECOND]
    assert server_status(mps) == "ACTIVE"
    assert "Client termination succeeded." in texts(mps.server_log)


def test_a_client_of_another_user_waits(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    server = mps.server_pid
    mps.connect(SECOND, uid=OTHER_USER)
    wait_until(lambda: f"Control will try shutting down server {server} again in at most 400ms" in mps.control_log)
    assert mps.outcome(SECOND) == "pending"
    assert f"Server {server} has 2 active worker threads. Server will not shutdown." in texts(mps.control_log)

    mps.disconnect(FIRST)
    wait_until(lambda: mps.outcome(SECOND) == "active")

    assert mps.server_pid != server
    assert f"Starting new server {mps.server_pid} for user {OTHER_USER}" in texts(mps.control_log)


def test_a_server_that_just_exited_reports_fault_once(tmp_path: Path) -> None:
    with MpsStandIn(tmp_path, variables={"STANDIN_MPS_SERVER_LEAVES_SECONDS": "600"}) as mps:
        mps.start()
        mps.connect_and_wait(FIRST)
        server = mps.server_pid
        mps.disconnect(FIRST)
        wait_until(lambda: mps.server_log.endswith("disconnected\n"))
        replies = mps.ask(f"shutdown_server {server}\nget_server_status {server}\nget_server_status {server}")

        assert replies.stdout == f"FAULT\nServer {server} not found\n"


def test_default_limits_apply_to_later_servers_only(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    assert mps.ask("set_default_active_thread_percentage 40").stdout == "40.0\n"
    mps.ask("set_default_device_pinned_mem_limit 0 3G")
    assert mps.ask(f"get_active_thread_percentage {mps.server_pid}").stdout == "100.0\n"

    psutil.Process(mps.server_pid).kill()
    wait_until(lambda: mps.server_pid is None)
    mps.connect_and_wait(SECOND)

    assert mps.ask(f"get_active_thread_percentage {mps.server_pid}").stdout == "40.0\n"
    assert "Device pinned memory limit for device 0 set to 0xc0000000 bytes" in texts(mps.server_log)


def test_limits_of_a_server_apply_to_later_clients_only(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    server = mps.server_pid
    assert mps.ask(f"set_active_thread_percentage {server} 60").stdout == "60.0\n"
    assert mps.ask(f"set_device_pinned_mem_limit {server} 0 2G").stdout == ""
    assert mps.ask(f"get_device_pinned_mem_limit {server} 0").stdout == "2G\n"
    mps.connect_and_wait(SECOND)

    assert (mps.limits_of(FIRST), mps.limits_of(SECOND)) == ("100.0", "60.0 0=2G")
    assert "Device pinned memory limit for device 0 set to 0x80000000 bytes" in texts(mps.server_log)
    assert mps.ask("get_default_device_pinned_mem_limit 0").stdout == ""
    assert mps.ask("set_device_pinned_mem_limit 99999 0 2G").stdout == "Server 99999 not found\n"


def test_a_priority_applies_to_the_running_server_too(mps: MpsStandIn) -> None:
    mps.connect_and_wait(FIRST)
    assert mps.ask("set_default_client_priority 1").stdout == ""
    assert mps.ask("get_default_client_priority").stdout == "1\n"
    logged = [text for text in texts(mps.server_log) if "Priority" in text]
    assert logged == ["Server Priority set to 0", "Client Priority set to 1"]


def test_a_percentage_in_the_daemons_environment_applies_from_the_first_server_on(tmp_path: Path) -> None:
    """Memory limits in the environment have no effect."""
    variables = {"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": "40", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "0=2G"}
    with MpsStandIn(tmp_path, variables=variables) as mps:
        mps.start()
        mps.connect_and_wait(FIRST)
        assert mps.ask("get_default_active_thread_percentage").stdout == "40.0\n"
        assert mps.limits_of(FIRST) == "40.0"


# -- faults --------------------------------------------------------------------------------------------------------


def test_a_fault_lasts_until_the_last_affected_client_exits(mps: MpsStandIn) -> None:
    for pid in (FIRST, SECOND):
        mps.connect_and_wait(pid)
    mps.fault(FIRST)

    assert server_status(mps) == "FAULT"
    assert texts(mps.server_log)[-13:] == [
        f"Client {{PID: {FIRST}, Context: 1}} encountered a fatal GPU error.",
        "Server is handling a fatal GPU error.",
        f"Client {{PID: {FIRST}, Context ID: 1}} on device 0 to be torn down",
        f"Client {{PID: {SECOND}, Context ID: 1}} on device 0 to be torn down",
        f"All clients belonging to error trigging process {FIRST} will be torn down",
        f"Client {{PID: {FIRST}, Context ID: 1}} on the error-trigging process {FIRST} to be torn down",
        f"All clients belonging to error trigging process {SECOND} will be torn down",
        f"Client {{PID: {SECOND}, Context ID: 1}} on the error-trigging process {SECOND} to be torn down",
        "The following devices will be reset:",
        "0",
        "The following client process have a sticky error set:",
        f"{FIRST}",
        f"{SECOND}",
    ]

    mps.connect(THIRD)
    wait_until(lambda: mps.outcome(THIRD) == "refused")
    assert texts(mps.server_log)[-2:] == [
        f"Server teardown in progress. Refusing to accept new client {{PID: {THIRD}, Context ID: 0}}",
        f"Failed to accept client {{PID: {THIRD}, Context ID: 0}} with status 807",
    ]

    mps.disconnect(FIRST)
    assert server_status(mps) == "FAULT"
    mps.disconnect(SECOND)
    assert server_status(mps) == "ACTIVE"
    assert "Destroy server context on device 0 (NVIDIA H200)" in texts(mps.server_log)

    mps.connect_and_wait(FOURTH)
    assert texts(mps.server_log).count("Creating server context on device 0 (NVIDIA H200)") == 2


def test_a_fault_spreads_through_a_client_on_two_gpus(tmp_path: Path) -> None:
    with MpsStandIn(tmp_path, gpus=TWO_GPUS) as mps:
        mps.start()
        mps.connect_and_wait(FIRST, devices=(0,))
        mps.connect_and_wait(SECOND, devices=(0, 1))
        mps.connect_and_wait(THIRD, devices=(1,))
        mps.fault(FIRST, kind="trap")
        log = texts(mps.server_log)

        assert log[-7:] == [
            "The following devices will be reset:",
            "0",
            "1",
            "The following client process have a sticky error set:",
            f"{FIRST}",
            f"{SECOND}",
            f"{THIRD}",
        ]
        assert not any("encountered a fatal GPU error" in line for line in log)


def test_a_client_killed_during_a_kernel_exits_first_and_the_log_names_another(mps: MpsStandIn) -> None:
    for pid in (FIRST, SECOND):
        mps.connect_and_wait(pid)
    mps.kill_client(FIRST)
    wait_until(lambda: f"Client process {FIRST} disconnected" in mps.server_log)
    log = texts(mps.server_log)

    assert [(each.what, each.server, each.pid, each.victims) for each in mps.truth] == [
        ("gone", mps.server_pid, FIRST, ()),
        ("fault", mps.server_pid, FIRST, (SECOND,)),
    ]
    exiting = log.index(f"Client {{PID: {FIRST}, Context ID: 1}} exiting. Number of active client contexts is 1.")
    fault = log.index(f"Client {{PID: {SECOND}, Context: 1}} encountered a fatal GPU error.")
    disconnected = log.index(f"Client process {FIRST} disconnected")
    assert exiting < fault < disconnected
    assert server_status(mps) == "FAULT"


# -- NVML ----------------------------------------------------------------------------------------------------------


def test_nvml_aborts_a_program_that_uses_a_freed_event_set(nvml: NvmlStandIn) -> None:
    """The tests of the collectors use all else of this library, with the real nvidia-ml-py."""
    nvml.write([Device()])
    program = """
from pynvml import *
nvmlInit()
events = nvmlEventSetCreate()
nvmlEventSetFree(events)
nvmlEventSetWait(events, 1)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env=os.environ | nvml.environment(), timeout=PATIENCE_SECONDS
    )
    assert done.returncode == -signal.SIGABRT
