"""Contents of /proc/PID/cgroup: the paths of every runtime, and names that a workload can forge."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.model.identity import JobManager
from exporter.parse.cgroup import CgroupMembership, parse_cgroup, parse_step

ID, OTHER_ID = "99f3a16ea25b7724cb56a4f0c0df1113ad9474fbf5545bead97fd5c7f61c13f4", "fd9d0ea0" * 8
UID = "eab5a334-93fe-48a8-b139-9e8079c1f163"
UID_ = UID.replace("-", "_")
STATIC_UID = "712b37831be464ccc2fb1553ef89aa91"
TASK = "529630467358463ab6bbba4e73afe704"
SLUID = "sEKNKTV3WPV500"
USERS = "/user.slice/user-1000.slice/user@1000.service"


def v2(path: str) -> str:
    return f"0::{path}\n"


def v1(path: str, systemd: str | None = None) -> str:
    """All controllers at one path, as Docker and the kubelet have it; systemd's own hierarchy may be at another."""
    controllers = ("pids", "memory", "devices", "cpuset", "cpu,cpuacct", "freezer")
    lines = [f"{number}:{names}:{path}" for number, names in enumerate(controllers, start=2)]
    return "\n".join([*reversed(lines), f"1:name=systemd:{path if systemd is None else systemd}"]) + "\n"


NOTHING = CgroupMembership()
OF_USER = CgroupMembership(unit="user@1000.service")
IN_DOCKER = CgroupMembership(unit=f"docker-{ID}.scope", container=ID)
POD_OF_CGROUPFS = CgroupMembership(container=ID, pod_uid=UID)
STEP_DAEMON = CgroupMembership(unit="slurmstepd.scope")
CONTAINER = CgroupMembership(container=ID)
ALLOCATION = CgroupMembership(unit=f"{UID}.train.scope", task=f"{UID}.train")
IN_PODMAN = CgroupMembership(unit=f"libpod-{ID}.scope", container=ID)
IN_UNIT = CgroupMembership(unit="a.service")

SYSTEMD = {
    "a service": (v2("/system.slice/ssh.service"), CgroupMembership(unit="ssh.service")),
    "a service, v1": (v1("/", "/system.slice/ssh.service"), CgroupMembership(unit="ssh.service")),
    "a service, hybrid": (
        "3:devices:/system.slice\n1:name=systemd:/system.slice/a.service\n0::/system.slice/a.service\n",
        IN_UNIT,
    ),
    "a service, with a v1 hierarchy that systemd does not use": (
        "9:name=systemd:/\n8:pids:/\n0::/system.slice/a.service\n",
        IN_UNIT,
    ),
    "a cgroup that the service made": (v2("/system.slice/a.service/worker"), IN_UNIT),
    "an instance in a slice": (
        v2("/system.slice/system-vllm.slice/vllm@llama\\x2d70b.service"),
        CgroupMembership(unit="vllm@llama\\x2d70b.service"),
    ),
    "a name like a controller's": (v2("/system.slice/_memory.service"), CgroupMembership(unit="memory.service")),
    "a session": (v2("/user.slice/user-1000.slice/session-3.scope"), CgroupMembership(unit="session-3.scope")),
    "a user's unit": (v2(f"{USERS}/app.slice/app-train.service"), OF_USER),
    "a machine": (
        v2("/machine.slice/systemd-nspawn@dev.service/payload"),
        CgroupMembership(unit="systemd-nspawn@dev.service"),
    ),
    "PID 1": (v2("/init.scope"), CgroupMembership(unit="init.scope")),
    "a stopped one": (v2("/system.slice/a.service (deleted)"), IN_UNIT),
    "a slice alone": (v2("/system.slice"), NOTHING),
    "the root": (v2("/"), NOTHING),
    "its own cgroup namespace's root": (v2("/"), NOTHING),
    "the parent of its cgroup namespace": (v2("/.."), NOTHING),
    "a neighbour of its cgroup namespace": (v2("/../ssh.service"), CgroupMembership(unit="ssh.service")),
}

