"""With its drop-in, the exporter can count launches as an ordinary user: rights, system calls, files."""

import json
import textwrap
from collections.abc import Iterator

import pytest

from exporter.doctor.readers import kernel_refusal
from tests.eventually import eventually
from tests.shared_objects import shared_object
from tests.tools import not_here

from .machine import ROOT
from .node import EXPORTER, Node

pytestmark = pytest.mark.systems

TRIAL = "counting-trial.service"
USER_OF_CUDA = "user-of-cuda.service"

PROGRAM = """
    import json, sys
    from pathlib import Path
    from exporter.clock import SystemClock
    from exporter.doctor.readers import kernel_refusal, read_libcuda_probes
    from exporter.collectors.proc import Proc

    clock = SystemClock()
    found = read_libcuda_probes([int(sys.argv[1])], Proc(Path("/proc"), clock), clock)
    print(json.dumps([kernel_refusal(), found.libraries, found.problems]))
"""


@pytest.fixture
def cuda_process(node: Node) -> Iterator[int]:
    """A process of root with a libcuda in a file system of its own."""
    path = node.machine.root / "opt" / "lib" / "libcuda.so.1"
    path.parent.mkdir()
    shared_object(path)
    code = "import ctypes, time; ctypes.CDLL('/srv/libcuda.so.1'); time.sleep(600)"
    node.machine.do(
        "systemd-run", f"--unit={USER_OF_CUDA}", "--property=BindReadOnlyPaths=/opt/lib:/srv",
        "/opt/cuda-mps-exporter/bin/python", "-c", code,
    )  # fmt: skip

    def loaded() -> int:
        pid = node.pid(USER_OF_CUDA)
        assert node.machine.run("grep", "-q", "libcuda", f"/proc/{pid}/maps").returncode == 0
        return pid

    yield eventually(loaded)
    node.machine.do("systemctl", "stop", USER_OF_CUDA)


def test_the_unit_with_its_drop_in_can_count_launches(node: Node, cuda_process: int) -> None:
    refused = kernel_refusal()
    if refused is not None:
        not_here(f"the kernel refuses root too: {refused}")
    unit = (ROOT / "systemd" / EXPORTER).read_text()
    lines = [line for line in unit.splitlines() if not line.startswith(("Type=", "ExecStart=", "Restart", "Watchdog"))]
    program = node.machine.root / "opt" / "trial.py"
    program.write_text(textwrap.dedent(PROGRAM))
    lines.insert(
        lines.index("[Service]") + 1,
        "Type=oneshot\nStandardOutput=file:/run/trial\n"
        f"ExecStart=/opt/cuda-mps-exporter/bin/python /opt/trial.py {cuda_process}",
    )
    node.machine.write(f"/etc/systemd/system/{TRIAL}", "\n".join(lines))
    drop_in = (ROOT / "systemd" / f"{EXPORTER}.d" / "bpf.conf").read_text()
    node.machine.write(f"/etc/systemd/system/{TRIAL}.d/bpf.conf", drop_in)
    node.machine.do("systemctl", "daemon-reload")

    node.machine.do("systemctl", "start", TRIAL)

    refused, libraries, problems = json.loads(node.machine.do("cat", "/run/trial"))
    assert (refused, problems) == (None, [])
    assert "/srv/libcuda.so.1" in libraries
