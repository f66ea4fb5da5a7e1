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
    init dbus(?:-broker)? user user-runtime-dir session-.+ machine-.+ systemd-(?:logind|machined|nspawn|udevd)
    getty serial-getty console-getty ssh sshd.* dropbear mosh.* telnet.* x?inetd rlogin rsh rexec screen.* tmux.*
    gdm3? lightdm sddm lxdm xdm kdm ly greetd display-manager xrdp.* .*vnc.* x2go.* nx(?:d|server) dcv.* vsm.*
    teleport.* cockpit.* guac.* tomcat[0-9]* shellinabox ttyd wetty webmin code-server.* openvscode-server rstudio.*
    jupyter(?:hub|lab|-notebook|-server)? openondemand.* ondemand.* httpd(?:24-httpd)? apache2? nginx uwsgi
    cron(?:d|ie|-.+)? anacron fcron incrond? systemd-cron.* atd? rc-local cloud-(?:init|final) salt-minion puppet
    amazon-ssm-agent google-(?:guest-agent|startup-scripts) walinuxagent supervisord? circusd? monit pm2.* runsvdir
    (?:.+_)?slurm(?:d|ctld|dbd|restd|stepd) pbs torque trqauthd maui moab openpbs pbspro.* pbs[-_].+ torque-.+
    lsfd? lsf[-_].+ lim sbatchd openlava.* (?:ht)?condor(?:[-_].+)? flux(?:-(?:broker|core|sched).*)? oar(?:-.+)?
    cobalt hq-worker hyperqueue.* sge.* gridengine.* uge.* univa.* execd ocs.* gcs(?:[0-9-].*)? palsd? prted? orted
    ray(?:let|-(?:head|worker|node|cluster).*)? dask(?:-(?:worker|scheduler).*)? spark-(?:master|worker).* hadoop.*
    .*nodemanager airflow.* celery.* prefect.* dagster.* clearml-agent.* determined-agent.* rundeckd? boinc.*
    dockerd? balena.* containerd.* buildkitd? crio cri-.* kubelet k3s.* k0s.* rke2-.* microk8s.* nomad.* ecs lxd.* lxc.*
    podman(?:-(?:auto-update|restart|clean-transient))? snap\.(?:docker|lxd|microk8s|k8s)\..+ incus.* libvirtd virtqemud
    mesos.* dcos.* concourse.* gitlab-runner.* jenkins.* hudson buildkite.* buildbot.* actions[.-]runner.* zuul.*
    github.*runner.* act[-_]runner.* gitea.* forgejo.* woodpecker.* drone(?:-runner.*)? teamcity.* bamboo.* circleci.*
    vsts\.agent\..+ azure-pipelines.* go-agent
"""
"""Patterns of units that run the work of many: logins, batch systems, containers, schedulers and builds. Such a unit is
no workload, and no command names it. An instance, `NAME@INSTANCE`, is like the unit itself."""

_SHARED_UNIT = re.compile(rf"(?:{'|'.join(SHARED_UNITS.split())})(?:@.*)?\.[a-z]+")


@lru_cache(maxsize=1024)
def is_shared_unit(name: str) -> bool:
    """Return whether a unit of this name runs the work of many."""
    return _SHARED_UNIT.fullmatch(name) is not None