CONTAINERS = {
    **{
        f"{runtime}, systemd": (
            v2(f"/{parent}/{runtime}-{ID}.scope"),
            CgroupMembership(unit=f"{runtime}-{ID}.scope", container=ID),
        )
        for runtime, parent in {
            "docker": "system.slice",
            "libpod": "machine.slice",
            "nerdctl": "system.slice",
            "crio": "system.slice",
        }.items()
    },
    "Docker, cgroupfs": (v2(f"/docker/{ID}"), CONTAINER),
    "Docker, cgroupfs, v1": (v1(f"/docker/{ID}"), CONTAINER),
    "Docker, systemd, v1": (v1(f"/system.slice/docker-{ID}.scope"), IN_DOCKER),
    "Docker with init inside": (v2(f"/system.slice/docker-{ID}.scope/init.scope"), IN_DOCKER),
    "Docker below its service": (
        v2(f"/system.slice/docker.service/docker/{ID}"),
        CgroupMembership(unit="docker.service", container=ID),
    ),
    "Docker below a slice of the administrator's": (v2(f"/gpu.slice/gpu-train.slice/docker-{ID}.scope"), IN_DOCKER),
    "Podman's container cgroup": (v2(f"/machine.slice/libpod-{ID}.scope/container"), IN_PODMAN),
    "a Podman pod": (v2(f"/machine.slice/machine-libpod_pod_{OTHER_ID}.slice/libpod-{ID}.scope"), IN_PODMAN),
    "nerdctl, cgroupfs": (v2(f"/default/{ID}"), CONTAINER),
    "Podman, cgroupfs": (v2(f"/libpod_parent/libpod-{ID}"), CONTAINER),
    "a Podman pod, cgroupfs": (v2(f"/libpod_parent/{OTHER_ID}/libpod-{ID}"), CONTAINER),
    "Amazon ECS, v1": (v1(f"/ecs/{TASK}/{ID}"), CgroupMembership(container=ID, task=TASK)),
    "Amazon ECS, v1, with the cluster": (v1(f"/ecs/prod/{TASK}/{ID}"), CgroupMembership(container=ID, task=TASK)),
    "Amazon ECS, v2": (
        v2(f"/ecstasks.slice/ecstasks-{TASK}.slice/docker-{ID}.scope"),
        CgroupMembership(unit=f"docker-{ID}.scope", container=ID, task=TASK),
    ),
    "a slice that a user named like a task": (v2(f"/user.slice/ecstasks-{TASK}.slice/docker-{ID}.scope"), IN_DOCKER),
    "Nomad": (v2(f"/nomad.slice/share.slice/{UID}.train.scope"), ALLOCATION),
    "Nomad, 1.6": (v2(f"/nomad.slice/{UID}.train.scope"), ALLOCATION),
    "Nomad with Docker": (v2(f"/nomad.slice/share.slice/docker-{ID}.scope"), IN_DOCKER),
    "Nomad, v1": (v1(f"/nomad/{UID}.train"), CgroupMembership(task=f"{UID}.train")),
    "a user's scope named like Nomad's": (v2(f"{USERS}/{UID}.train.scope"), OF_USER),
    "MicroK8s": (
        v1(f"/kubepods/besteffort/pod{UID}/{ID}", "/system.slice/snap.microk8s.daemon-containerd.service"),
        CgroupMembership(unit="snap.microk8s.daemon-containerd.service", container=ID, pod_uid=UID),
    ),
    "MicroK8s below its service": (
        v2(
            f"/system.slice/snap.microk8s.daemon-containerd.service/kubepods-besteffort-pod{UID_}.slice:"
            f"cri-containerd:{ID}"
        ),
        CgroupMembership(unit="snap.microk8s.daemon-containerd.service", container=ID, pod_uid=UID),
    ),
    "LXC": (v2("/lxc.payload.web-1/system.slice/nginx.service"), CgroupMembership(container="web-1")),
    "LXC, v1": (v1("/lxc/web-1"), CgroupMembership(container="web-1")),
    "a container that was removed": (v2(f"/docker/{ID} (deleted)"), CONTAINER),
    "a neighbour": (v2(f"/../docker-{ID}.scope"), IN_DOCKER),
    "a neighbour, cgroupfs": (v2(f"/../{ID}"), CONTAINER),
    "Docker in Docker": (v2(f"/docker/{ID}/docker/{OTHER_ID}"), CONTAINER),
    "kind, from its host": (
        v2(
            f"/system.slice/docker-{ID}.scope/kubelet.slice/kubelet-kubepods.slice/"
            f"kubelet-kubepods-pod{UID_}.slice/cri-containerd-{OTHER_ID}.scope"
        ),
        IN_DOCKER,
    ),
    "k3d, from its host": (v2(f"/docker/{ID}/kubepods/besteffort/pod{UID}/{OTHER_ID}"), CONTAINER),
}


def in_pod(scope: str) -> CgroupMembership:
    return CgroupMembership(unit=f"{scope}-{ID}.scope", container=ID, pod_uid=UID)


