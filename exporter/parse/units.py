"""Names of units of systemd."""

import re
from functools import lru_cache


def is_service_name(name: str) -> bool:
    """Return whether the text names one service, and is neither a pattern nor an option (systemd.unit(5)).

    The name of a unit that runs the work of many does not count, because the exporter restarts services.
    """
    return re.fullmatch(r"(?!-)[A-Za-z0-9:_.\\@-]{1,247}\.service", name) is not None and not is_shared_unit(name)


SHARED_UNITS = r"""
    init dbus user user-runtime-dir session-.+ machine-.+ systemd-(?:logind|machined|nspawn) (?:.+-)?getty ssh sshd.*
    dropbear mosh.* x?inetd screen.* tmux.* gdm3? lightdm sddm lxdm xdm greetd display-manager xrdp.* .*vnc.* x2go.*
    nxserver dcv.* teleport.* cockpit.* guac.* tomcat[0-9]* ttyd code-server.* rstudio.* openondemand.* ondemand.*
    jupyterhub chrome-remote-desktop httpd.* apache2? nginx uwsgi cron cron-.+ crond cronie anacron fcron incron at atd
    walinuxagent rc-local supervisor supervisord circusd monit tailscaled pm2.*
    (?:.+_)?(?:slurmd|slurmctld|slurmdbd|slurmrestd|slurmstepd) openpbs pbs pbs[-_].+ pbspro.* torque.* trqauthd maui
    moab lsf lsfd lsf[-_].+ lim sbatchd openlava.* slurm (?:ht)?condor(?:[-_].+)? flux flux-(?:broker|core).* oar-.+
    cobalt hyperqueue.* sge.* gridengine.* uge.* execd ocs.* gcs(?:[0-9-].*)? palsd ray raylet
    ray[-_](?:head|worker|node).* dask dask-(?:cuda|worker|scheduler).* hadoop.* spark-(?:master|worker).* .*nodemanager
    airflow.* celery.* prefect.* clearml-agent.* determined-agent.* buildkitd docker dockerd containerd.* crio cri-.*
    kubelet k3s.* k0s.* rke2-.* nomad.* podman podman-(?:auto-update|restart) snap\.(?:docker|lxd|microk8s|k8s)\..+
    lxc.* lxd.* incus.* libvirtd virtqemud ecs (?:.+-)?mesos.* gitlab-runner.* buildkite.* buildbot.*
    actions[.-]runner.* github.*runner.* act[-_]runner.* gitea.* forgejo.* woodpecker.* jenkins.* drone drone-runner.*
    boinc-client teamcity.* bamboo.* circleci.* concourse.* zuul.* vsts\.agent\..+ go-agent waagent
    (?:.+\.)?amazon-ssm-agent.* qemu-guest-agent salt-minion rundeckd cloud-(?:final|init.*) deadline.*launcher rqd
"""
"""Patterns of units that run the work of many: logins, batch systems, containers, schedulers and builds. Such a unit is
no workload, and no command names it. An instance, `NAME@INSTANCE`, is like the unit itself."""

_SHARED_UNIT = rf"(?:{'|'.join(SHARED_UNITS.split())})(?:@.*)?\.[a-z]+"


@lru_cache(maxsize=1024)
def is_shared_unit(name: str) -> bool:
    """Return whether a unit of this name runs the work of many."""
    return re.fullmatch(_SHARED_UNIT, name) is not None
