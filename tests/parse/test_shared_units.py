"""Units that run the work of many, by their names."""

import io
import json

import pytest

from exporter.parse import cgroup
from exporter.parse.units import is_service_name, is_shared_unit
from exporter.recording import Mask, write_observation
from exporter.state.processes import workload_of
from tests.builders import USER_ALICE, process

BATCH_SYSTEMS = """
    pbs_jobs.service pbspro.service pbs.service lsfd.service condor.service flux.service sge_execd.service
    ocs8036.service ocs-execd.service slurmd.service slurmstepd.scope node1_slurmstepd.scope nomad.service
    docker.service containerd.service crio.service kubelet.service podman.service user@1000.service session-3.scope
    session-c1.scope cron.service atd.service sshd.service jupyterhub.service ray.service gitlab-runner.service
    jenkins.service supervisor.service
"""

OTHERS = r"""
    pbs-mom.service openpbs.service trqauthd.service torque-mom.service sgeexecd.p6444.service gridengine-exec.service
    condor@pool.service htcondor.service slurmd@node1.service crond.service anacron.service supervisord.service
    k3s.service k3s-agent.service rke2-agent.service rke2-server.service snap.microk8s.daemon-containerd.service
    snap.lxd.daemon.service lxd.service incus.service machine-qemu\x2d1\x2dvm.scope systemd-nspawn@box.service
    podman.socket buildkite-agent.service buildkite-agent@2.service actions.runner.acme-train.node1.service
    github-runner.service forgejo-runner.service teamcity-agent.service jenkins-agent.service woodpecker-agent.service
    gitlab-runner@2.service ray-head.service dask-worker@1.service airflow-worker.service celery.service init.scope
    ssh.service sshd@7.service gdm.service gdm3.service lightdm.service sddm.service display-manager.service
    xrdp.service xrdp-sesman.service tigervncserver@:1.service code-server@alice.service rstudio-server.service
    teleport.service guacd.service tomcat9.service cockpit.service getty@tty1.service screen-alice.scope
    tmux-spawn-1.scope httpd.service apache2.service ondemand-dex.service
    amazon-ssm-agent.service snap.amazon-ssm-agent.amazon-ssm-agent.service salt-minion.service qemu-guest-agent.service
    rundeckd.service cloud-final.service deadline10launcher.service rqd.service
    tailscaled.service chrome-remote-desktop@alice.service ray_head.service dask-cuda-worker.service slurm.service
    dcos-mesos-slave.service boinc-client.service waagent.service walinuxagent.service dockerd.service lsfd.service
"""

OF_ONE_SERVICE = """
    vllm.service vllm@0.service triton.service nvidia-cuda-mps.service nvidia-cuda-mps@0.service train.service
    run-u12.service run-r1a2b.scope ray-tracer.service flux-dev.service podman-vllm.service docker-vllm.service
    drone-vision.service spark-llm.service jupyter.service jupyter-alice-singleuser.service condorcet.service
    attention.service voice-agent.service cronos.service usermodel.service pbsmith.service
"""


def test_a_unit_that_runs_the_work_of_many_is_no_workload_and_in_no_command(subtests: pytest.Subtests) -> None:
    for unit in (BATCH_SYSTEMS + OTHERS).split():
        with subtests.test(unit=unit):
            assert is_shared_unit(unit)
            assert not is_service_name(unit)
            for path in (f"/system.slice/{unit}", f"/system.slice/{unit}/sub/below", f"/{unit}"):
                assert workload_of(process(cgroup=f"0::{path}\n")) == USER_ALICE, path


def test_a_unit_of_one_service_is_a_workload(subtests: pytest.Subtests) -> None:
    for unit in OF_ONE_SERVICE.split():
        with subtests.test(unit=unit):
            assert not is_shared_unit(unit)
            workload = workload_of(process(cgroup=f"0::/system.slice/{unit}\n"))
            assert workload is not None
            assert workload.name == unit


def test_the_services_of_container_runtimes_are_shared() -> None:
    assert [unit for unit in cgroup._RUNTIME_SERVICES if not is_shared_unit(unit)] == []


def test_a_masked_recording_has_the_same_shared_units(subtests: pytest.Subtests) -> None:
    for unit in BATCH_SYSTEMS.split():
        with subtests.test(unit=unit):
            masked = io.StringIO()
            write_observation(masked, process(cgroup=f"0::/system.slice/{unit}\n"), Mask(b"key"))
            shown = process(cgroup=json.loads(masked.getvalue())["cgroup"])
            assert workload_of(shown) == USER_ALICE