PODS = {
    **{
        f"{runtime}, {level}": (
            v2(
                f"/kubepods.slice/{f'kubepods-{level}.slice/' if level else ''}"
                f"kubepods-{f'{level}-' if level else ''}pod{UID_}.slice/{runtime}-{ID}.scope{below}"
            ),
            in_pod(runtime),
        )
        for runtime, below in {"cri-containerd": "", "crio": "/container", "docker": ""}.items()
        for level in ("", "burstable", "besteffort")
    },
    **{
        f"cgroupfs, {level}": (
            v2(f"/kubepods/{f'{level}/' if level else ''}pod{UID}/{ID}"),
            POD_OF_CGROUPFS,
        )
        for level in ("", "burstable", "besteffort")
    },
    "systemd, v1": (
        v1(f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID_}.slice/docker-{ID}.scope"),
        in_pod("docker"),
    ),
    "cgroupfs, v1": (v1(f"/kubepods/burstable/pod{UID}/{ID}"), POD_OF_CGROUPFS),
    "cgroupfs, hybrid": (
        v1(f"/kubepods/burstable/pod{UID}/{ID}") + "0::/system.slice/containerd.service\n",
        POD_OF_CGROUPFS,
    ),
    "a static pod": (
        v2(f"/kubepods/burstable/pod{STATIC_UID}/{ID}"),
        CgroupMembership(container=ID, pod_uid=STATIC_UID),
    ),
    "CRI-O, cgroupfs": (v2(f"/kubepods/burstable/pod{UID}/crio-{ID}"), POD_OF_CGROUPFS),
    "the pod itself": (v2(f"/kubepods/burstable/pod{UID}"), CgroupMembership(pod_uid=UID)),
    "kind, from its node": (
        v2(
            "/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-besteffort.slice/"
            f"kubelet-kubepods-besteffort-pod{UID_}.slice/cri-containerd-{ID}.scope"
        ),
        in_pod("cri-containerd"),
    ),
    "kind, cgroupfs": (v1(f"/kubelet/kubepods/burstable/pod{UID}/{ID}"), POD_OF_CGROUPFS),
    "containerd's cgroupfs driver with systemd's paths": (
        v1(f"/system.slice/containerd.service/kubepods-burstable-pod{UID_}.slice:cri-containerd:{ID}"),
        CgroupMembership(unit="containerd.service", container=ID, pod_uid=UID),
    ),
    "Docker in a pod": (v2(f"/kubepods/burstable/pod{UID}/{ID}/docker/{OTHER_ID}"), POD_OF_CGROUPFS),
    "a pod that another one pretends to be": (
        v2(f"/kubepods/pod{UID}/{ID}/kubepods/pod{STATIC_UID}/{OTHER_ID}"),
        POD_OF_CGROUPFS,
    ),
    "Slurm in a pod": (
        v2(f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope/system.slice/n1_slurmstepd.scope/job_1/step_0"),
        in_pod("crio"),
    ),
    "a neighbour": (
        v2(f"/../../kubepods-besteffort-pod{UID_}.slice/docker-{ID}.scope"),
        in_pod("docker"),
    ),
    "a neighbour, cgroupfs": (v2(f"/../../pod{UID}/{ID}"), POD_OF_CGROUPFS),
    "a neighbour of another class": (v2(f"/../../../besteffort/pod{UID}/{ID}"), POD_OF_CGROUPFS),
}


def slurm_job(job: str, unit: str | None = "slurmstepd.scope", name: str | None = None) -> CgroupMembership:
    return CgroupMembership(unit=unit, job_manager=JobManager.SLURM, job_id=job, job_name=name or job)


JOB = slurm_job("42")

SLURM = {
    "v2": (v2("/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"), JOB),
    "v2, batch": (v2("/system.slice/slurmstepd.scope/job_42/step_batch/user/task_special"), JOB),
    "v2, with the node's name": (
        v2("/system.slice/gpu-node1.example.org_slurmstepd.scope/job_42/step_0/user/task_0"),
        slurm_job("42", "gpu-node1.example.org_slurmstepd.scope"),
    ),
    "v2, a node's name with an underscore": (
        v2("/system.slice/gpu_node1_slurmstepd.scope/job_42/step_0/user/task_0"),
        slurm_job("42", "gpu_node1_slurmstepd.scope"),
    ),
    "v2, another slice": (v2("/jobs.slice/slurmstepd.scope/job_42/step_extern/user/task_0"), JOB),
    "v2, by SLUID": (
        v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0"),
        slurm_job(SLUID),
    ),
    "v2, Slurm's own": (v2("/system.slice/slurmstepd.scope/system"), STEP_DAEMON),
    "v1": (
        (
            "9:memory:/slurm/uid_1000/job_42/step_0/task_0\n8:pids:/system.slice/slurmd.service\n"
            "7:devices:/slurm/uid_1000/job_42/step_0\n1:name=systemd:/system.slice/slurmd.service\n"
        ),
        slurm_job("42", "slurmd.service"),
    ),
    "v1, with the node's name": (
        "7:freezer:/slurm_gpu_node1/uid_1000/job_42/step_batch\n1:name=systemd:/system.slice/slurmd.service\n",
        slurm_job("42", "slurmd.service"),
    ),
    "a container in a job": (
        v2(f"/system.slice/slurmstepd.scope/job_42/step_0/user/docker-{ID}.scope"),
        JOB,
    ),
}


def job(manager: str, job_id: str | None, unit: str | None = None, name: str | None = None) -> CgroupMembership:
    return CgroupMembership(unit=unit, job_manager=JobManager(manager), job_id=job_id, job_name=name or job_id)


def slot(name: str, unit: str | None = None) -> CgroupMembership:
    return job("htcondor", None, unit, name)


def some(path: str, *controllers: str, systemd: str = "/system.slice/batch.service") -> str:
    """These controllers of cgroup v1 at the path, and others elsewhere."""
    names = ("memory", "cpuset", "cpu,cpuacct", "freezer", "devices", "pids")
    lines = [f"{number}:{name}:{path if name in controllers else '/'}" for number, name in enumerate(names, start=2)]
    return "\n".join([*lines, f"1:name=systemd:{path if 'name=systemd' in controllers else systemd}"]) + "\n"


PBS_V1 = "/pbs_jobs.service/jobid"
OCS = "/ocs8012.slice/ocs8012-jobs.slice"
CONDOR = "/htcondor/condor_var_lib_condor_execute_slot1_1@n1.example.org"

BATCH = {
    "OpenPBS, v1": (v1(f"{PBS_V1}/1234.pbs01"), job("pbs", "1234.pbs01", "pbs_jobs.service")),
    "OpenPBS, v1, an array": (
        v1(f"{PBS_V1}/1234[7].pbs01.example.org"),
        job("pbs", "1234[7].pbs01.example.org", "pbs_jobs.service"),
    ),
    "OpenPBS, hybrid": (
        some(f"{PBS_V1}/1234.pbs01", "memory", "cpuset", "name=systemd") + "0::/system.slice/pbs.service\n",
        job("pbs", "1234.pbs01", "pbs_jobs.service"),
    ),
    "OpenPBS, v1, one controller and systemd's hierarchy": (
        some(f"{PBS_V1}/1234.pbs01", "cpuset", "name=systemd"),
        job("pbs", "1234.pbs01", "pbs_jobs.service"),
    ),
    "OpenPBS, another prefix": (v1("/site\\x2djobs.service/jobid/9.pbs"), job("pbs", "9.pbs", "site\\x2djobs.service")),
    "OpenPBS before 19": (v1("/pbspro.service/jobid/9.pbs"), job("pbs", "9.pbs", "pbspro.service")),
    "OpenPBS without systemd": (some("/pbspro/9.pbs", "memory", "cpuset"), job("pbs", "9.pbs", "batch.service")),
    "PBS Pro, v2": (v2("/pbs_jobs.service/jobs/1234"), job("pbs", "1234", "pbs_jobs.service")),
    "PBS Pro, v2, with the server": (
        v2("/pbs_jobs.service/jobs/1234.pbs01"),
        job("pbs", "1234.pbs01", "pbs_jobs.service"),
    ),
    "PBS Pro, v2, no array": (v2("/pbs_jobs.service/jobs/1234.1"), job("pbs", "1234", "pbs_jobs.service", "1234.1")),
    "PBS Pro, v2, an array": (v2("/pbs_jobs.service/jobs/1234.3"), job("pbs", "1234[2]", "pbs_jobs.service", "1234.3")),
    "PBS without the hook": (v2("/system.slice/pbs.service"), CgroupMembership(unit="pbs.service")),
    "Torque": (some("/torque/1234.server", "cpuset"), job("torque", "1234.server", "batch.service")),
    "Torque, an array": (some("/torque/1234[7].server", "cpuset"), job("torque", "1234[7].server", "batch.service")),
    "HTCondor, v1": (some(CONDOR, "memory", "cpu,cpuacct", "freezer", "devices"), slot("slot1_1", "batch.service")),
    "HTCondor to 24, v2": (v2(CONDOR), slot("slot1_1")),
    "HTCondor to 24, hybrid": (some("/x") + f"0::{CONDOR}\n", slot("slot1_1", "batch.service")),
    "HTCondor, what is left of a slot": (v2(f"{CONDOR} (deleted)"), slot("slot1_1")),
    "HTCondor from 24.8": (
        v2(
            "/system.slice/htcondor/_var_lib_condor_execute_slot1_12@n1.example.org/"
            "_var_lib_condor_execute_slot1_12@n1.example.scope"
        ),
        slot("slot1_12"),
    ),
    "HTCondor from 24.8, ssh": (
        v2("/system.slice/htcondor/_scratch_slot2@n1/sshd/sshd.scope"),
        slot("slot2"),
    ),
    "HTCondor, a slot with another name": (v2("/htcondor/_x_gpu1_2@n1"), slot("gpu1_2")),
    "HTCondor, a startd with a name": (v2("/htcondor/_x_slot1_1@gpu_a100@n1"), slot("slot1_1")),
    "Flux, rexec": (v2("/system.slice/flux.service"), CgroupMembership(unit="flux.service")),
    "LSF": (
        some("/lsf/c1/job.4711.23456.1700000000", "memory", "cpuset", "freezer"),
        job("lsf", "4711", "batch.service"),
    ),
    "LSF, one file with one line": ("4:memory:/lsf/c1/job.4711.1.2\n", job("lsf", "4711")),
    "LSF, v2": (v2("/system.slice/lsfd.service"), CgroupMembership(unit="lsfd.service")),
    "Grid Engine, a scope": (v2("/system.slice/sge-42.7.scope"), job("grid_engine", "42.7", "sge-42.7.scope")),
    "Grid Engine, a service": (v2("/system.slice/sge-42.1.service"), job("grid_engine", "42.1", "sge-42.1.service")),
    "Grid Engine, a scope, v1": (v1("/", "/system.slice/sge-42.7.scope"), job("grid_engine", "42.7", "sge-42.7.scope")),
    "Grid Engine, cpuset": (some("/sge.default/42.7/1234", "cpuset"), job("grid_engine", "42.7", "batch.service")),
    "Grid Engine, cpuset, no array": (some("/sge.default/42", "cpuset"), job("grid_engine", "42", "batch.service")),
    **{
        f"Cluster Scheduler, {scope}": (v2(f"{OCS}/{scope}"), job("grid_engine", name, scope.rpartition("/")[2]))
        for scope, name in {
            "ocs8012.1234.scope": "1234",
            "ocs8012.1234.5.scope": "1234.5",
            "ocs8012-jobs-1234.slice/ocs8012.1234.master.scope": "1234",
            "ocs8012-jobs-1234.slice/ocs8012.1234-1.n1.scope": "1234",
            "ocs8012-jobs-1234.5.slice/ocs8012.1234.5.master.scope": "1234.5",
            "ocs8012-jobs-1234.5.slice/ocs8012.1234.5.1.n1.scope": "1234.5",
        }.items()
    },
    "Nomad's reserve": (v2(f"/nomad.slice/reserve.slice/{UID}.train.scope"), ALLOCATION),
    "a glidein in a Slurm job": (v2(f"/system.slice/slurmstepd.scope/job_42/step_0/user/task_0{CONDOR}"), JOB),
    "a job in a slot": (v2(f"{CONDOR}/system.slice/slurmstepd.scope/job_1"), slot("slot1_1")),
    "a container in a job": (v2(f"/pbs_jobs.service/jobs/9/docker-{ID}.scope"), job("pbs", "9", "pbs_jobs.service")),
}

FLUX_USER = "/user.slice/user-500.slice/user@500.service"


@pytest.mark.parametrize("unit", ["app.slice/imp-shell-0-fTE9HHdZvi3.service", "shell-12-fTE9HHdZvi3.service"])
def test_a_job_of_flux_is_in_the_service_manager_of_the_user_who_runs_the_broker(unit: str) -> None:
    assert parse_cgroup(v2(f"{FLUX_USER}/{unit}"), "500") == job("flux", "fTE9HHdZvi3", "user@500.service")


STARTER = "condor_starter\0-f\0-local-name\0slot_type_1"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (f"{STARTER}\0-a\x00123.0\0-slot-name\0slot1_1\0submit.example.org", "123.0"),
        (f"{STARTER}\0-a2\0D_FULLDEBUG,x\0-a\x00123.45\0-slot-name\0slot1_1\0fd00::2", "123.45"),
        (f"{STARTER}\0-a\x00123.0\0-slot-name\0slot1_1", "123.0"),
        (f"{STARTER}\0-a\0slot1_1\0submit.example.org", None),
        (f"{STARTER}\0-a\x00123\0-slot-name\0slot1_1\0submit", None),
        (f"{STARTER}\0-a\x00123.0\0-slot-name\0slot1_10\0submit", None),
        (f"{STARTER}\0-a2\0x -a 9.0 -slot-name slot1_1\0-a\0slot1_1\0submit", None),
        (f"bash\0{STARTER}\0-a\x00123.0\0-slot-name\0slot1_1\0submit", None),
        ("", None),
        (None, None),
    ],
)
def test_the_job_of_a_slot_is_in_the_arguments_of_its_starter(arguments: str | None, expected: str | None) -> None:
    assert parse_cgroup(v2(CONDOR), arguments) == replace(slot("slot1_1"), job_id=expected)


