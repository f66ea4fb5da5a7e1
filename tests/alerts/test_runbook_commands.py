"""Commands of runbooks and `doctor` that list who uses a daemon's socket or fifo, or a file."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from exporter.doctor.gpus import DEVICE_USERS
from tests.alerts.files import RUNBOOKS
from tests.eventually import until
from tests.tools import needed, not_here

CLIENT = """
import socket, sys
connection = socket.socket(socket.AF_UNIX)
connection.connect(sys.argv[1])
print(flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: needs root, to enter network namespaces")
@pytest.mark.parametrize("runbook", ["CudaMpsDaemonHeld", "CudaMpsDaemonUnresponsive"])
def test_finds_both_ends_of_a_connection_of_a_container(runbook: str, tmp_path: Path) -> None:
    """The kernel lists the connection in the network namespace of the client only, for both processes."""
    unshare = needed("unshare")
    for program in ("stat", "sort", "cut", "nsenter", "ss", "xargs"):
        needed(program)
    if subprocess.run([unshare, "--net", "true"]).returncode != 0:
        not_here("network namespaces cannot be created")
    text = (RUNBOOKS / f"{runbook}.md").read_text()
    list_daemons, list_others = re.findall(r"^    (stat .*)$", text, re.MULTILINE)
    environment, path = os.environ | {"PIPE": str(tmp_path)}, str(tmp_path / "control")

    def lines(script: str) -> list[str]:
        return subprocess.check_output(["bash", "-c", script], env=environment, text=True).splitlines()

    pipe = subprocess.PIPE
    with socket.socket(socket.AF_UNIX) as daemon:
        daemon.bind(path)
        daemon.listen()
        with subprocess.Popen(
            [unshare, "--net", sys.executable, "-c", CLIENT, path], stdin=pipe, stdout=pipe
        ) as client:
            with daemon.accept()[0]:
                (own_end,) = lines(list_daemons)
                ends = lines(list_others.replace("NUMBER", own_end.split(path)[1].split()[0]))
            client.communicate()
    assert f"pid={os.getpid()}," in own_end
    assert any(f"pid={client.pid}," in end for end in ends)


HOLDER = """
import ctypes, os, sys, threading, time
os.open(sys.argv[1], os.O_RDWR)
threading.Thread(target=lambda: (print(flush=True), time.sleep(3600))).start()
ctypes.CDLL(None).pthread_exit(None)
"""
"""Opens a file. Then its main thread ends, and another one goes on."""


@pytest.mark.parametrize("runbook", ["CudaMpsLogBlocked", "CudaMpsLogContradicted", None])
def test_finds_a_process_with_an_ended_main_thread(runbook: str | None, tmp_path: Path) -> None:
    """/proc/PID/fd of such a process is empty, and fuser names none."""
    for program in ("find", "xargs", "ps"):
        needed(program)
    os.mkfifo(tmp_path / "log")
    if runbook is None:
        command = DEVICE_USERS.replace("/dev/nvidia", f"{tmp_path}/")
    else:
        (command,) = re.findall(r"^    (find .*)$", (RUNBOOKS / f"{runbook}.md").read_text(), re.MULTILINE)
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(tmp_path / "log")], stdout=subprocess.PIPE) as holder:
        try:
            assert holder.stdout is not None
            holder.stdout.readline()
            stat = Path(f"/proc/{holder.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
            shown = subprocess.check_output(
                ["bash", "-c", command], env=os.environ | {"PIPE": str(tmp_path)}, text=True
            ).splitlines()
        finally:
            holder.kill()
    assert [int(line.split()[0]) for line in shown[1:]] == [holder.pid]
