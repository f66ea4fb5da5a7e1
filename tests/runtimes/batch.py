"""HTCondor and Grid Engine in trees of Debian, on a node of their own with two users.

The Debian of the machine need not have them: each tree is of a release that does.
"""

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.containers import pids
from tests.eventually import eventually
from tests.runtimes.programs import CGROUPS, Place
from tests.tools import needed

ROOT = Path(__file__).parents[2]
ALICE, BOB = 61_001, 61_002  # No user of this machine has them, so their names are their UIDs.
NODE, ADDRESS = "n1", "10.99.0.1"
BUILD_SECONDS = 300
JOB = """#!/bin/sh
id=$1${SGE_TASK_ID#undefined}
setsid setsid sleep 600 2 $id &
setsid sleep 600 1 $id &
exec sleep 600 0 $id
"""
"""A job with three processes: its first one, one in another session, and one that has lost its parent."""


_ENVIRONMENT = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}


class Tree:
    """A Debian with these packages and two users, as the root of programs in the namespaces of a place."""

    def __init__(self, place: Place, release: str, *packages: str) -> None:
        self._place = place
        self.root = place.directory / "tree"
        self.root.mkdir()
        self._files = Path(f"/proc/{place.init}/root{self.root}")
        place.run("mount", "-t", "tmpfs", "-o", "mode=755", "none", str(self.root))
        # Grid Engine's own installation looks up the name of the machine.
        hosts = f'echo "{ADDRESS} $(hostname)" >"$1/etc/hosts"'
        words = ("--quiet", "--variant=minbase", f"--include={','.join(packages)}", f"--essential-hook={hosts}")
        # The build needs the network of the machine.
        enter = (needed("nsenter"), f"--target={place.init}", "--mount", "--pid", "--")
        command = (*enter, needed("mmdebstrap"), *words, release, str(self.root))
        environment = os.environ | {"TMPDIR": str(self.root.parent)}
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False, env=environment
        )
        assert done.returncode == 0, done.stderr[-5000:]
        self.write("/etc/hosts", f"127.0.0.1 localhost\n{ADDRESS} {NODE}\n")
        self.write("/usr/local/bin/job", JOB)
        for uid in (ALICE, BOB):
            self.run("groupadd", f"--gid={uid}", f"user{uid}")
            self.run("useradd", f"--uid={uid}", f"--gid={uid}", "--home=/tmp", f"user{uid}")
        mounts = f"""
            hostname {NODE} && ip link set lo up && ip addr add {ADDRESS}/32 dev lo
            mount -t proc proc {self.root}/proc && mount --rbind /dev {self.root}/dev
            mount --bind /sys {self.root}/sys && mount -t cgroup2 none {self.root}{CGROUPS}
        """
        place.run("sh", "-ec", mounts)

    def write(self, path: str, text: str) -> None:
        """Write a file in the tree, which all may run."""
        file = self._files / path.lstrip("/")
        file.write_text(text)
        file.chmod(0o755)

    def run(self, *command: str, user: int = 0, variables: Mapping[str, str] = _ENVIRONMENT) -> str:
        """Run a command that must succeed in the tree as this user, and return its output."""
        return self._place.run(*self._enter(user), *command, **{**_ENVIRONMENT, **variables})

    def start(self, *command: str, user: int = 0) -> None:
        """Start a program in the tree as this user."""
        self._place.start(*self._enter(user), *command, **_ENVIRONMENT)

    def _enter(self, user: int) -> tuple[str, ...]:
        return ("chroot", f"--userspec={user}:{user}", "--groups=", str(self.root), "env", "-C", "/tmp")

    def processes(self, job: str) -> list[int]:
        """Return the PIDs inside of the three processes of a job."""
        wanted = [("sleep", "600", str(number), job) for number in range(3)]

        def found() -> list[int]:
            running = {_arguments(pid): pids(pid)[-1] for pid in self._place.pids()}
            assert set(wanted) <= running.keys()
            return [running[each] for each in wanted]

        return eventually(found)

    def readings(self, *inside: int) -> Mapping[int, Mapping[str, Any]]:
        """Return what the exporter's collectors report of these processes, in their PID namespace."""
        command = (sys.executable, "-m", "tests.runtimes.read_processes", *map(str, inside))
        lines = self._place.run(*command, PYTHONPATH=str(ROOT)).splitlines()
        return {int(pid): reading for pid, reading in json.loads(lines[-1]).items()}


def _arguments(pid: int) -> tuple[str, ...]:
    try:
        return tuple(Path(f"/proc/{pid}/cmdline").read_text().rstrip("\0").split("\0"))
    except OSError:
        return ()


CONDOR = """
use security:host_based
ALLOW_READ = *
ALLOW_WRITE = *
ALLOW_ADMINISTRATOR = *
ALLOW_DAEMON = *
ALLOW_NEGOTIATOR = *
SEC_DEFAULT_AUTHENTICATION = OPTIONAL
SEC_DEFAULT_ENCRYPTION = OPTIONAL
SEC_DEFAULT_INTEGRITY = OPTIONAL
CONDOR_HOST = 127.0.0.1
NETWORK_INTERFACE = 127.0.0.1
DAEMON_LIST = MASTER COLLECTOR NEGOTIATOR SCHEDD STARTD
NUM_CPUS = 8
MEMORY = 4096
NEGOTIATOR_INTERVAL = 2
NEGOTIATOR_CYCLE_DELAY = 1
SCHEDD_INTERVAL = 2
UPDATE_INTERVAL = 2
START = True
PREEMPT = False
RUNBENCHMARKS = False
BASE_CGROUP = htcondor
"""