WORKING_DIRECTORY = "/var/spool/gridengine/execd/n1/active_jobs/1.2"


@pytest.mark.parametrize(
    ("cgroup", "directory", "expected"),
    [
        (v2("/system.slice/gridengine-exec.service"), WORKING_DIRECTORY, "1.2"),
        (v2("/"), f"{WORKING_DIRECTORY}/1.n1", "1.2"),
        (v2("/system.slice/gridengine-exec.service"), WORKING_DIRECTORY.replace("1.2", "1.x"), None),
        (v2("/system.slice/gridengine-exec.service"), "/home/eve", None),
        (v2(f"{USERS}/app.slice/a.service"), WORKING_DIRECTORY, None),
        (v2(f"/docker/{ID}"), WORKING_DIRECTORY, None),
    ],
)
def test_the_job_of_grid_engine_is_in_the_working_directory_of_its_shepherd(
    cgroup: str, directory: str, expected: str | None
) -> None:
    """Below a container or a user's service manager, no process is of the node's batch system."""
    found = parse_cgroup(cgroup, directory)
    assert (found.job_manager, found.job_id) == (expected and JobManager.GRID_ENGINE, expected)


ROOTLESS = f"{USERS}/user.slice/libpod-{ID}.scope"
SESSION = "/user.slice/user-1000.slice/session-3.scope"
OF_EACH = (
    f"{PBS_V1}/1234.pbs01",
    "/pbspro/1234.pbs01",
    "/pbs_jobs.service/jobs/1234",
    "/torque/1234.server",
    CONDOR,
    "/lsf/c1/job.4711.1.2",
    "/system.slice/sge-42.7.scope",
    "/sge.default/42.7",
    f"{OCS}/ocs8012.1234.scope",
    "/slurm/uid_0/job_1",
    "/system.slice/slurmstepd.scope/job_1",
    f"{FLUX_USER}/shell-0-fTE9HHdZvi3.service",
)
"""The path of a job of each batch system."""


