"""A node and a pod on it, with the mounts, user, capabilities and PID namespace of the chart.

The node has a PID namespace of its own, so that the pod does not see the processes of this machine.
"""

import os
import shlex
import signal
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from exporter.collectors.pods import ACCOUNT
from tests import program
from tests.containers import Container
from tests.deploy.manifests import container, pod, the
from tests.eventually import PATIENCE_SECONDS
from tests.exporter_process import Exporter
from tests.tools import needed

OF_THE_NODE = ("tmp", "proc", "sys", "dev", "run", "var", "etc", "mnt", "boot", "media", "lost+found")
"""A container has directories of its own here, or none. The rest of this machine is its image."""

FROM_THE_IMAGE = ("ld.so.cache", "passwd", "group")


class Node:
    """A directory that represents a node's file system, with one pod. The context manager kills all processes.

    All PIDs that it takes and gives are those of the node's PID namespace.
    """

    def __init__(self, directory: Path, variant: str) -> None:
        self.directory = directory
        self._variant = variant
        self._cgroups: dict[int, str] = {}
        self._service_account: Path | None = None
        self._processes = Container(directory, own_files=False)
        for volume in pod(variant)["volumes"]:
            self.source(volume).mkdir(parents=True, exist_ok=True)
            if "emptyDir" in volume:
                self.source(volume).chmod(0o777)  # as the kubelet does
        for name, text in the("ConfigMap", variant)["data"].items():
            (directory / "config" / name).write_text(text)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._processes.__exit__(kind, problem, trace)

    def client(self, program: str = "sleep") -> int:
        """Start a process on the node; return its PID there. `program` is a copy of `sleep`."""
        inner, _ = self._processes.client(program)
        return inner

    def start(self, *command: str, environment: Mapping[str, str]) -> None:
        """Start a program on the node."""
        self._processes.start_program(*command, environment=environment)

    def kill(self, pid: int) -> None:
        """Send SIGKILL to a control daemon of the node, by its PID in its own namespace."""
        (found,) = [each[0] for each in self._processes.all() if each[-1] == pid and _is_daemon(each[0])]
        os.kill(found, signal.SIGKILL)

    def path(self, path: str) -> Path:
        """Return where a path of the node is."""
        return self.directory / "root" / path.lstrip("/")

    def source(self, volume: Mapping[str, object]) -> Path:
        """Return where a volume's files are."""
        host = volume.get("hostPath")
        return self.path(host["path"]) if isinstance(host, dict) else self.directory / str(volume["name"])

    def set_cgroup(self, pid: int, cgroup: str) -> None:
        """Show this cgroup for a running process in the pod."""
        self._cgroups[pid] = cgroup

    def set_service_account(self, account: Path) -> None:
        """Give the pod this directory of a service account."""
        self._service_account = account

    def exporter(self, environment: Mapping[str, str], *arguments: str) -> "PodExporter":
        """Start the pod's only process."""
        script = self.directory / "pod.sh"
        script.write_text("\n".join(self._script(environment, *container(self._variant)["args"], *arguments)))
        become = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        ours = {each["name"]: each["value"] for each in container(self._variant).get("env", ())}
        command = (*self._processes.enter(), "unshare", "--mount", "sh", "-e", str(script))
        # A pod has the variables of the chart only; one that is empty sets nothing. Its paths are its own.
        unset = dict.fromkeys((name for name in os.environ if name.startswith("CUDA_MPS_EXPORTER_")), "")
        unset |= {"RUNTIME_DIRECTORY": "", "STATE_DIRECTORY": "", program.VARIABLE: "{}"}
        variables = {**unset, **ours, **environment}
        return PodExporter(["-c", become, *command], variables, self.directory / "exporter.log")

    def _script(self, environment: Mapping[str, str], *arguments: str) -> Iterator[str]:
        root = self.directory / "container"
        root.mkdir()
        yield f"mount -t tmpfs none {root}"
        yield from self.image(root, environment)
        for pid, cgroup in self._cgroups.items():
            file = self.directory / f"cgroup-{pid}"
            file.write_text(cgroup)
            yield f"mount --bind {file} {root}/proc/{pid}/cgroup"
        yield from self._mounts(root)
        if self._service_account is not None:
            target = f"{root}{ACCOUNT}"
            yield f"mkdir -p {target} && mount --bind {self._service_account} {target}"
        yield f"mount -o remount,ro,bind {root}"
        rights = container(self._variant)["securityContext"]["capabilities"]["add"]
        bounds = ",".join(["-all", *(f"+{each.lower()}" for each in rights)])
        command = [sys.executable, *program.command(*arguments, intervals={"nvml": 1}, discovery_period=1)]
        yield f"cd {root}"
        yield (
            f"exec chroot {root} {needed('setpriv')} --bounding-set={bounds} --inh-caps=-all --no-new-privs "
            f"sh -c {shlex.quote(f'cd {Path.cwd()}; exec {shlex.join(command)}')}"
        )

    @staticmethod
    def image(root: Path, environment: Mapping[str, str]) -> Iterator[str]:
        """Yield the commands that make a root directory of this machine's files.

        In /tmp it has only what the paths in the environment need: other tests make and remove directories there.
        """
        yield f"mkdir {root}/tmp"
        paths = (sys.prefix, sys.base_prefix, Path.cwd(), *":".join(environment.values()).split(":"))
        needed_in_tmp = {Path(*each.parts[:3]) for each in map(Path, paths) if each.parts[:2] == ("/", "tmp")}
        for each in (*sorted(Path("/").iterdir()), *sorted(needed_in_tmp)):
            if each.is_symlink():
                yield f"ln -s {os.readlink(each)} {root}{each}"
            elif each.is_dir() and each.name not in OF_THE_NODE:
                yield f"mkdir {root}{each} && mount --rbind {each} {root}{each}"
        yield f"mkdir {root}/etc"
        yield from (f"cp /etc/{name} {root}/etc/{name}" for name in FROM_THE_IMAGE)
        yield from (f"mkdir {root}/{name} && mount --rbind /{name} {root}/{name}" for name in ("proc", "sys", "dev"))

    def _mounts(self, root: Path) -> Iterator[str]:
        volumes = {each["name"]: self.source(each) for each in pod(self._variant)["volumes"]}
        for mount in container(self._variant)["volumeMounts"]:
            target, source = f"{root}{mount['mountPath']}", volumes[mount["name"]]
            if mount["mountPath"] == "/tmp":
                # The checkout and the stand-ins can be in this machine's /tmp.
                target, source = f"{target}/nvidia-mps", source / "nvidia-mps"
                source.mkdir(exist_ok=True)
            yield f"mkdir -p {target} && mount --bind {source} {target}"
            if mount.get("readOnly"):
                yield f"mount -o remount,ro,bind {target}"


def _is_daemon(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"nvidia-cuda-mps-control\0")


class PodExporter(Exporter):
    """The exporter in the node's PID namespace; `process` is the `nsenter` that waits for it there."""

    def stop(self) -> int:
        """Send SIGTERM, and return the exit code."""
        (exporter,) = psutil.Process(self.process.pid).children()
        exporter.terminate()
        return self.process.wait(PATIENCE_SECONDS)
