"""The probes of daemons in pods: a simulated kubelet restarts a container whose daemon died, and no other."""

import json
import os
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml

from tests.conftest import Starter
from tests.deploy.manifests import CHART, Object
from tests.eventually import PATIENCE_SECONDS
from tests.standin.mps import MpsStandIn
from tests.tools import needed

PROBES = CHART.parents[1] / "probes"
SHELLS = [["sh"], *([["busybox", "sh"]] if shutil.which("busybox") else [])]
PLUGIN, DRA = "device-plugin", "dra-driver"


def probe_of(name: str) -> Object:
    """Return the probe that a patch adds."""
    patch = yaml.safe_load((PROBES / f"{name}.yaml").read_text())
    (container,) = patch["spec"]["template"]["spec"]["containers"]
    found: Object = container["livenessProbe"]
    return found


def paths_of_container(directory: Path) -> dict[str, Path]:
    """Create what a start of the device plugin's container creates. Return where the container's paths are here."""
    log = directory / "termination-log"
    log.touch()
    return {"/mps": directory, "/dev/termination-log": log}


def workload(kind: str, *containers: Object, **spec: object) -> Object:
    """Return a DaemonSet or Deployment of NVIDIA's as the API server has it."""
    labels = {"app": "mps-control-daemon"}
    pod = {"hostPID": True, "containers": list(containers)}
    template = {"metadata": {"labels": labels}, "spec": pod}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": "mps-control-daemon", "namespace": "nvidia"},
        "spec": {"selector": {"matchLabels": labels}, "template": template, **spec},
    }


MANIFESTS = {
    PLUGIN: workload(
        "DaemonSet",
        {"name": "mps-control-daemon-sidecar", "image": "plugin", "command": ["config-manager"]},
        {"name": "mps-control-daemon-ctr", "image": "plugin", "command": ["mps-control-daemon"]},
    ),
    DRA: workload(
        "Deployment",
        {
            "name": "mps-control-daemon",
            "image": "driver",
            "command": ["sh", "-c"],
            "startupProbe": {"exec": {"command": ["cat", "startup.log"]}, "initialDelaySeconds": 1, "periodSeconds": 1},
        },
        replicas=1,
        # The template has no strategy: these are the defaults.
        strategy={"type": "RollingUpdate", "rollingUpdate": {"maxSurge": "25%", "maxUnavailable": "25%"}},
    ),
}


def patched(manifest: Object, patch: Path, directory: Path) -> Object:
    """Return the manifest after `kubectl patch`."""
    file = directory / "manifest.json"
    file.write_text(json.dumps(manifest))
    arguments = ("patch", "--local", "-f", str(file), "--patch-file", str(patch), "-o", "json")
    result = subprocess.run([needed("kubectl"), *arguments], capture_output=True, text=True, check=True)
    found: Object = json.loads(result.stdout)
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
        container = paths_of_container(tmp_path)
        mps.start()
        mps.pipe_directory.with_name(".started").touch()
        directories = container if name == PLUGIN else {"/driver-root/tmp/nvidia-mps": mps.pipe_directory}
        yield Kubelet(probe_of(name), directories, mps.start, shell), mps


def test_restarts_a_container_whose_daemon_died(kubelet: tuple[Kubelet, MpsStandIn]) -> None:
    """After two failed probes the daemon answers again."""
    node, mps = kubelet
    assert node.probe()
    mps.kill()
    assert [node.probe() for _ in range(2)] == [False] * 2
    assert node.restarts == 1
    assert mps.ask("get_server_list").returncode == 0
    assert node.probe()


def test_a_dead_daemon_that_is_not_reaped_fails(
    kubelet: tuple[Kubelet, MpsStandIn], tmp_path: Path, start: Starter
) -> None:
    node, mps = kubelet
    program = tmp_path / "nvidia-cuda-mps-control"
    shutil.copy(needed("sleep"), program)
    dead = start([str(program), "600"])
    (mps.pipe_directory / "nvidia-cuda-mps-control.pid").write_text(f"{dead.pid}\n")
    assert node.probe()
    dead.kill()
    os.waitid(os.P_PID, dead.pid, os.WEXITED | os.WNOWAIT)
    assert not node.probe()