SOURCES = (None, "", "1000", f"{STARTER}\0-a\x009.0\0-slot-name\0slot1_1", WORKING_DIRECTORY)


@pytest.mark.parametrize("path", OF_EACH)
def test_a_name_that_a_user_can_make_is_no_job(path: str) -> None:
    """Below the user's service manager, a rootless or another container, in a directory, or in one v1 controller."""
    in_user, in_docker = f"{USERS}/app.slice/a.service", f"/system.slice/docker-{ID}.scope"
    forged = [v2(f"{above}{path}") for above in (USERS, f"{USERS}/app.slice", ROOTLESS, f"/docker/{ID}", "/user/eve")]
    forged += [
        v1("/", f"{USERS}{path}"),
        some(path, "memory", systemd=in_user),
        some(path, "net_cls", systemd=in_docker),
    ]
    if "slurm" not in path:
        forged += [some(path, "memory", systemd=SESSION), some(path, "memory"), some(path, "pids", systemd=SESSION)]
        forged += [f"12:net_cls:{path}\n0::/system.slice/x.service\n", f"5:pids:{path}\n0::/\n"]
        forged += [v1(path, in_docker), some(path, "cpuset", systemd=in_user)]
    for text in forged:
        for source in [None] if "slurm" in path else SOURCES:
            found = parse_cgroup(text, source)
            believed = source == WORKING_DIRECTORY and found.job_id == "1.2"  # It is root's shepherd that has it.
            assert found.job_manager is None or believed, text


