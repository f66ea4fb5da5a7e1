"""The simulated node: the configuration of its daemons, and its present state."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from exporter.config.settings import Config, DaemonConfig
from exporter.demo.daemon import SimulatedDaemon
from exporter.demo.gpus import GPU_BYTES, GPUS, SimulatedGpu
from exporter.demo.workloads import GIBIBYTE, NOTEBOOKS, SERVING, TRAINERS, ProcessFactory, SimulatedProcess
from exporter.dry_run import START
from exporter.model.daemon import Daemon, Declaration
from exporter.model.identity import ContainerDevices, PodResourcesReading
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Mode

CLIENTS_LIMIT = 12
"""Maximum clients of a server: few, so that a server can be full."""

DAEMONS = tuple(
    DaemonConfig(
        pipe_directory=Path(f"/run/nvidia/mps/{name}/pipe"),
        log_directory=Path(f"/run/nvidia/mps/{name}/log"),
        watchdog=mode,
        restart_command=START,
        active_thread_percentage=percentage,
        pinned_memory_limits=tuple((device, gibibytes * GIBIBYTE) for device in range(devices)),
    )
    for name, mode, percentage, devices, gibibytes in (
        ("training", Mode.OBSERVE, 60.0, 3, 48),
        ("inference", Mode.ACT, 40.0, 1, 64),
        ("notebooks", Mode.ACT, 25.0, 1, 16),
    )
)


SHARED_GPU, SHARES, IDLE_POD = "nvidia.com/gpu.shared", 10, ("notebook-0", "research")
"""The resource of Kubernetes, its devices on one GPU, and the name and namespace of a pod that uses no GPU."""


def simulated_config(config: Config) -> Config:
    """Return the configuration with the daemons of the simulated node."""
    return replace(config, daemons=DAEMONS)


def initial_node() -> Node:
    """Return the node before the first observation."""
    paths = {each.name: (str(each.pipe_directory), str(each.log_directory)) for each in DAEMONS}
    return Node(
        daemons={
            name: Daemon(
                name=name,
                pipe_directory=pipe,
                log_directory=log,
                declared=Declaration(expected=True, clients_limit=CLIENTS_LIMIT),
            )
            for name, (pipe, log) in paths.items()
        }
    )


class Scenario:
    """The state of the simulated node."""

    def __init__(self, seed: int) -> None:
        self.factory = ProcessFactory(seed)
        groups = ((GPUS[:2], GPUS[2:3]), (GPUS[3:4],), (GPUS[4:],))
        self.training, self.inference, self.notebooks = self.daemons = tuple(
            SimulatedDaemon(config.name, gpus, workloads, config.limits, CLIENTS_LIMIT, self.factory)
            for config, gpus, workloads in zip(DAEMONS, groups, (TRAINERS, SERVING, NOTEBOOKS), strict=True)
        )
        self.gpus = tuple(SimulatedGpu(gpu, self.factory.random.uniform(1e8, 9e8)) for gpu in GPUS)
        self.bypassing: dict[int, SimulatedProcess] = {}
        """Processes that use a GPU without MPS."""
        self.nvml_fails_until = 0.0
        self.faults = 0
        self._pending: list[tuple[float, Callable[[float], Iterable[Observation]]]] = []

    @property
    def clients(self) -> Sequence[SimulatedProcess]:
        """Return the clients of all daemons."""
        return [client for daemon in self.daemons for client in daemon.clients.values()]

    @property
    def processes(self) -> Sequence[SimulatedProcess]:
        """Return all processes that use a GPU."""
        return [*self.clients, *self.bypassing.values()]

    def free_bytes(self, gpu: str) -> int:
        """Return the free memory of a GPU."""
        return GPU_BYTES - sum(each.used_bytes for each in self.processes if gpu in each.gpus)

    def nvml_readings(self, at: float) -> Iterator[Observation]:
        """Yield NVML's readings of the GPUs, and the processes that it lists but no daemon does."""
        servers = {gpu: daemon.server for daemon in self.daemons for gpu in daemon.gpus}
        for gpu in self.gpus:
            yield gpu.reading(at, self.factory.random, servers[gpu.uuid], self.clients, self.bypassing.values())
        yield from (each.reading(at) for each in self.bypassing.values())

    def pod_resources(self, at: float) -> PodResourcesReading:
        """Return the kubelet's answers: each pod of the inference daemon has a share, and one more pod is idle."""
        gpu, *_ = self.inference.gpus
        pods = [each.pod[1:] for each in SERVING if each.pod is not None]
        devices = (
            ContainerDevices(
                namespace=namespace, pod=name, container="main", resource=SHARED_GPU, ids=(f"{gpu}::{number}",)
            )
            for number, (name, namespace) in enumerate([*pods, IDLE_POD])
        )
        ids = tuple(f"{gpu}::{number}" for number in range(SHARES))
        return PodResourcesReading(at=at, devices=tuple(devices), allocatable={SHARED_GPU: ids})

    def later(self, at: float, action: Callable[[float], Iterable[Observation]]) -> None:
        """Let this happen at a time."""
        self._pending.append((at, action))

    def due(self, at: float) -> Iterator[Observation]:
        """Yield what happens up to this time, the oldest first."""
        due = sorted((each for each in self._pending if each[0] <= at), key=lambda each: each[0])
        self._pending = [each for each in self._pending if each[0] > at]
        for _, action in due:
            yield from action(at)