def test_a_daemon_of_an_earlier_container_passes(tmp_path: Path) -> None:
    """The plugin leaves the file of a daemon that died. If its resource is gone, no restart would start it again."""
    for resource, begun in (("gpu", -60), ("gpu.shared", 60)):
        directory = tmp_path / "nvidia.com" / resource
        (directory / "pipe").mkdir(parents=True)
        (directory / ".started").touch()
        paths = paths_of_container(tmp_path)
        now = (directory / ".started").stat().st_mtime
        os.utime(paths["/dev/termination-log"], (now + begun, now + begun))
        node = Kubelet(probe_of(PLUGIN), paths, lambda: None, ["sh"])
        assert node.probe() is (begun > 0), "its daemon does not run"
        (directory / ".started").unlink()


@pytest.mark.parametrize("name", [PLUGIN, DRA])
def test_a_patch_adds_the_probe_to_the_right_container(name: str, tmp_path: Path) -> None:
    """The manifests have the containers and the defaults of those of 0.18 to 0.20 and 0.4."""
    before = MANIFESTS[name]
    after = patched(before, PROBES / f"{name}.yaml", tmp_path)

    changed = after["spec"]["template"]["spec"]["containers"]
    (container,) = [each for each in changed if each.pop("livenessProbe", None)]
    assert container["name"] == {PLUGIN: "mps-control-daemon-ctr", DRA: "mps-control-daemon"}[name]
    assert after["spec"]["template"] == before["spec"]["template"]
    assert after["spec"].get("strategy") == ({"type": "Recreate"} if name == DRA else None)


class Claim:
    """The directories of a claim, and the pods of its Deployment."""

    def __init__(self, mps: MpsStandIn) -> None:
        self.mps = mps
        self.startup_log = mps.log_directory / "startup.log"
        for directory in (mps.pipe_directory, mps.log_directory):
            directory.mkdir(parents=True)

    def start_pod(self) -> bool:
        """Run the script of a pod until it waits; return whether the pod is Ready. Of two daemons, one can start."""
        script = 'set -e; rm -f "$0"; nvidia-cuda-mps-control -d >&2; echo "startup complete" >"$0"'
        environment = os.environ | self.mps.environment()
        return subprocess.run(["sh", "-c", script, str(self.startup_log)], env=environment, check=False).returncode == 0

    def roll_out(self, deployment: Object) -> bool:
        """Replace the pod as the Deployment's controller does with one replica; return whether the new pod is Ready."""
        recreates = deployment["spec"]["strategy"]["type"] == "Recreate"
        if recreates:
            self.mps.kill()
        ready = self.start_pod()
        if ready and not recreates:
            self.mps.kill()
        return ready


def test_the_pod_of_a_claim_ends_before_the_next_one_starts(tmp_path: Path) -> None:
    """Beside the first pod, a second one would fail, and remove the file that declares the daemon of the first."""
    with MpsStandIn(tmp_path / "claim") as mps:
        claim = Claim(mps)
        assert claim.start_pod()
        first = mps.pid
        assert not claim.roll_out(MANIFESTS[DRA])
        assert (mps.pid, claim.startup_log.exists()) == (first, False)

        assert claim.roll_out(patched(MANIFESTS[DRA], PROBES / f"{DRA}.yaml", tmp_path))
        assert (mps.pid != first, claim.startup_log.exists()) == (True, True)
        assert mps.ask("get_server_list").returncode == 0


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
    node = Kubelet(probe_of(PLUGIN), paths_of_container(tmp_path), lambda: None, ["sh"])
    assert node.probe()


def test_one_of_several_daemons_that_died_fails(tmp_path: Path) -> None:
    with (
        MpsStandIn(tmp_path / "nvidia.com" / "gpu.shared") as one,
        MpsStandIn(tmp_path / "nvidia.com" / "gpu") as other,
    ):
        paths = paths_of_container(tmp_path)
        for mps in (one, other):
            mps.start()
            mps.pipe_directory.with_name(".started").touch()
        node = Kubelet(probe_of(PLUGIN), paths, lambda: None, ["sh"])
        assert node.probe()
        other.kill()
        assert not node.probe()
