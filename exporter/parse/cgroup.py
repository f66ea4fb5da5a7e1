"""Units, containers, pods, tasks and jobs of processes, from /proc/PID/cgroup (cgroups(7); v1, hybrid and v2).

A cgroup path is trusted from the root on, and only as far as root or a service of root chose its names. These are
slices, and then the first unit (as in systemd's cg_path_get_unit), or a directory of a container runtime, of the
kubelet or of a batch system, where it creates one. A workload can create the names below a unit or a container,
because either can be delegated to it. Examples are a `docker-ID.scope` below `user@1000.service`, a `job_1` in a
container, or a pod in a container (kind, seen from its host). These are ignored, so that no user can pass for
another's container, pod or job. Names below the service of a container runtime are that runtime's own, and are read
as if they were at the root. Names of Slurm in a container of a pod count only if the configuration trusts the pod's
namespace.

A path that begins with `/..` is outside the reader's cgroup namespace. Its upper part is hidden, so the tail of a pod's
path is accepted too.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache, lru_cache
from typing import NamedTuple

from exporter.model.identity import JobManager
from exporter.model.values import frozen
from exporter.parse.units import is_shared_unit

CGROUP_CACHE_SIZE = 1024
"""How many texts stay parsed: more than a node has clients, because each client is read again and again."""

_MAX_TEXT = 1 << 14
_MAX_UNIT = 255

_RUNTIME_SERVICES = frozenset(
    {
        *("containerd.service", "crio.service", "docker.service", "k3s.service", "k3s-agent.service"),
        *("rke2-agent.service", "rke2-server.service", "k0sworker.service", "k0scontroller.service"),
        *("snap.microk8s.daemon-containerd.service", "snap.k8s.containerd.service", "snap.docker.dockerd.service"),
    }
)

_HASH = r"[0-9a-f]{64}"
_ID = rf"(?P<container>{_HASH})"
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_POD = rf"pod(?P<pod_uid>{_UUID}|[0-9a-f]{{32}})"
"""A pod's UID. systemd replaces `-` by `_`; the UID of a static pod is a hash without either."""

_POD_SLICE = rf"(?:[^-/:]+-){{0,8}}kubepods(?:-burstable|-besteffort)?-{_POD}\.slice"
_POD_DIRECTORY = rf"(?:(?:burstable|besteffort)/)?{_POD}(?:/(?:crio-|cri-containerd-)?{_ID})?"
_NODE = r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"
_ALLOCATION = rf"{_UUID}[.-][A-Za-z0-9_.-]{{1,128}}"
"""A Nomad allocation and its task."""

_JOB_ID = r"[1-9][0-9]{0,9}"
_JOB_SLUID = r"s[0-9A-HJKMNP-TV-Z]{13}"
"""An `s` and 13 digits of Crockford's base 32 (Slurm's src/common/sluid.c)."""

_JOB = rf"(?:{_NODE}_)?slurmstepd\.scope/(?:job_(?=[1-9])|(?=s))(?P<slurm>{_JOB_ID}|{_JOB_SLUID})"
"""Slurm's cgroup/v2. From 26.05 on, SLUIDs name job directories, unless CgroupJobIdPaths=yes (cgroup.conf(5))."""

_JOB_IN_POD = re.compile(rf"/(?:[A-Za-z0-9_.-]+\.slice/){{1,8}}{_JOB}(?=/|\Z)")
"""Where a slurmd in a container with a cgroup namespace of its own has its jobs, below the container's directory."""

_TITLE = re.compile(r"slurmstepd: \[([1-9][0-9]{0,9})\.[A-Za-z0-9+]+(?: stepmgr)?\]")
"""The title of a slurmstepd, `slurmstepd: [JOB.STEP]` (slurmstepd.c, _set_job_log_prefix, 22.05 to 26.05). Without a
number, Slurm has the SLUID there."""