@pytest.mark.parametrize(
    "path",
    [path for path in OF_EACH if not path.startswith(("/pbs_jobs.service/jobs", CONDOR, "/system", OCS, "/slurm"))],
)
def test_a_batch_system_without_cgroup_v2_has_no_names_there(path: str) -> None:
    assert parse_cgroup(v2(path)).job_manager is None


@pytest.mark.parametrize("way", ["/..", "/../../../.."])
def test_a_reader_in_a_container_finds_the_same_jobs(subtests: pytest.Subtests, way: str) -> None:
    """All paths begin with the way out of its cgroup namespace."""
    for name, (text, expected) in BATCH.items():
        outside = "".join(f"{line.replace(':/', f':{way}/', 1)}\n" for line in text.splitlines())
        with subtests.test(name=name):
            assert parse_cgroup(outside) == expected
            assert parse_cgroup(outside.replace(way, f"{way}{USERS}")).job_manager is None
            assert parse_cgroup(outside.replace(way, f"{way}/docker-{ID}.scope")).job_manager is None


FORGED = {
    "a user's own container": (v2(f"{USERS}/app.slice/docker-{ID}.scope"), OF_USER),
    "a user's rootless Podman": (v2(f"{USERS}/user.slice/libpod-{ID}.scope"), OF_USER),
    "a user's rootless Docker": (v1("/", f"{USERS}/docker.service/docker/{ID}"), OF_USER),
    "a user's job": (v2(f"{USERS}/job_1/step_0"), OF_USER),
    "a user's slurmstepd": (v2(f"{USERS}/system.slice/slurmstepd.scope/job_1/step_0"), OF_USER),
    "a user's Slurm, v1": (v1("/", f"{USERS}/slurm/uid_0/job_1"), OF_USER),
    "a user's pod": (v2(f"{USERS}/kubepods.slice/kubepods-pod{UID_}.slice/cri-containerd-{ID}.scope"), OF_USER),
    "a user's line break": (v2(f"{USERS}/x\u2028" + v1(f"/docker/{ID}").strip("\n").replace("\n", "\u2028")), OF_USER),
    "a delegated service's container": (
        v2(f"/system.slice/web.service/libpod-payload-{ID}"),
        CgroupMembership(unit="web.service"),
    ),
    "a delegated service's pod": (
        v2(f"/system.slice/web.service/kubepods-pod{UID_}.slice:cri-containerd:{ID}"),
        CgroupMembership(unit="web.service"),
    ),
    "a job in a container": (v2(f"/docker/{ID}/slurm/uid_0/job_1"), CONTAINER),
    "a runtime's service in a container": (
        v2(f"/docker/{ID}/system.slice/containerd.service/docker/{OTHER_ID}"),
        CONTAINER,
    ),
    "a directory below a user's slice": (v2(f"/user.slice/user-1000.slice/docker/{ID}"), NOTHING),
    "the tail of a pod's path at the root": (v2(f"/pod{UID}/{ID}"), NOTHING),
    "a path that climbs": (v2(f"/user/alice/../../docker/{ID}"), NOTHING),
    "a directory of a user's at the root": (v1(f"/user/alice/docker/{ID}"), NOTHING),
}

