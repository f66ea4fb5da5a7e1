"""On a node that is set up by its page, the page's check prints what the page shows."""

import shutil
from collections.abc import Iterator

import pytest

from tests.eventually import eventually
from tests.standin.nvml import Device, NvmlStandIn, Process
from tests.test_installation_pages import expected_output, is_shown

from .node import DAEMON, EXPORTER, NAME, Node

pytestmark = [pytest.mark.systems, pytest.mark.usefixtures("at_work")]

CLIENT = "train.service"
DEFAULTS = "/etc/default/cuda-mps-exporter"
STATE = "/opt/nvml/state"
DRIVER = "lib/x86_64-linux-gnu/libnvidia-ml.so.1"


@pytest.fixture
def client(node: Node, nvml: NvmlStandIn) -> Iterator[int]:
    """A service that uses the GPU, by its PID in the node. Daemon and exporter are new: other tests leave a past."""
    root = node.machine.root
    shutil.copy(root / "bin" / "sleep", root / "opt" / "train")
    node.machine.do("systemd-run", f"--unit={CLIENT}", "/opt/train", "600")
    pid = node.pid(CLIENT)
    shutil.copy(nvml.library, root / DRIVER)
    nvml.write([Device(processes=(Process(pid),))])
    node.machine.write(STATE, nvml.state_file.read_text())
    node.machine.write(DEFAULTS, f"STANDIN_NVML_STATE={STATE}\nSTANDIN_NVML_DEVICE=/dev/null\n")
    node.machine.do("systemctl", "stop", EXPORTER)
    node.machine.do("sh", "-c", "rm -r /var/lib/cuda-mps-exporter/*")
    node.machine.do("systemctl", "restart", DAEMON, EXPORTER)
    node.settles()
    yield pid
    node.mps.disconnect(pid)
    node.machine.do("systemctl", "stop", CLIENT)
    node.machine.do("rm", "/opt/train", f"/{DRIVER}", STATE, DEFAULTS)
    node.machine.do("systemctl", "restart", EXPORTER)


def test_the_check_of_the_page_prints_what_the_page_shows(node: Node, client: int) -> None:
    command, expected = expected_output("host")
    node.mps.connect_and_wait(client)
    node.shows(1, "cuda_mps_daemon_clients", daemon=NAME)

    def assert_shown() -> None:
        done = node.machine.run("env", "PATH=/usr/local/bin:/usr/bin", *command.split())
        assert is_shown(done.stdout, expected), f"{done.stdout}{done.stderr}"

    eventually(assert_shown)
