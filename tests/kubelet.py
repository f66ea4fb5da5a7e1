"""A kubelet's pod resources API on a Unix socket: a real gRPC server with given answers."""

import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc

from exporter.collectors import pod_resources_pb2 as api

Devices = Mapping[str, Sequence[str]]


def devices(resources: Devices) -> list[Any]:
    """Return an entry for each id, as the kubelet does for allocatable devices."""
    return [
        api.ContainerDevices(resource_name=resource, device_ids=[each])
        for resource, ids in resources.items()
        for each in ids
    ]


def claim(name: str, namespace: str, *cdi_devices: str) -> Any:
    """Return a resource claim of a container."""
    resource = api.ClaimResource(CDIDevices=[api.CDIDevice(name=each) for each in cdi_devices])
    return api.DynamicResource(claim_name=name, claim_namespace=namespace, claim_resources=[resource])


def pod(namespace: str, name: str, resources: Devices, *claims: Any, container: str = "main") -> Any:
    """Return a pod with one container."""
    entries = [api.ContainerDevices(resource_name=key, device_ids=ids) for key, ids in resources.items()]
    only = api.ContainerResources(name=container, devices=entries, dynamic_resources=claims)
    return api.PodResources(name=name, namespace=namespace, containers=[only])


class Kubelet:
    """The answers, which a test can replace while the server runs: messages, bytes or gRPC status codes."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.listed: Any = api.ListPodResourcesResponse()
        self.allocatable: Any = api.AllocatableResourcesResponse()
        self.asked: list[str] = []

    def allocate(self, *pods: Any, allocatable: Devices | None = None) -> None:
        """Set the pods, and the allocatable devices."""
        self.listed = api.ListPodResourcesResponse(pod_resources=pods)
        self.allocatable = api.AllocatableResourcesResponse(devices=devices(allocatable or {}))

    def answer(self, method: str, context: grpc.ServicerContext) -> bytes:
        """Answer a call."""
        self.asked.append(method)
        found = self.listed if method == "List" else self.allocatable
        if isinstance(found, grpc.StatusCode):
            context.abort(found, "not today")
        return found if isinstance(found, bytes) else found.SerializeToString()


@contextmanager
def kubelet() -> Iterator[Kubelet]:
    """Serve on a socket with a short path: a longer one than 107 bytes is refused (unix(7))."""
    with tempfile.TemporaryDirectory(prefix="kubelet-") as directory:
        serving, server = Kubelet(Path(directory) / "kubelet.sock"), grpc.server(ThreadPoolExecutor(2))
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(
                lambda _, context, method=method: serving.answer(method, context)
            )
            for method in ("List", "GetAllocatableResources")
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1.PodResourcesLister", handlers),))
        server.add_insecure_port(f"unix:{serving.socket}")
        server.start()
        try:
            yield serving
        finally:
            stopped: threading.Event = server.stop(None)
            stopped.wait()
