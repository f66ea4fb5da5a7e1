"""Asks the kubelet's pod resources API which devices and claims the containers of this node have.

gRPC is imported at the first call, since it takes memory that a node without Kubernetes would hold for nothing.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from errno import EACCES
from pathlib import Path
from typing import Any

from exporter.clock import Clock
from exporter.collectors.thread import Reading
from exporter.model.identity import ContainerClaim, ContainerDevices, PodResourcesReading
from exporter.model.reason import Reason, ReasonCode, of_error, timed_out

DEADLINE_SECONDS = 3.0  # both calls of a collection together may take so long

MAX_BYTES = 4 << 20
"""Size of an answer: gRPC's default limit. 16 MiB of empty messages, the kubelet's limit, would take 570 MiB here."""

MAX_CONTAINERS = 4096  # Pods and containers of an answer. The kubelet runs 110 pods by default.

MAX_NAMES = 32768
"""Device ids and other names of a collection. A share of a GPU is one, and a GPU has at most 60 MPS clients."""

LONGEST_NAME = 512  # Characters. The longest name in Kubernetes is that of a resource, with 317.

_ENVIRONMENT = {"GRPC_VERBOSITY": "NONE", "GRPC_ENABLE_FORK_SUPPORT": "0"}
"""gRPC does not write into the service's log, and does nothing when the service starts a child."""

_OPTIONS = (
    ("grpc.max_receive_message_length", MAX_BYTES),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.enable_http_proxy", 0),
    ("grpc.enable_retries", 0),
)
"""Each channel has its own connection, so that a failed one does not delay the next collection."""


class _TooLargeError(Exception):
    """An answer exceeds the limits. A part of it would give wrong sums."""


class PodResources:
    """The devices and claims that the kubelet has allocated to containers."""

    def __init__(self, socket: Path, clock: Clock) -> None:
        """Set the variables of gRPC: call this before any thread starts (setenv(3))."""
        self._socket = socket
        self._clock = clock
        self._has_answered = False
        for name, value in _ENVIRONMENT.items():
            os.environ.setdefault(name, value)

    def collect(self) -> Reading:
        """Ask the kubelet. If it never answered, it is no problem if there is no socket, or if it may not be used."""
        if not os.access(self._socket, os.W_OK, effective_ids=True):
            if not self._has_answered:
                return Reading()
            try:
                self._socket.lstat()
            except OSError as error:
                return Reading(problem=of_error(self._socket, error))
            return Reading(problem=of_error(self._socket, PermissionError(EACCES, os.strerror(EACCES))))
        calling = "gRPC"
        try:
            import grpc

            from exporter.collectors import pod_resources_pb2 as api

            names, began = _Names(), self._clock.monotonic()
            with grpc.insecure_channel(f"unix:{self._socket}", options=_OPTIONS) as channel:
                calling = "List"
                listed = _call(channel, calling, api.ListPodResourcesRequest(), DEADLINE_SECONDS)
                containers = tuple(_containers(api.ListPodResourcesResponse.FromString(listed).pod_resources))
                calling, left = "GetAllocatableResources", began + DEADLINE_SECONDS - self._clock.monotonic()
                allocatable = _call(channel, calling, api.AllocatableResourcesRequest(), max(0.0, left))
                answer = api.AllocatableResourcesResponse.FromString(allocatable)
            reading = PodResourcesReading(
                at=self._clock.now(),
                devices=tuple(names.devices(containers)),
                claims=tuple(names.claims(containers)),
                allocatable=names.by_resource(answer.devices),
            )
        except ImportError as error:
            return Reading(problem=Reason(ReasonCode.PACKAGE_MISSING, subject=error.name or "grpc"))
        except Exception as error:
            return Reading(problem=_problem(calling, error))
        self._has_answered = True
        return Reading((reading,))


def _call(channel: Any, method: str, request: Any, seconds: float) -> bytes:
    call = channel.unary_unary(f"/v1.PodResourcesLister/{method}")
    answer: bytes = call(request.SerializeToString(), timeout=seconds)
    return answer


def _problem(calling: str, error: Any) -> Reason:
    status, detail = (error.code().name, error.details()) if hasattr(error, "code") else (type(error).__name__, error)
    if status == "DEADLINE_EXCEEDED":
        return timed_out(calling, DEADLINE_SECONDS)
    if status == "RESOURCE_EXHAUSTED" or isinstance(error, _TooLargeError):
        return Reason(ReasonCode.ANSWER_TOO_LARGE, subject=calling)
    return Reason(ReasonCode.CALL_FAILED, subject=calling, detail=f"{status}: {detail}")


def _containers(pods: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    left = MAX_CONTAINERS
    for pod in pods:
        left -= 1 + len(pod.containers)
        if left < 0:
            raise _TooLargeError
        yield from ((pod, container) for container in pod.containers)


class _Names:
    def __init__(self) -> None:
        self._left = MAX_NAMES

    def devices(self, containers: Iterable[tuple[Any, Any]]) -> Iterator[ContainerDevices]:
        for pod, container in containers:
            for resource, ids in self.by_resource(container.devices).items():
                yield ContainerDevices(**self._container(pod, container), resource=resource, ids=ids)

    def claims(self, containers: Iterable[tuple[Any, Any]]) -> Iterator[ContainerClaim]:
        for pod, container in containers:
            for claim in container.dynamic_resources:
                yield ContainerClaim(
                    **self._container(pod, container),
                    claim=self._name(claim.claim_name),
                    claim_namespace=self._name(claim.claim_namespace),
                    devices=tuple(
                        self._name(device.name) for resource in claim.claim_resources for device in resource.CDIDevices
                    ),
                )

    def by_resource(self, devices: Iterable[Any]) -> Mapping[str, tuple[str, ...]]:
        """Return the device ids by resource. A resource can have several entries, such as one of each NUMA node."""
        found: dict[str, list[str]] = {}
        for device in devices:
            found.setdefault(self._name(device.resource_name), []).extend(map(self._name, device.device_ids))
        return {resource: tuple(ids) for resource, ids in found.items()}

    def _container(self, pod: Any, container: Any) -> Mapping[str, str]:
        names = {"namespace": pod.namespace, "pod": pod.name, "container": container.name}
        return {key: self._name(name) for key, name in names.items()}

    def _name(self, name: str) -> str:
        self._left -= 1
        if self._left < 0 or len(name) > LONGEST_NAME:
            raise _TooLargeError
        return name
