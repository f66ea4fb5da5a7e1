"""What the kubelet has allocated to containers: devices of device plugins, and resource claims."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerDevices:
    """The devices of a resource that the kubelet allocated to a container."""

    namespace: str
    pod: str
    container: str
    resource: str
    ids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerClaim:
    """A resource claim of a container, and the CDI names of its devices."""

    namespace: str
    pod: str
    container: str
    claim: str
    claim_namespace: str
    devices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodResourcesReading:
    """The answers of the kubelet's pod resources API. `allocatable` has the device ids of each resource."""

    at: float
    devices: tuple[ContainerDevices, ...] = ()
    claims: tuple[ContainerClaim, ...] = ()
    allocatable: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