_STEP = re.compile(r"^(.*?/(?:job_[0-9]+|s[0-9A-HJKMNP-TV-Z]{13}))/(step_[a-zA-Z0-9_+]+)(/slurm$)?", re.MULTILINE)
"""The first directory that may be of a job, and of a step in it. With cgroup/v2, root's slurmstepd alone is in `slurm`
there, and tasks are in `user` (cgroup_v2.c, cgroup_p_step_create)."""


@cache
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], ...]:
    """Compile patterns of the beginning of a path, at their first use. Each ends where a name ends."""
    return tuple(re.compile(rf"(?:{pattern})(?=/|\Z)") for pattern in patterns)


_UNITS = (
    # systemd's cgroup driver of Docker, containerd, CRI-O, Podman and nerdctl.
    rf"(?:docker|cri-containerd|containerd|crio|libpod|nerdctl)-{_ID}\.scope",
    _JOB,
    # Nomad's exec, raw_exec and java drivers (drivers/shared/executor; before 1.7 without a slice of the parent's).
    rf"(?P<task>{_ALLOCATION})\.scope",
)
"""Below any number of slices."""

_DIRECTORIES = (
    # The kubelet's cgroupfs driver; kind has it below /kubelet.
    rf"(?:kubelet/)?kubepods/{_POD_DIRECTORY}",
    # containerd's cgroupfs driver with a path in systemd's form.
    rf"{_POD_SLICE}:cri-containerd:{_ID}",
    # The cgroupfs drivers of Docker and Podman, Docker's for Amazon ECS, and LXC's before and from 4.0.
    rf"docker/{_ID}",
    # nerdctl's cgroupfs driver: the namespace of containerd.
    rf"(?:default|k8s\.io)/{_ID}",
    rf"libpod_parent/(?:{_HASH}/)?libpod-{_ID}",
    # The cluster's name is optional. A container can create a directory that is named like another one below its own.
    rf"ecs/(?:[A-Za-z0-9_-]{{1,255}}/)??(?P<task>(?!{_HASH}/)[A-Za-z0-9_-]{{1,255}})/{_ID}",
    # Nomad with cgroup v1.
    rf"nomad/(?:shared/|reserved/|reserve/|share/)?(?P<task>{_ALLOCATION})",
    r"lxc(?:/|\.payload/|\.payload\.)(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})",
    # Slurm's cgroup/v1, with its node's name if a host has several.
    rf"slurm(?:_{_NODE})?/uid_[0-9]{{1,10}}/job_(?P<slurm>{_JOB_ID})",
)
"""Only at the root, or below the service of a container runtime."""

_TAILS = (_POD_DIRECTORY, _ID)  # only outside the reader's cgroup namespace
_SLICE_OF_POD = re.compile(_POD_SLICE)
_SLICE_OF_TASK = re.compile(r"ecstasks-(?P<task>[A-Za-z0-9_-]{1,255})\.slice")
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(?:service|scope|socket|mount|swap)")


# -- Jobs of batch systems other than Slurm, in a line without its number: `CONTROLLERS:PATH` -------------------------

_SLICES = r"/(?:[^/:]+\.slice/)*"
_V1, _SYSTEMD, _CPUSET = r"[^:]+:", r"(?:name=systemd)?:", r"(?:[^:]*,)?cpuset(?:,[^:]*)?:"
_TASK = r"[1-9][0-9]{0,9}(?:\.[0-9]{1,10})?"
_PBS = r"[0-9]{1,19}(?:\[[0-9]{1,10}\])?"
_SERVER = r"\.[A-Za-z0-9][A-Za-z0-9._-]{0,254}"