MALFORMED = {
    "nothing": ("", NOTHING),
    "no path": ("0::\n", NOTHING),
    "no controllers": ("0\n", NOTHING),
    "no newline": ("0::/system.slice/a.service", IN_UNIT),
    "a short ID": (v2("/docker/99f3a16ea25b"), NOTHING),
    "a long ID": (v2(f"/docker/{ID}0"), NOTHING),
    "capitals": (v2(f"/docker/{ID.upper()}"), NOTHING),
    "no job's number": (v2("/system.slice/slurmstepd.scope/job_x"), STEP_DAEMON),
    "other digits": (v2("/system.slice/slurmstepd.scope/job_٤٢"), STEP_DAEMON),
    "no job's number 0": (v2("/system.slice/slurmstepd.scope/job_0"), STEP_DAEMON),
    "a short SLUID": (v2(f"/system.slice/slurmstepd.scope/{SLUID[:-1]}"), STEP_DAEMON),
    "a letter that no SLUID has": (v2(f"/system.slice/slurmstepd.scope/{SLUID[:-1]}U"), STEP_DAEMON),
    "no pod's UID": (v2("/kubepods/burstable/podabc"), NOTHING),
    "a container's monitor": (
        v2(f"/system.slice/crio-conmon-{ID}.scope"),
        CgroupMembership(unit=f"crio-conmon-{ID}.scope"),
    ),
    "a unit of no kind": (v2("/system.slice/a.thing"), NOTHING),
    "a unit with a name that none may have": (v2('/system.slice/a"b\x1b.service'), NOTHING),
    "a unit with too long a name": (v2(f"/system.slice/{'a' * 300}.service"), NOTHING),
}


CORPORA = {
    "systemd": SYSTEMD,
    "container": CONTAINERS,
    "pod": PODS,
    "slurm": SLURM,
    "batch": BATCH,
    "forged": FORGED,
    "malformed": MALFORMED,
}


def test_returns_the_membership_of_each_form_of_path(subtests: pytest.Subtests) -> None:
    for corpus, forms in CORPORA.items():
        for name, (text, expected) in forms.items():
            with subtests.test(corpus=corpus, name=name):
                assert parse_cgroup(text) == expected


NAMES = (
    *("system.slice", "user.slice", "user-1000.slice", "user@1000.service", "kubepods.slice", "kubepods", "burstable"),
    *(f"kubepods-pod{UID_}.slice", f"pod{UID}", f"docker-{ID}.scope", f"cri-containerd-{ID}.scope", "docker", ID),
    *("slurmstepd.scope", "slurm", "uid_0", "job_1", SLUID, "lxc", "..", "", "containerd.service", "web.service"),
    *("\u2028", "\x1b", "a:b", " (deleted)", "x" * 300),
)
paths = st.lists(st.sampled_from(NAMES) | st.text(max_size=5), max_size=8).map("/".join)


hierarchies = st.sampled_from(("0::/", "1:name=systemd:/", "9:memory:/", "::", ""))
lines = st.tuples(hierarchies, paths).map("".join)


BY_SLUID = v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0")


@pytest.mark.parametrize(
    "step", ["batch", "extern", "interactive", "TBD", "0", "17", "0+1", "0 stepmgr", "extern stepmgr"]
)
def test_a_job_that_is_named_by_its_sluid_has_the_number_of_its_slurmstepd(step: str) -> None:
    assert parse_cgroup(BY_SLUID, f"slurmstepd: [4711.{step}]") == slurm_job("4711", name=SLUID)


@pytest.mark.parametrize(
    "title",
    [
        None,
        "",
        "slurmstepd",
        "slurmstepd: [4711.ba",
        f"slurmstepd: [{SLUID}.batch]",
        "slurmstepd: [4711:namespace]",
        "slurmstepd: [0.batch]",
        "slurmstepd: [47112345678.batch]",
        "slurmstepd: [4711.batch] x",
        "[4711.batch]",
        "slurmstepd: [\u0664\u0662.batch]",
        "x slurmstepd: [4711.batch]",
        "slurmstepd: [4711.batch]\n",
        "a" * 100_000,
    ],
)
def test_another_title_has_no_number(title: str | None) -> None:
    assert parse_cgroup(BY_SLUID, title) == slurm_job(SLUID)


def test_a_title_changes_nothing_else(subtests: pytest.Subtests) -> None:
    for corpus, forms in CORPORA.items():
        for name, (text, expected) in forms.items():
            with subtests.test(corpus=corpus, name=name):
                if expected.job_id != SLUID and name != "Slurm in a pod":
                    assert parse_cgroup(text, "slurmstepd: [4711.batch]") == expected


IN_POD = f"/kubepods.slice/kubepods-pod{UID_}.slice/crio-{ID}.scope"


@pytest.mark.parametrize(
    ("path", "title", "job", "name"),
    [
        (f"{IN_POD}/system.slice/n1_slurmstepd.scope/job_42/step_0/user/task_0", "", "42", "42"),
        (f"{IN_POD}/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0", "slurmstepd: [42.0]", "42", SLUID),
        (f"{IN_POD}/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0", "", SLUID, SLUID),
        (f"/kubepods/pod{UID}/{ID}/jobs.slice/slurmstepd.scope/job_42/step_0", "", "42", "42"),
        (f"/kubepods/pod{UID}/system.slice/slurmstepd.scope/job_42/step_0", "", "42", "42"),
        (f"{IN_POD}/slurmstepd.scope/job_42", "", None, None),
        (f"{IN_POD}/x/system.slice/slurmstepd.scope/job_42", "", None, None),
        (f"{IN_POD}/system.slice/x.scope/slurmstepd.scope/job_42", "", None, None),
        (f"{IN_POD}/system.slice/slurmstepd.scope/job_42", None, None, None),
    ],
)
def test_names_the_jobs_of_a_trusted_pod(path: str, title: str | None, job: str | None, name: str | None) -> None:
    """With a title, even an empty one. Only where a slurmd in the container has its jobs."""
    found = parse_cgroup(v2(path), title)
    assert (found.pod_uid, found.job_id, found.job_name) == (UID, job, name)


