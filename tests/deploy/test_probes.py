"""The probes of daemons in pods: a simulated kubelet restarts a container whose daemon died, and no other."""

import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.deploy.manifests import CHART, Object
from tests.eventually import PATIENCE_SECONDS
from tests.standin.mps import MpsStandIn

PROBES = CHART.parents[1] / "probes"
SHELLS = [["sh"], *([["busybox", "sh"]] if shutil.which("busybox") else [])]
PLUGIN, DRA = "device-plugin", "dra-driver"


def probe_of(name: str) -> Object:
    """Return the probe that a patch adds."""
    patch = yaml.safe_load((PROBES / f"{name}.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    found: Object = container["livenessProbe"]
    return found


class Kubelet:
    """Runs a probe as the kubelet does, without the time between two runs, and restarts the container."""

    def __init__(self, probe: Object, paths: dict[str, Path], restart: Callable[[], None], shell: list[str]) -> None:
        """`paths` has where the directories of the container are here."""
        _, *arguments = probe["exec"]["command"]
        for inside, outside in paths.items():
            arguments = [each.replace(inside, str(outside)) for each in arguments]
        self._command = [*shell, *arguments]
        self._threshold = probe["failureThreshold"]
        self._restart = restart
        self._failed = 0
        self.restarts = 0

    def probe(self) -> bool:
        """Run the probe once; return whether it succeeds. After too many failures in a row, restart the container."""
        done = subprocess.run(self._command, capture_output=True, timeout=PATIENCE_SECONDS, check=False)
        self._failed = 0 if done.returncode == 0 else self._failed + 1
        if self._failed >= self._threshold:
            self._restart()
            self._failed, self.restarts = 0, self.restarts + 1
        return done.returncode == 0


@pytest.fixture(params=[(name, shell) for name in (PLUGIN, DRA) for shell in SHELLS], ids=lambda each: shlex.join(
    [each[0], *each[1]]
))  # fmt: skip
def kubelet(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Kubelet, MpsStandIn]]:
    """A container with a daemon, and its kubelet."""
    name, shell = request.param
    with MpsStandIn(tmp_path / "nvidia.com" / "gpu") as mps:
        mps.start()
        mps.pipe_directory.with_name(".started").touch()
        directories = {"/mps": tmp_path} if name == PLUGIN else {"/driver-root/tmp/nvidia-mps": mps.pipe_directory}
        yield Kubelet(probe_of(name), directories, mps.start, shell), mps


def test_restarts_a_container_whose_daemon_died(kubelet: tuple[Kubelet, MpsStandIn]) -> None:
    """After three failed probes the daemon answers again."""
    node, mps = kubelet
    assert node.probe()
    mps.kill()
    assert [node.probe() for _ in range(3)] == [False] * 3
    assert node.restarts == 1
    assert mps.ask("get_server_list").returncode == 0
    assert node.probe()


def test_the_pod_of_a_claim_ends_before_the_next_one_starts() -> None:
    """Two daemons cannot have one directory, and the script of the second removes the file that declares the first."""
    patch = yaml.safe_load((PROBES / f"{DRA}.yaml").read_text())
    assert patch["spec"]["strategy"] == {"type": "Recreate", "rollingUpdate": None}


def test_a_busy_or_hung_daemon_passes(kubelet: tuple[Kubelet, MpsStandIn]) -> None:
    """It is stopped, as one that hangs is: it answers no command."""
    node, mps = kubelet
    os.kill(mps.pid, signal.SIGSTOP)
    assert [node.probe() for _ in range(5)] == [True] * 5
    os.kill(mps.pid, signal.SIGCONT)


def test_a_daemon_whose_pid_was_reused_fails(kubelet: tuple[Kubelet, MpsStandIn]) -> None:
    node, mps = kubelet
    mps.kill()
    (mps.pipe_directory / "nvidia-cuda-mps-control.pid").write_text(str(os.getpid()))
    assert not node.probe()


def test_a_resource_that_the_plugin_has_not_started_passes(tmp_path: Path) -> None:
    (tmp_path / "nvidia.com" / "gpu" / "pipe").mkdir(parents=True)
    node = Kubelet(probe_of(PLUGIN), {"/mps": tmp_path}, lambda: None, ["sh"])
    assert node.probe()


def test_one_of_several_daemons_that_died_fails(tmp_path: Path) -> None:
    with (
        MpsStandIn(tmp_path / "nvidia.com" / "gpu.shared") as one,
        MpsStandIn(tmp_path / "nvidia.com" / "gpu") as other,
    ):
        for mps in (one, other):
            mps.start()
            mps.pipe_directory.with_name(".started").touch()
        node = Kubelet(probe_of(PLUGIN), {"/mps": tmp_path}, lambda: None, ["sh"])
        assert node.probe()
        other.kill()
        assert not node.probe()