_JOBS = (
    # OpenPBS, and before version 19 (pbs_cgroups.PY). The unit's name is configurable.
    rf"{_V1}/(?:[A-Za-z0-9_.\\-]+\.service/jobid|pbspro)/(?P<pbs>{_PBS}{_SERVER})",
    # PBS Pro with cgroup v2 (pbs_exporter).
    rf":/pbs_jobs\.service/jobs/(?P<pbs>{_PBS}(?:{_SERVER})?)",
    # Torque (cgroup_exporter).
    rf"{_CPUSET}/torque/(?P<torque>{_PBS}{_SERVER})",
    # HTCondor's slot: `EXECUTE_SLOT@NODE`, from 24.8 on below the parent of its starter's cgroup (vanilla_proc.cpp).
    rf"[^:]*:{_SLICES}htcondor/[^/@]*_(?P<htcondor>[A-Za-z][A-Za-z.-]*[0-9]+(?:_[0-9]+)?)@[^/]+",
    # Flux with exec.service=sdexec, in the service manager of its user (bgexec.c, sdmon.c).
    (
        rf":/user\.slice/user-(?P<user>[0-9]{{1,10}})\.slice/user@(?P=user)\.service{_SLICES}"
        r"(?:imp-)?shell-[0-9]+-(?P<flux>f[0-9A-Za-z]{1,12})\.service"
    ),
    # LSF (ceems).
    rf"{_V1}/lsf/[^/]+/job\.(?P<lsf>[0-9]{{1,19}})\.[0-9]+\.[0-9]+",
    # Son of Grid Engine with systemd (builtin_starter.c), and with cpusets (sge_shepherd(8)).
    rf"{_SYSTEMD}/system\.slice/sge-(?P<grid_engine>{_TASK})\.(?:scope|service)",
    rf"{_CPUSET}/sge(?:\.[^/]+)?/(?P<grid_engine>{_TASK})",
    # Open and Gridware Cluster Scheduler (ocs_Job.cc). A tightly integrated parallel job has a slice.
    (
        rf"{_SYSTEMD}{_SLICES}(?P<slice>[^/:]+)-jobs\.slice/(?:(?P=slice)-jobs-[^/:]+\.slice/)?"
        rf"(?P=slice)\.(?P<grid_engine>{_TASK})(?:[.-][^/]+)?\.scope"
    ),
)
_IN_SEVERAL = frozenset({JobManager.PBS, JobManager.HTCONDOR, JobManager.LSF})
"""They put jobs in several hierarchies of cgroup v1. Slurm can use only one, Torque and Grid Engine only use cpuset."""

_OUTSIDE = re.compile(r"^/?\.\.(?:/\.\.)*(?=/|\Z)")
"""The way out of the reader's cgroup namespace. No user can write beside that of a container."""

_OF_USER = re.compile(r"(?:\.\./)*user\.slice/user-[1-9]")
_PBS_INDEX = re.compile(r"([0-9]+)\.([0-9]{1,9})")
_STARTER = re.compile(r"condor_starter\0.*?\0-a\0([0-9]{1,10}\.[0-9]{1,10})\0-slot-name\0([^\0]+)(?:\0[^\0]*)?")
"""The arguments with STARTER_LOG_NAME_APPEND=JobId (Starter.cpp). The job's owner may choose the text of one."""

_SHEPHERD = re.compile(rf"/.*/active_jobs/({_TASK})(?:/[^/]+)?")
"""The working directory of a sge_shepherd, also that of a task of a parallel job."""


@frozen
class CgroupMembership:
    """What a process belongs to; None if it belongs to none, or if that is not known.

    `unit` is the system unit that `systemctl status PID` names, escaped as there. For a user's own units it is
    `user@UID.service`, because a user can choose their names. `container` is the whole ID, a join key for other
    exporters' families (LXC: the name); the outermost if containers are nested. `task` is the ID of an Amazon ECS task,
    or a Nomad allocation with its task, `ALLOCATION.TASK`. `job_name` is the job, or the slot of HTCondor, as
    the path has it.
    """

    unit: str | None = None
    container: str | None = None
    pod_uid: str | None = None
    task: str | None = None
    job_manager: JobManager | None = None
    job_id: str | None = None
    job_name: str | None = None

    @property
    def job_slot(self) -> str | None:
        """The slot of HTCondor, whose job may be unknown."""
        return self.job_name if self.job_manager is JobManager.HTCONDOR else None

    @property
    def job_or_pod(self) -> str | None:
        """What ends as a whole: a job, a slot of HTCondor, a pod, or a task of Nomad. Their names never look alike."""
        if self.job_manager is not None:
            return f"{self.job_manager}/{self.job_name}"
        return self.pod_uid or (self.task if self.container is None else None)

    @property
    def is_of_user(self) -> bool:
        """Whether a user's own service manager runs it, below which the user chooses the names."""
        return self.unit is not None and self.unit.startswith("user@")

    @property
    def is_of_node(self) -> bool:
        """Whether it is in no job, container, pod or task: it may be of root's batch system, or what that started."""
        inside = self.job_manager or self.container or self.pod_uid or self.task
        return inside is None and not self.is_of_user

    @property
    def own_unit(self) -> str | None:
        """The unit, unless the process belongs to less than that: a job, slot, pod, task, container, or a user."""
        return self.unit if self.is_of_node and not is_shared_unit(self.unit or "") else None


