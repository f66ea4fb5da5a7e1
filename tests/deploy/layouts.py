"""Control daemons on a node as each MPS installation starts them: directories, mounts, chroots and namespaces."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.deploy.node import Node
from tests.standin.mps import MpsStandIn, wait_until
from tests.tools import needed

PLUGIN = "/run/nvidia/mps"
"""mps.root of NVIDIA's device plugin. Its pod has this directory at another path."""

DRA = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps"
CLAIM = "0b4a3c5e-7f1d-4d0c-9a53-2f6b1c8e9d10"

DEFAULT_PIPE, DEFAULT_LOG = "/tmp/nvidia-mps", "/var/log/nvidia-mps"

INSIDE = "/mnt"


class Layout:
    """A daemon of an installation: its name for the exporter, and the file by which the node declares it."""

    def __init__(self, node: Node, name: str, log: str, declaration: str, declared: str = "") -> None:
        """`declared` is the text of the declaration."""
        self.name = name
        self.mps = MpsStandIn(node.path(name).parent)
        self.mps.pipe_directory, self.mps.log_directory = node.path(name), node.path(log)
        for directory in (self.mps.pipe_directory, self.mps.log_directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._node = node
        self._declaration, self._declared = node.path(declaration), declared
        self._start: Callable[[], None] = lambda: None
        self._withdraw: Callable[[Path], object] = Path.unlink

    def start(self) -> None:
        """Start the daemon, then declare it."""
        self._start()
        wait_until((self.mps.pipe_directory / "nvidia-cuda-mps-control.pid").exists, "the daemon")
        self._declaration.parent.mkdir(parents=True, exist_ok=True)
        self._declaration.write_text(self._declared)

    def withdraw(self) -> None:
        """End the declaration, as the installation does when it no longer needs the daemon."""
        self._withdraw(self._declaration)

    def die(self) -> None:
        """Kill the daemon."""
        self._node.kill(self.mps.pid)


def device_plugin(node: Node, resource: str = "nvidia.com/gpu", *, host_pid: bool = True) -> Layout:
    """Return a daemon of NVIDIA's device plugin (0.15 to 0.19), with or without mps.enableHostPID."""
    directory = f"{PLUGIN}/{resource}"
    layout = Layout(node, f"{directory}/pipe", f"{directory}/log", f"{directory}/.started")
    script = f"mount --bind {node.path(PLUGIN)} {INSIDE} && nvidia-cuda-mps-control -d && exec sleep 600"
    variables = MpsStandIn(Path(INSIDE) / resource).environment()
    layout._start = lambda: _in_pod(node, script, variables, host_pid=host_pid)
    return layout


def dra(node: Node, *, chroot: bool) -> Layout:
    """Return a daemon of NVIDIA's DRA driver (25.x), in a chroot if the driver's root has a shell."""
    directory = f"{DRA}/{CLAIM}-0a1b2"
    layout = Layout(node, f"{directory}/pipe", f"{directory}/log", f"{directory}/log/startup.log", "startup complete\n")
    root = node.directory / "driver-root"
    root.mkdir(exist_ok=True)
    inside = MpsStandIn(Path("/unused"))
    mounts = [f"mount -t tmpfs none {root}"]
    if chroot:
        mounts += [*node.image(root)]
    for name, source in ((DEFAULT_PIPE, layout.mps.pipe_directory), (DEFAULT_LOG, layout.mps.log_directory)):
        mounts.append(f"mkdir -p {root}{name} && mount --bind {source} {root}{name}")
    prefix = "" if chroot else str(root)
    inside.pipe_directory, inside.log_directory = Path(prefix + DEFAULT_PIPE), Path(prefix + DEFAULT_LOG)
    variables = inside.environment()
    if chroot:
        start = f"chroot {root} env -u CUDA_MPS_PIPE_DIRECTORY -u CUDA_MPS_LOG_DIRECTORY nvidia-cuda-mps-control -d"
    else:
        start = "nvidia-cuda-mps-control -d"
    script = " && ".join([*mounts, start, "exec sleep 600"])
    layout._start = lambda: _in_pod(node, script, variables, host_pid=True)
    layout._withdraw = lambda _: shutil.rmtree(node.path(directory))
    return layout


def gke(node: Node) -> Layout:
    """Return the daemon of a GKE node, which its device plugin expects."""
    configuration = '{"GPUSharingConfig": {"GPUSharingStrategy": "mps", "MaxSharedClientsPerGPU": 48}}'
    layout = Layout(node, DEFAULT_PIPE, DEFAULT_LOG, "/etc/nvidia/gpu_config.json", configuration)
    layout._start = lambda: _in_pod(
        node, "nvidia-cuda-mps-control -d && exec sleep 600", layout.mps.environment(), host_pid=True
    )
    return layout


def _in_pod(node: Node, script: str, variables: Mapping[str, str], *, host_pid: bool) -> None:
    own_pids = [] if host_pid else ["--pid", "--fork", "--mount-proc"]
    unshare = (needed("unshare"), "--mount", *own_pids, "--kill-child")
    node.start(*unshare, "sh", "-ec", script, environment=variables)
