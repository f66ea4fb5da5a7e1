"""The manifests as a cluster receives them."""

import functools
from collections.abc import Sequence
from pathlib import Path

from tests.deploy.kustomize import Object, built

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
VARIANTS = ("device-plugin", "gke", "host")


@functools.cache
def objects(directory: str) -> Sequence[Object]:
    """Return all objects that a folder of `deploy/kubernetes` installs."""
    return built(KUBERNETES / directory)


def the(kind: str, directory: str) -> Object:
    """Return the only object of a kind."""
    (found,) = [each for each in objects(directory) if each["kind"] == kind]
    return found


def pod(variant: str) -> Object:
    """Return the pod template of a variant."""
    specification: Object = the("DaemonSet", variant)["spec"]["template"]["spec"]
    return specification


def container(variant: str) -> Object:
    """Return the exporter's container, the only one of the pod."""
    (only,) = pod(variant)["containers"]
    found: Object = only
    return found


def host_paths(variant: str) -> dict[str, str]:
    """Return the mounted paths of the node, by volume name."""
    return {each["name"]: each["hostPath"]["path"] for each in pod(variant)["volumes"] if "hostPath" in each}
