"""Control daemons on a node as each MPS installation starts them: directories, mounts, chroots and namespaces."""

import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY, LOG_DIRECTORY, PIPE_DIRECTORY
from tests.deploy.node import Node
from tests.standin.mps import MpsStandIn, wait_until
from tests.tools import needed

PLUGIN = "/run/nvidia/mps"
"""mps.root of NVIDIA's device plugin. Its pod has this directory at another path."""

DRA = "/var/lib/kubelet/plugins/gpu.nvidia.com/mps"
CLAIM = "0b4a3c5e-7f1d-4d0c-9a53-2f6b1c8e9d10"

INSIDE = "/mnt"


class Layout:
    """A daemon of an installation: its name for the exporter, and the file by which the node declares it."""

    def __init__(
        self,
        node: Node,
        directories: tuple[str, str],
        declaration: str,
        start: Callable[["Layout"], None],
        *,
        text: str = "",
        withdraw: Callable[[Path], object] = Path.unlink,
        label: str | None = None,
        pod: tuple[str, str] | None = None,
    ) -> None:
        """`directories` are those of pipes and logs on the node. `text` is that of the declaration.

        `start` starts the daemon, and `withdraw` gets the declaration. `pod` has namespace and name of the daemon's
        pod, with the node's PIDs; None if it has none.
        """
        name, log = directories
        self.name, self.directory = label or name, name
        self.pod = pod
        self.mps = MpsStandIn(node.path(name).parent)
        self.mps.pipe_directory, self.mps.log_directory = node.path(name), node.path(log)
        for directory in (self.mps.pipe_directory, self.mps.log_directory):
            directory.mkdir(parents=True, exist_ok=True)
        self._node = node
        self._declaration, self._text = node.path(declaration), text
        self._start, self._withdraw = start, withdraw

    def start(self) -> None:
        """Start the daemon, then declare it."""
        self._start(self)
        pid = self.mps.pipe_directory / "nvidia-cuda-mps-control.pid"
        wait_until(lambda: pid.exists() and pid.read_text() != "", "the daemon")
        self._declaration.parent.mkdir(parents=True, exist_ok=True)
        self._declaration.write_text(self._text)

    def show_pod(self, uid: str, cgroup: str) -> None:
        """Have the running daemon in its pod with this UID, as the kubelet and the kernel show it."""
        if self.pod is not None:
            self._node.path(f"/var/log/pods/{'_'.join(self.pod)}_{uid}").mkdir(parents=True, exist_ok=True)
            self._node.set_cgroup(self.mps.pid, cgroup)

    def withdraw(self) -> None:
        """End the declaration, as the installation does when it no longer needs the daemon."""
        self._withdraw(self._declaration)

    def die(self) -> None:
        """Kill the daemon."""
        self._node.kill(self.mps.pid)


def device_plugin(node: Node, resource: str = "nvidia.com/gpu", *, host_pid: bool = True) -> Layout:
    """Return a daemon of NVIDIA's device plugin (0.15 to 0.20), with or without mps.enableHostPID (from 0.18)."""
    directory = f"{PLUGIN}/{resource}"
    script = f"mount --bind {node.path(PLUGIN)} {INSIDE} && nvidia-cuda-mps-control -d && exec sleep 600"
    variables = MpsStandIn(Path(INSIDE) / resource).environment()

    def start(_: Layout) -> None:
        _in_pod(node, script, variables, host_pid=host_pid)
        node.path(f"{PLUGIN}/.ready").touch()

    pod = ("gpu-operator", "nvidia-device-plugin-mps-control-daemon-x7k2p") if host_pid else None
    return Layout(node, (f"{directory}/pipe", f"{directory}/log"), f"{directory}/.started", start, pod=pod)


def bottlerocket(node: Node) -> Layout:
    """Return the daemon of the device plugin as a service of the node (bottlerocket-core-kit, pull request 789)."""
    directory = f"{PLUGIN}/nvidia.com/gpu.shared"

    def start(layout: Layout) -> None:
        _start(node)(layout)
        node.path(f"{PLUGIN}/.ready").touch()

    return Layout(node, (f"{directory}/pipe", f"{directory}/log"), f"{directory}/.started", start)


def host(node: Node) -> Layout:
    """Return the daemon of a node that runs MPS itself. The label of the node declares it."""
    return Layout(
        node,
        (DEFAULT_PIPE_DIRECTORY, DEFAULT_LOG_DIRECTORY),
        "/etc/systemd/system/mps.service",
        _start(node),
        label="node",
    )


def dra(node: Node, *, chroot: bool) -> Layout:
    """Return a daemon of NVIDIA's DRA driver (0.4 and 0.5), in a chroot if the driver's root has a shell."""
    directory = f"{DRA}/{CLAIM}-0a1b2"
    root = node.directory / "driver-root"
    root.mkdir(exist_ok=True)

    def start(layout: Layout) -> None:
        # In the chroot, the directories are the defaults of MPS.
        prefix = "" if chroot else str(root)
        variables = {
            **layout.mps.environment(),
            PIPE_DIRECTORY: prefix + DEFAULT_PIPE_DIRECTORY,
            LOG_DIRECTORY: prefix + DEFAULT_LOG_DIRECTORY,
        }
        mounts = [f"mount -t tmpfs none {root}", *(node.image(root, variables) if chroot else ())]
        for name, source in (
            (DEFAULT_PIPE_DIRECTORY, layout.mps.pipe_directory),
            (DEFAULT_LOG_DIRECTORY, layout.mps.log_directory),
        ):
            mounts.append(f"mkdir -p {root}{name} && mount --bind {source} {root}{name}")
        unset = f"chroot {root} env -u {PIPE_DIRECTORY} -u {LOG_DIRECTORY} " if chroot else ""
        script = " && ".join([*mounts, f"{unset}nvidia-cuda-mps-control -d", "exec sleep 600"])
        _in_pod(node, script, variables, host_pid=True)

    return Layout(
        node,
        (f"{directory}/pipe", f"{directory}/log"),
        f"{directory}/log/startup.log",
        start,
        text="startup complete\n",
        withdraw=lambda _: shutil.rmtree(node.path(directory)),
        # A generated name is shortened to 63 characters.
        pod=("dra-driver-nvidia-gpu", f"{f'mps-control-daemon-{CLAIM}-0a1b2'[:58]}x7k2p"),
    )


def gke(node: Node) -> Layout:
    """Return the daemon of a GKE node, which its device plugin expects."""
    return Layout(
        node,
        (DEFAULT_PIPE_DIRECTORY, DEFAULT_LOG_DIRECTORY),
        "/etc/nvidia/gpu_config.json",
        _start(node),
        text='{"GPUSharingConfig": {"GPUSharingStrategy": "mps", "MaxSharedClientsPerGPU": 48}}',
    )


def _start(node: Node) -> Callable[[Layout], None]:
    """Return what starts a daemon with the directories and the PIDs of the node."""
    script = "nvidia-cuda-mps-control -d && exec sleep 600"
    return lambda layout: _in_pod(node, script, layout.mps.environment(), host_pid=True)


def _in_pod(node: Node, script: str, variables: Mapping[str, str], *, host_pid: bool) -> None:
    own_pids = [] if host_pid else ["--pid", "--fork", "--mount-proc"]
    unshare = (needed("unshare"), "--mount", *own_pids, "--kill-child")
    node.start(*unshare, "sh", "-ec", script, environment=variables)
