"""Commands of the runbooks that list the connections of a daemon."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.alerts.files import RUNBOOKS
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
    for program in ("lsns", "nsenter", "ss", "xargs"):
        needed(program)
    if subprocess.run([unshare, "--net", "true"]).returncode != 0:
        not_here("network namespaces cannot be created")
    text = (RUNBOOKS / f"{runbook}.md").read_text()
    list_daemons, list_others = re.findall(r"^    (lsns .*)$", text, re.MULTILINE)
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
