"""Podman, containerd and Slurm with files, sockets, ports and namespaces of their own.

They run in a PID namespace that ends them all. If the machine has cgroup v2, even without controllers, the container
runtimes have only that.
"""

import contextlib
import json
import os
import secrets
import shutil
import socket
import subprocess
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.containers import Container, pids
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.shared_objects import shared_object
from tests.tools import needed

CGROUPS = Path("/sys/fs/cgroup")
MOUNT_CGROUP2 = f"umount -R {CGROUPS} && mount -t cgroup2 none {CGROUPS}"
SLEEP = ("/bin/busybox", "sleep", "600")


class Place:
    """Namespaces in which the programs of a test run, with a directory. `more` are options of unshare(1)."""

    def __init__(self, directory: Path, *more: str) -> None:
        self.directory = directory
        self._container = Container(directory, own_files=False, more=more)
        self.init = self._container.init
        self._removed: list[str] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        for numbers in self._container.all():
            if numbers[0] != self._container.init:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(numbers[0], 9)
        for cgroup in self._removed:
            eventually(lambda cgroup=cgroup: self._remove(cgroup))
        self._container.__exit__(kind, problem, trace)

    def use_cgroup2(self) -> None:
        """Show only the hierarchy of version 2."""
        self.run("sh", "-c", MOUNT_CGROUP2)

    def start(self, *command: str, **variables: str) -> None:
        """Start a program."""
        self._container.start_program(*command, environment=variables)

    def run(self, *command: str, **variables: str) -> str:
        """Run a program that must succeed, and return its output."""
        done = subprocess.run(
            [*self._container.enter(), *command],
            capture_output=True,
            text=True,
            env=os.environ | variables,
            timeout=PATIENCE_SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def pids(self) -> list[int]:
        """Return the PIDs here of all processes."""
        return [each[0] for each in self._container.all()]

    def process(self, *cgroup: str) -> int:
        """Return the PID here of the only `sleep` in a cgroup whose path has these parts."""

        def found() -> int:
            pids = [each[0] for each in self._container.all() if _sleeps(each[0]) and _is_in(each[0], cgroup)]
            assert len(pids) == 1
            return pids[0]

        return eventually(found)

    def remove_cgroup(self, path: str) -> None:
        """Remove a cgroup and those below it at the end."""
        self._removed.append(path)

    def _remove(self, cgroup: str) -> None:
        self.run("sh", "-c", f"[ ! -d {cgroup} ] || find {cgroup} -depth -type d -exec rmdir {{}} +")


def _sleeps(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return b"sleep\x00600\x00" in Path(f"/proc/{pid}/cmdline").read_bytes() and len(pids(pid)) > 1
    return False


def _is_in(pid: int, parts: tuple[str, ...]) -> bool:
    with contextlib.suppress(OSError):
        text = Path(f"/proc/{pid}/cgroup").read_text()
        return any(all(part in line for part in parts) for line in text.splitlines())
    return False


def make_rootfs(directory: Path) -> Path:
    """Make the files of a container: one static program."""
    (directory / "bin").mkdir(parents=True)
    shutil.copy(needed("busybox"), directory / "bin")
    return directory


class Podman:
    """Containers of podman."""

    def __init__(self, place: Place) -> None:
        self._place = place
        directory = place.directory / "podman"
        self._files = make_rootfs(directory / "files")
        options = {
            "root": directory / "storage",
            "runroot": directory / "run",
            "tmpdir": directory / "tmp",
            "storage-driver": "vfs",
            "cgroup-manager": "cgroupfs",
            "runtime": needed("crun"),
            "events-backend": "none",
        }
        self._command = (needed("podman"), *(f"--{name}={value}" for name, value in options.items()))
        place.use_cgroup2()

    def start(self) -> tuple[str, int]:
        """Start a container; return its ID and the PID of its process."""
        # The machine may not permit higher limits (setrlimit: EPERM), nor a cgroup to have devices or pids.
        usual = ("--network=none", "--privileged", "--pids-limit=0", "--log-driver=none")
        limits = ("--ulimit=nofile=1024:1024", "--ulimit=nproc=1024:1024")
        files = ("--rootfs", str(self._files))
        container = self._place.run(*self._command, "run", "-d", *usual, *limits, *files, *SLEEP)
        self._place.remove_cgroup(f"{CGROUPS}/libpod_parent/libpod-{container}")
        return container, self._place.process(container)

    def remove(self, container: str) -> None:
        """End and remove a container."""
        self._place.run(*self._command, "rm", "--force", "--time=0", container)


class Containerd:
    """Tasks of containerd, as its CRI plugin and as nerdctl start them."""

    def __init__(self, place: Place) -> None:
        self._place = place
        needed("runc")
        self._directory = directory = place.directory / "containerd"
        self._files = make_rootfs(directory / "files")
        self._socket = directory / "socket"
        configuration = f"""
            version = 2
            root = "{directory}/root"
            state = "{directory}/state"
            disabled_plugins = ["io.containerd.grpc.v1.cri"]
            [grpc]
            address = "{self._socket}"
            [ttrpc]
            address = "{self._socket}.ttrpc"
        """
        (directory / "config.toml").write_text(configuration)
        place.use_cgroup2()
        place.start(needed("containerd"), "--config", str(directory / "config.toml"), "--log-level=fatal")
        eventually(lambda: self._ctr("default", "version"))

    def start(self, namespace: str, cgroup: str) -> tuple[str, int]:
        """Start a task in a cgroup, in whose path `ID` is its ID; return the ID and the PID of its process."""
        container = secrets.token_hex(32)
        path = cgroup.replace("ID", container)
        specification = {
            "ociVersion": "1.0.2",
            "process": {"user": {"uid": 0, "gid": 0}, "args": SLEEP, "cwd": "/"},
            "root": {"path": str(self._files)},
            "mounts": [{"destination": "/proc", "type": "proc", "source": "proc"}],
            "linux": {
                "cgroupsPath": path,
                "namespaces": [{"type": each} for each in ("pid", "ipc", "uts", "mount", "cgroup")],
            },
        }
        file = self._directory / f"{container}.json"
        file.write_text(json.dumps(specification))
        self._place.remove_cgroup(f"{CGROUPS}{path}")
        self._ctr(namespace, "run", "--detach", f"--config={file}", container)
        return container, self._place.process(container)

    def _ctr(self, namespace: str, *words: str) -> None:
        self._place.run(needed("ctr"), f"--address={self._socket}", f"--namespace={namespace}", *words)


_CGROUP2_ALONE = """
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int open(const char *path, int flags, ...) {
    va_list mode;
    va_start(mode, flags);
    int file = syscall(SYS_openat, AT_FDCWD, path, flags, va_arg(mode, mode_t));
    va_end(mode);
    if (file < 0 || strcmp(path, "/proc/self/cgroup") != 0) return file;
    char text[4096] = {0};
    read(file, text, sizeof(text) - 1);
    close(file);
    file = memfd_create("cgroup", MFD_CLOEXEC);
    char *line = strstr(text, "0::/");
    write(file, line, strlen(line));
    lseek(file, 0, SEEK_SET);
    return file;
}
"""
"""Makes /proc/self/cgroup look as on a machine with cgroup v2 alone: Slurm refuses to start if it has other lines."""


class Slurm:
    """Jobs of a cluster with one node: munged, slurmctld and slurmd, with this version of cgroups."""

    def __init__(self, place: Place, version: str) -> None:
        self._place = place
        directory = place.directory
        for name in ("state", "spool", "munge"):
            (directory / name).mkdir(mode=0o755)
        (directory / "munge" / "key").write_bytes(secrets.token_bytes(1024))
        (directory / "munge" / "key").chmod(0o600)
        # A cgroup of Slurm has the name of the node.
        node, host = f"t{secrets.token_hex(4)}", socket.gethostname()
        ports = _free_ports()
        automatic = "CgroupAutomount=yes" if version == "v1" else "IgnoreSystemd=yes"
        (directory / "cgroup.conf").write_text(f"CgroupPlugin=cgroup/{version}\n{automatic}\n")
        (directory / "slurm.conf").write_text(
            f"""
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthInfo=socket={directory}/munge/socket
StateSaveLocation={directory}/state
SlurmdSpoolDir={directory}/spool
SlurmctldPidFile={directory}/slurmctld.pid
SlurmdPidFile={directory}/slurmd.pid
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
ProctrackType=proctrack/cgroup
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2
PartitionName=p Nodes={node} Default=YES OverSubscribe=FORCE:8
"""
        )
        self._environment = {"SLURM_CONF": str(directory / "slurm.conf")}
        files = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log", "seed-file": "seed"}
        munge = [f"--{option}={directory}/munge/{name}" for option, name in files.items()]
        place.start(needed("munged"), "--force", "--foreground", *munge)
        place.start(needed("slurmctld"), "-D", **self._environment)
        variables = dict(self._environment)
        if version == "v2":
            place.use_cgroup2()
            place.run("mkdir", "-p", f"{CGROUPS}/system.slice")
            shim = shared_object(directory / "cgroup2.so", source=_CGROUP2_ALONE)
            variables |= {"LD_PRELOAD": str(shim), "INVOCATION_ID": "0"}  # with the latter, slurmd stays where it is
        place.start(needed("slurmd"), "-D", "-N", node, **variables)
        self._scope = f"{CGROUPS}/system.slice/{node}_slurmstepd.scope"
        place.remove_cgroup(f"{CGROUPS}/freezer/slurm_{node}" if version == "v1" else self._scope)
        eventually(self._assert_idle)

    def _assert_idle(self) -> None:
        assert self._place.run(needed("sinfo"), "--noheader", "--format=%t", **self._environment) == "idle"

    def submit(self) -> tuple[str, int]:
        """Submit a job; return its ID and the PID of its process."""
        words = ("--parsable", "--chdir=/", "--output=/dev/null", "--wrap=exec sleep 600")
        job = self._place.run(needed("sbatch"), *words, **self._environment)
        return job, self._place.process(f"job_{job}/")

    def move_to_sluid(self, job: str) -> str:
        """Move a job's processes and its slurmstepd to the directory that Slurm 26.05 has for it; return the SLUID."""
        sluid = "s" + job.zfill(13)
        script = f"""cd {self._scope} && find job_{job} -type d | sort | while read -r old; do
            new={sluid}${{old#job_{job}}} && mkdir $new
            while read -r pid; do echo $pid >$new/cgroup.procs; done <$old/cgroup.procs; done"""
        self._place.run("sh", "-ec", script)
        return sluid

    def cancel(self, job: str) -> None:
        """End a job."""
        self._place.run(needed("scancel"), job, **self._environment)


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]