@lru_cache(maxsize=CGROUP_CACHE_SIZE)
def parse_cgroup(text: str, job_source: str | None = None) -> CgroupMembership:
    """Return what a process belongs to: on v1, in the first controller with a value, as Slurm has jobs only in some.

    `job_source` is as in `ProcessReading`: with None, no name of Slurm in a container counts.
    """
    paths: dict[str, str] = {}
    # A line is `ID:CONTROLLERS:PATH`. Only a newline ends a line: a cgroup's name cannot contain one.
    for _, controllers, path in ((*line.split(":", 2), "", "")[:3] for line in text[:_MAX_TEXT].split("\n")):
        if path.startswith("/"):
            paths[controllers] = path.removesuffix(" (deleted)")
    # If the path in a v1 hierarchy of its name is the root, systemd does not use that hierarchy.
    by_systemd = paths.get("name=systemd", "").strip("/") or paths.get("", "").strip("/")
    found: dict[str, str] = {}
    for path in paths.values():
        found = {**_names_in(path, with_jobs_in_pods=job_source is not None), **found}
    member = CgroupMembership(
        unit=_unit_of(by_systemd),
        container=found.get("container"),
        pod_uid=found.get("pod_uid", "").replace("_", "-") or None,
        task=found.get("task"),
    )
    source = job_source or ""
    job: tuple[JobManager, str] | None = None
    if JobManager.SLURM in found and not member.is_of_user:
        job = JobManager.SLURM, found[JobManager.SLURM]
    elif (member.container or member.pod_uid or member.task) is None:
        job = _job_in(paths, source, of_user=_OF_USER.match(by_systemd) is not None)
        if job is None and member.is_of_node and (shepherd := _SHEPHERD.fullmatch(source)) is not None:
            job = JobManager.GRID_ENGINE, shepherd[1]
    if job is None:
        return member
    return replace(member, job_manager=job[0], job_id=_job_id(*job, source), job_name=job[1])


def _job_in(paths: Mapping[str, str], source: str, *, of_user: bool) -> tuple[JobManager, str] | None:
    """Return the batch system, other than Slurm, and the job that a path names.

    In v1, systemd's hierarchy can be a user's below a unit, and one controller can be by an administrator's choice.
    `of_user` is whether systemd started the process for a user.
    """
    found: dict[tuple[JobManager, str], set[str]] = {}
    for controllers, path in paths.items():
        line = f"{controllers}:{_OUTSIDE.sub('', path)}"
        for match in filter(None, (pattern.match(line) for pattern in _compiled(_JOBS))):
            manager = JobManager(match.lastgroup or "")
            if manager is not JobManager.FLUX or source == match["user"]:
                found.setdefault((manager, match[manager]), set()).add(controllers)
    for job, hierarchies in found.items():
        in_several = hierarchies != {"name=systemd"} and len(hierarchies) >= min(2, len(paths))
        if "" in hierarchies or (not of_user and (in_several or job[0] not in _IN_SEVERAL)):
            return job
    return None


