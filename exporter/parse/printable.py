"""Safe display of text that another user chose, such as a workload's name, and checks of unit names."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

LONGEST_TEXT = 128
LONGEST_PROBLEM = 512
"""For a sentence of the exporter with advice for an operator."""
LONGEST_VALUE = 4096  # for any text in JSON, such as a path or a command


class PrintableText(str):
    """A text of several lines that is printable already."""

    __slots__ = ()


def printable(text: str, longest: int = LONGEST_TEXT) -> str:
    """Return the text truncated, without unprintable characters and line breaks."""
    return printable_line(text[:longest])


def printable_lines(text: str) -> str:
    """Return a text of several lines without unprintable characters, safe for a terminal."""
    return "\n".join(map(printable_line, text.split("\n")))


def printable_line(text: str) -> str:
    """Return the text with each unprintable character, and each line break, replaced."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)


def printable_value(value: object, longest: int = LONGEST_VALUE) -> Any:
    """Return a value for JSON with each text and key in it truncated and printable. `PrintableText` stays as it is."""
    match value:
        case str() if not isinstance(value, PrintableText):
            return printable(value, longest)
        case Mapping():
            return {printable_value(key, longest): printable_value(each, longest) for key, each in value.items()}
        case list() | tuple():
            return [printable_value(each, longest) for each in value]
    return value


def metric_label(name: str) -> str:
    """Return the metric label for a label of a pod, as kube-state-metrics names it (internal/store/utils.go)."""
    words = re.sub(r"([a-z0-9])([A-Z])", r"\1_\2", re.sub(r"[^a-zA-Z0-9_]", "_", name[:LONGEST_VALUE]))
    return f"label_{words.lower()}"


def is_service_name(name: str) -> bool:
    """Return whether the text names one service, and is neither a pattern nor an option (systemd.unit(5)).

    The name of a unit that runs the work of many does not count, because the exporter restarts services.
    """
    return re.fullmatch(r"(?!-)[A-Za-z0-9:_.\\@-]{1,247}\.service", name) is not None and not is_shared_unit(name)


SHARED_UNITS = r"""
    init dbus user user-runtime-dir session-.+ machine-.+ systemd-(?:logind|machined|nspawn) (?:.+-)?getty ssh sshd.*
    dropbear mosh.* x?inetd screen.* tmux.* gdm3? lightdm sddm lxdm xdm greetd display-manager xrdp.* .*vnc.* x2go.*
    nxserver dcv.* teleport.* cockpit.* guac.* guacd tomcat[0-9]* ttyd code-server.* rstudio.* openondemand.* ondemand.*
    jupyterhub httpd.* apache2? nginx uwsgi cron cron-.+ crond cronie anacron fcron incron at atd
    rc-local supervisor supervisord circusd monit pm2.* (?:.+_)?(?:slurmd|slurmctld|slurmdbd|slurmrestd|slurmstepd)
    openpbs pbs pbs[-_].+ pbspro.* torque.* trqauthd maui moab lsf lsfd lsf[-_].+ lim sbatchd openlava.* condor htcondor
    (?:ht)?condor[-_].+ flux flux-(?:broker|core).* oar-.+ cobalt hyperqueue.* sge.* sgeexecd.* gridengine.* uge.* execd
    ocs.* gcs(?:[0-9-].*)? palsd ray raylet ray-(?:head|worker|node).* dask dask-(?:worker|scheduler).* hadoop.*
    spark-(?:master|worker).* .*nodemanager airflow.* celery.* prefect.* clearml-agent.* determined-agent.* buildkitd
    docker dockerd containerd.* crio cri-.* kubelet k3s.* k0s.* rke2-.* nomad.* podman podman-(?:auto-update|restart)
    snap\.(?:docker|lxd|microk8s|k8s)\..+ lxc.* lxd.* incus.* libvirtd virtqemud ecs mesos.* gitlab-runner.* jenkins.*
    buildkite.* buildbot.* actions[.-]runner.* github.*runner.* act[-_]runner.* gitea.* forgejo.* woodpecker.* drone
    drone-runner.* teamcity.* bamboo.* circleci.* concourse.* zuul.* vsts\.agent\..+ go-agent
"""
"""Patterns of units that run the work of many: logins, batch systems, containers, schedulers and builds. Such a unit is
no workload, and no command names it. An instance, `NAME@INSTANCE`, is like the unit itself."""

_SHARED_UNIT = re.compile(rf"(?:{'|'.join(SHARED_UNITS.split())})(?:@.*)?\.[a-z]+")


@lru_cache(maxsize=1024)
def is_shared_unit(name: str) -> bool:
    """Return whether a unit of this name runs the work of many."""
    return _SHARED_UNIT.fullmatch(name) is not None
