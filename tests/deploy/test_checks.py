"""In a pod with the values of an installation page, the page's check prints what the page shows."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.deploy.layouts import Layout, device_plugin, dra, gke
from tests.deploy.node import Node
from tests.deploy.test_pod import POD, cgroup, started
from tests.eventually import eventually
from tests.exporter_process import Exporter
from tests.standin.nvml import DRIVER_NOT_LOADED, Device, NvmlStandIn, Process, fails
from tests.test_installation_pages import IN_KUBERNETES, expected_output, is_shown, values_of
from tests.tools import needed

pytestmark = pytest.mark.systems

LAYOUTS: dict[str, Callable[[Node], Layout]] = {
    "device-plugin": lambda node: device_plugin(node, "nvidia.com/gpu.shared"),
    "dra": lambda node: dra(node, chroot=False),
    "gke": gke,
}
"""By page. The others have the device plugin."""

WITHOUT_GPUS = {"gke"}
"""Pages of nodes that give no device files to the exporter."""


@pytest.mark.parametrize("page", IN_KUBERNETES)
def test_the_check_of_a_page_prints_what_the_page_shows(page: str, nvml: NvmlStandIn) -> None:
    _, expected = expected_output(page)
    with tempfile.TemporaryDirectory(prefix="node") as directory, Node(Path(directory), values_of(page)) as node:
        layout = LAYOUTS.get(page, device_plugin)(node)
        node.path(f"/var/log/pods/team-a_trainer-0_{POD}").mkdir(parents=True)
        client = node.client(shutil.copy(needed("sleep"), node.directory / "train"))
        node.set_cgroup(client, cgroup(POD))
        behaviours = [fails("*", DRIVER_NOT_LOADED)] if page in WITHOUT_GPUS else []
        nvml.write([Device(processes=(Process(client),))], behaviours)
        layout.start()
        layout.mps.connect_and_wait(client)
        program = started(node, nvml)
        if page in WITHOUT_GPUS:
            program.address()
            # The pod has its own /dev by now.
            node.start("sh", "-c", "mount -t tmpfs none /dev && touch /dev/nvidiactl", environment={})
        eventually(lambda: _assert_prints(program, expected))
        program.stop()


def _assert_prints(program: Exporter, expected: list[str]) -> None:
    printed = program.text("/status")
    assert is_shown(printed, expected), printed