def test_names_the_jobs_beside_the_containers_of_a_pod() -> None:
    """Slinky's and Soperator's slurmd is privileged, so it sees the cgroups of the node, and has its jobs there."""
    found = parse_cgroup(v2(f"{IN_POD.rpartition('/')[0]}/system.slice/slurmstepd.scope/job_42/step_0/user/task_0"))
    assert (found.pod_uid, found.job_id, found.container) == (UID, "42", None)


STEPS = {
    v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0"): ("step_0", False),
    v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_batch/slurm"): ("step_batch", True),
    v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0+1/slurm"): ("step_0+1", True),
    v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0/slurm/deeper"): ("step_0", False),
    v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/task_0/slurm"): ("step_0", False),
    v2(f"/system.slice/slurmstepd.scope/{SLUID}/step_0/user/{SLUID}/step_1/slurm"): ("step_0", False),
}


@pytest.mark.parametrize("text", STEPS)
def test_returns_the_first_step_in_a_path(text: str) -> None:
    """A workload can create any directories below that of its task."""
    directory = text.partition("/step_")[0]
    assert parse_step(text) == (directory, *STEPS[text])


@given(st.text() | st.lists(lines).map("\n".join))
@settings(max_examples=200)
def test_any_text_parses_as_a_cgroup_file(text: str) -> None:
    assert isinstance(parse_cgroup(text), CgroupMembership)
    assert isinstance(parse_cgroup(text, ""), CgroupMembership)
    parse_step(text)


GENUINE = {
    f"{name}, {line}": (line, parse_cgroup(line))
    for name, (text, expected) in (SYSTEMD | CONTAINERS | PODS | SLURM | BATCH).items()
    for line in text.removesuffix("\n").split("\n")
    if (expected.container or expected.job_id or expected.unit or expected.task)
    and not line.endswith((" (deleted)", "slurmstepd.scope/system", ":/", "containerd.service", "/system.slice", "/.."))
}
"""Each line of a process's file whose last name is that of a cgroup which a workload can own."""

HOSTILE = (
    *NAMES,
    *(OTHER_ID, f"docker-{OTHER_ID}.scope", f"cri-containerd-{OTHER_ID}.scope", f"libpod-{OTHER_ID}.scope"),
    *(f"crio-{OTHER_ID}", f"cri-containerd-{OTHER_ID}", f"libpod-{OTHER_ID}", "container", "task_0", "step_0"),
    *(f"pod{STATIC_UID}", f"kubepods-pod{UID_}.slice", f"kubepods-pod{UID_}.slice:cri-containerd:{OTHER_ID}"),
    *(
        "libpod_parent",
        "ecs",
        "ecstasks.slice",
        f"ecstasks-{TASK}.slice",
        TASK,
        "default",
        "k8s.io",
        "kubelet",
        "nomad",
    ),
    *(f"{UID}.t", f"{UID}.t.scope", "nomad.slice", "shared", "lxc.payload", "lxc.payload.victim", "victim", "job_4711"),
    *("n1_slurmstepd.scope", "docker.service", "init.scope", "x (deleted)", ".", "a.slice"),
)


@pytest.mark.parametrize("number", [20_000, pytest.param(400_000, marks=pytest.mark.systems)])
def test_names_that_a_workload_creates_below_its_cgroup_change_nothing(number: int) -> None:
    """The outermost names decide, whatever a workload appends to a path that its runtime made."""
    chosen = random.Random(7)  # an exact repetition
    tails = [chosen.choices(HOSTILE, k=chosen.randint(2, 4)) for _ in range(number - len(GENUINE) * len(HOSTILE))]
    attempts = [(each, [name]) for each in GENUINE for name in HOSTILE]
    attempts += zip(chosen.choices(list(GENUINE), k=len(tails)), tails, strict=True)
    changed = {}
    for each, names in attempts:
        line, expected = GENUINE[each]
        path = "/".join(names).replace("\n", "")
        if (parsed := parse_cgroup(f"{line}/{path}")) != expected:
            changed[each, names[0]] = path, parsed
    assert not changed


@pytest.mark.timeout(30)
def test_parses_hostile_text_in_linear_time(subtests: pytest.Subtests) -> None:
    """A search in quadratic time takes hours."""
    for text in [
        "0::/" + "a-" * 1_000_000 + "kubepods",
        "0::/" + "a.slice/" * 500_000,
        "0::/../" + "a-" * 1_000_000,
        "0::" + "/.." * 1_000_000,
        "1:a:/b\n" * 500_000,
        "0::/ecs/" + "a/" * 1_000_000,
        "0::/" + "a" * 2_000_000 + "_slurmstepd.scope",
    ]:
        with subtests.test(text=text):
            assert parse_cgroup(text) == NOTHING