PERSONAL = """
BIN = /usr/bin
SBIN = /usr/sbin
LIB = /usr/lib/condor
LIBEXEC = /usr/libexec/condor
LOCAL_DIR = /tmp/personal
LOG = $(LOCAL_DIR)/log
LOCK = $(LOCAL_DIR)/lock
RUN = $(LOCAL_DIR)/run
SPOOL = $(LOCAL_DIR)/spool
EXECUTE = $(LOCAL_DIR)/execute
PROCD_ADDRESS = $(LOCAL_DIR)/lock/procd
COLLECTOR_HOST = 127.0.0.1:9700
USE_SHARED_PORT = False
"""
"""Of a user's own HTCondor, beside that of the node."""
IN_PERSONAL = {"CONDOR_CONFIG": "/tmp/personal.config"}

NAMED = "STARTER_LOG_NAME_APPEND = JobId\n"
"""The arguments of a starter have the job."""


class HTCondor:
    """HTCondor with one node, which has no number of a job in the arguments of its starters."""

    def __init__(self, tree: Tree, place: Place) -> None:
        self._tree = tree
        place.remove_cgroup(f"{tree.root}{CGROUPS}/htcondor")
        tree.write("/etc/condor/config.d/00-htcondor-9.0.config", CONDOR)
        directories = "/run/condor /run/lock/condor /var/lib/condor/execute /var/lib/condor/spool"
        tree.run("sh", "-ec", f"mkdir -p {directories}; chown condor: {directories}; condor_master")

    def name_jobs(self) -> None:
        """From now on, the arguments of starters have the numbers of their jobs."""
        self._tree.write("/etc/condor/config.d/99-named", NAMED)
        self._tree.run("condor_reconfig")

    def start_personal(self, user: int) -> None:
        """Start a user's own HTCondor, which numbers jobs so."""
        self._tree.write("/tmp/personal.config", CONDOR + PERSONAL + NAMED)
        directories = " ".join(f"/tmp/personal/{name}" for name in ("log", "lock", "run", "spool", "execute"))
        self._tree.run("sh", "-ec", f"mkdir -p {directories}; condor_master", user=user, variables=IN_PERSONAL)

    def submit(self, user: int, job: str, count: int = 1, variables: Mapping[str, str] = _ENVIRONMENT) -> str:
        """Submit a cluster of so many jobs, of which the names begin with `job`. Return its number."""
        program = f"executable = /usr/local/bin/job\narguments = {job}$(Process)\ntransfer_executable = false\n"
        self._tree.write("/tmp/submit", f"{program}request_memory = 10\nqueue {count}\n")

        def submit() -> str:
            command = ("condor_submit", "-terse", "/tmp/submit")
            return self._tree.run(*command, user=user, variables=variables).partition(".")[0]

        return eventually(submit, every=0.5)

    def slots(self, variables: Mapping[str, str] = _ENVIRONMENT) -> Mapping[str, str]:
        """Return the slots of the jobs that run."""
        command = ("condor_q", "-all", "-run", "-af", "ClusterId", "ProcId", "RemoteHost")
        words = [line.split() for line in self._tree.run(*command, variables=variables).splitlines()]
        return {f"{cluster}.{process}": host.partition("@")[0] for cluster, process, host in words}


class GridEngine:
    """Grid Engine with one node, and no cgroups of its own."""

    def __init__(self, tree: Tree) -> None:
        self._tree = tree
        tree.write("/var/lib/gridengine/default/common/act_qmaster", f"{NODE}\n")
        self._run("sh", "-ec", "mkdir /run/gridengine; chown sgeadmin: /run/gridengine; sge_qmaster")
        eventually(lambda: self._run("qconf", "-sh"))
        self._run("qconf", "-as", NODE)
        self._run("sge_execd")
        self._change("-Msconf", "-ssconf", "schedule_interval 0:0:1", "flush_submit_sec 1", "job_load_adjustments NONE")
        self._change("-Mconf", "-sconf", "load_report_time 00:00:01")
        queue = ("qname all.q", f"hostlist {NODE}", "slots 8", "load_thresholds NONE", "pe_list NONE", "shell /bin/sh")
        self._change("-Aq", "-sq", *queue)

    def submit(self, user: int, *options: str) -> str:
        """Submit a job; return its number."""
        files = ("-cwd", "-o", "/dev/null", "-e", "/dev/null")
        words = ("qsub", "-terse", *files, *options, "/usr/local/bin/job", str(user))
        return self._run(*words, user=user).partition(".")[0]

    def _change(self, write: str, show: str, *lines: str) -> None:
        """Change these lines of what `show` prints, and give it to `write`."""
        shown = self._run("qconf", show).splitlines()
        changed = {line.split()[0]: line for line in lines}
        text = "\n".join(changed.get(line.partition(" ")[0], line) for line in shown)
        self._tree.write("/tmp/global", f"{text}\n")
        self._run("qconf", write, "/tmp/global")

    def _run(self, *command: str, user: int = 0) -> str:
        return self._tree.run(*command, user=user, variables={"SGE_ROOT": "/var/lib/gridengine"})
