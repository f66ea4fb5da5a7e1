"""The objects of the chart as a cluster receives them."""

import functools
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.eventually import PATIENCE_SECONDS
from tests.tools import needed

Object = dict[str, Any]

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "cuda-mps-exporter"

NAMESPACE = "cuda-mps-exporter"

IMAGE = "--set=image.repository=registry.example.com/cuda-mps-exporter"
"""The only required value."""

FILES = {each.name.removesuffix("-values.yaml"): each for each in sorted((CHART / "ci").glob("*-values.yaml"))}

VALUES = {name: file for name, file in FILES.items() if name != "web-config"}
"""The documented values of each installation."""

INSTALLATIONS: Mapping[str, Sequence[str]] = {
    **{name: (f"--values={file}",) for name, file in VALUES.items()},
    "default": (),
    "privileged": ("--set=gpuAccess=privileged,runtimeClassName=",),
    "none": ("--set=gpuAccess=none",),
    "attribution": ("--set=attribution.enabled=true",),
    "restart-pods": ("--set=restartPods.namespaces={gpu-operator,nvidia},watchdog=act",),
    "pod-labels": ("--set=podMetricLabels={team,app.kubernetes.io/name}",),
    "monitoring": (
        "--set=podMonitor.enabled=true,podMonitor.labels.release=stack",
        "--set=prometheusRule.enabled=true,prometheusRule.labels.release=stack",
        "--set=dashboards.enabled=true,networkPolicy.enabled=true",
    ),
}
"""Arguments of helm by installation, and of the other options."""


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm. Its log is not part of its errors."""
    command = (needed("helm"), *map(str, arguments))
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)


@functools.cache
def rendered(*arguments: str | Path, name: str = "cuda-mps-exporter") -> Sequence[Object]:
    """Return all objects that the chart installs with these arguments."""
    done = helm("template", name, CHART, f"--namespace={NAMESPACE}", "--skip-tests", IMAGE, *arguments)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.load_all(done.stdout, yaml.CSafeLoader) if each]


@functools.cache
def objects(installation: str) -> Sequence[Object]:
    """Return all objects of an installation."""
    return rendered(*INSTALLATIONS[installation])


def one(kind: str, found: Sequence[Object]) -> Object:
    """Return the only object of a kind."""
    (only,) = [each for each in found if each["kind"] == kind]
    return only


def the(kind: str, installation: str) -> Object:
    """Return the only object of a kind in an installation."""
    return one(kind, objects(installation))


def pod(installation: str) -> Object:
    """Return the specification of the pods."""
    specification: Object = the("DaemonSet", installation)["spec"]["template"]["spec"]
    return specification


def container(installation: str) -> Object:
    """Return the exporter's container, the only one of the pod."""
    (only,) = pod(installation)["containers"]
    found: Object = only
    return found


def host_paths(installation: str) -> dict[str, str]:
    """Return the mounted paths of the node, by volume name."""
    return {each["name"]: each["hostPath"]["path"] for each in pod(installation)["volumes"] if "hostPath" in each}
