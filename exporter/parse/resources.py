"""Names of Kubernetes' device plugins and DRA drivers: shared devices and resource claims."""

import re
from typing import NamedTuple

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_CLAIM_DIRECTORY = re.compile(rf"(?:/[^/]+)*/mps/({_UUID})-[0-9a-f]{{5}}/pipe")
"""`<plugin directory>/mps/<claim UID>-<hash of the devices>/pipe` (cmd/gpu-kubelet-plugin/sharing.go, 25.x)."""


def claim_uid(pipe_directory: str) -> str | None:
    """Return the UID of the resource claim that a directory of NVIDIA's DRA driver belongs to; None for another one."""
    found = _CLAIM_DIRECTORY.fullmatch(pipe_directory)
    return None if found is None else found[1]


_CDI_CLAIM = re.compile(rf"k8s\.gpu\.nvidia\.com/claim=({_UUID})-[\w.-]+")
"""The CDI name of an allocated device (cmd/gpu-kubelet-plugin/cdi.go, 25.x)."""


def cdi_claim_uid(device: str) -> str | None:
    """Return the UID of the resource claim that a CDI device of NVIDIA's DRA driver belongs to; None for another."""
    found = _CDI_CLAIM.fullmatch(device)
    return None if found is None else found[1]


class GpuDevice(NamedTuple):
    """A device of a device plugin: its GPU, or MIG device, by UUID or by index, and whether it is a share of that."""

    gpu: str | int
    shared: bool


_NVIDIA_DEVICE = re.compile(rf"((?:GPU|MIG)-{_UUID})(::[0-9]{{1,9}})?")
"""NVIDIA's device plugin (internal/rm/devices.go, AnnotatedID)."""

_GKE_DEVICE = re.compile(r"nvidia([0-9]{1,4})(/vgpu[0-9]{1,9})?")
"""GKE's device plugin (pkg/gpu/nvidia/gpusharing of container-engine-accelerators)."""


def gpu_device(device_id: str) -> GpuDevice | None:
    """Return what a device id of a device plugin means; None if it is of another kind."""
    found = _NVIDIA_DEVICE.fullmatch(device_id)
    if found is not None:
        return GpuDevice(found[1], shared=found[2] is not None)
    found = _GKE_DEVICE.fullmatch(device_id)
    return None if found is None else GpuDevice(int(found[1]), shared=found[2] is not None)