def _job_id(manager: JobManager, name: str, source: str) -> str | None:
    """Return the job that a path names, as the commands of the batch system have it."""
    if manager is JobManager.HTCONDOR:
        starter = _STARTER.fullmatch(source)
        return starter[1] if starter is not None and starter[2] == name else None
    if manager is JobManager.PBS and (array := _PBS_INDEX.fullmatch(name)) is not None:
        return array[1] if array[2] == "1" else f"{array[1]}[{int(array[2]) - 1}]"
    title = _TITLE.fullmatch(source) if manager is JobManager.SLURM and not name.isdecimal() else None
    return name if title is None else title[1]


def _names_in(path: str, *, with_jobs_in_pods: bool) -> Mapping[str, str]:
    """Return what one path contains, by the names of the patterns' groups."""
    outside, slices, rest = _parts(path)
    patterns = _UNITS if slices else (*_UNITS, *_DIRECTORIES, *(_TAILS if outside else ()))
    service, _, in_service = rest.partition("/")
    if service in _RUNTIME_SERVICES:
        patterns, rest = _DIRECTORIES, in_service
    below = [match for pattern in _compiled(patterns) if (match := pattern.match(rest)) is not None]
    matches = (
        *map(_SLICE_OF_POD.fullmatch, slices),
        *map(_SLICE_OF_TASK.fullmatch, slices[1:] if slices[:1] == ("ecstasks.slice",) else ()),
        *below,
        *(_JOB_IN_POD.match(rest, match.end()) for match in below if with_jobs_in_pods),
    )
    found: dict[str, str] = {}
    for match in filter(None, matches):
        found = {key: value for key, value in match.groupdict().items() if value is not None} | found
    return found


class Step(NamedTuple):
    """A step of a Slurm job: the directory of the job, the name of the step's, and whether it is that of slurmstepd."""

    job_directory: str
    name: str
    of_slurmstepd: bool


def parse_step(text: str) -> Step | None:
    """Return the step that a process is in, if its directory is indeed Slurm's: only the names are compared."""
    found = _STEP.search(text[:_MAX_TEXT])
    return None if found is None else Step(found[1], found[2], found[3] is not None)


def _unit_of(path: str) -> str | None:
    """Return the first name that is not a slice, if it is a unit's. systemd escapes a kernel-like name with `_`."""
    name = _parts(path)[2].partition("/")[0].removeprefix("_")
    return name if len(name) <= _MAX_UNIT and _UNIT.fullmatch(name) else None


def _parts(path: str) -> tuple[bool, tuple[str, ...], str]:
    """Return whether a path leads out of the reader's cgroup namespace, its slices, and the rest of it."""
    inside = _OUTSIDE.sub("", path)
    names = inside.strip("/").split("/")
    first = next((index for index, name in enumerate(names) if not name.endswith(".slice")), len(names))
    return inside != path, tuple(names[:first]), "/".join(names[first:])


# -- The kubelet's directories of pod logs, `NAMESPACE_NAME_UID` (Kubernetes, pkg/kubelet/kuberuntime/helpers.go) ----

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_POD_LOGS = re.compile(
    rf"({_LABEL})_(?=[^_]{{1,253}}_)({_LABEL}(?:\.{_LABEL})*)_([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}|[0-9a-f]{{32}})"
)
"""RFC 1123 names have no `_`, so there is only one way to split them. A pod's name has at most 253 characters."""


class Pod(NamedTuple):
    """The names of a pod."""

    uid: str
    name: str
    namespace: str


def parse_pod_directory(directory: str) -> Pod | None:
    """Return the pod of a log directory, by its name; None for other directories."""
    found = _POD_LOGS.fullmatch(directory)
    return None if found is None else Pod(namespace=found[1], name=found[2], uid=found[3])


_CLAIM_DIRECTORY = re.compile(r"(?:/[^/]+)*/mps/[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}-[0-9a-f]{5}/pipe")
"""`<plugin directory>/mps/<claim UID>-<hash of the devices>/pipe` (gpu-kubelet-plugin/sharing.go, 25.x, 0.4, 0.5)."""


def is_claim_directory(pipe_directory: str) -> bool:
    """Return whether a pipe directory is one of a resource claim, by NVIDIA's DRA driver."""
    return _CLAIM_DIRECTORY.fullmatch(pipe_directory) is not None
