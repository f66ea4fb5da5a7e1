"""The manifests as they reach a cluster."""

import functools
from collections.abc import Sequence
from pathlib import Path

from tests.deploy.kustomize import Object, built

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
VARIANTS = ("device-plugin", "gke", "host")


@functools.cache
def objects(directory: str) -> Sequence[Object]:
    """All that a folder of `deploy/kubernetes` installs."""
    return built(KUBERNETES / directory)


def the(kind: str, directory: str) -> Object:
    """The one object of a kind."""
    (found,) = [each for each in objects(directory) if each["kind"] == kind]
    return found


def pod(variant: str) -> Object:
    """What each of the nodes runs."""
    specification: Object = the("DaemonSet", variant)["spec"]["template"]["spec"]
    return specification


def container(variant: str) -> Object:
    """The exporter's container, which is the only one."""
    (only,) = pod(variant)["containers"]
    found: Object = only
    return found


def host_paths(variant: str) -> dict[str, str]:
    """The node's paths that are mounted, by the volume's name."""
    return {each["name"]: each["hostPath"]["path"] for each in pod(variant)["volumes"] if "hostPath" in each}
