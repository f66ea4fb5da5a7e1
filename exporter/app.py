"""Composition root: builds the collectors and the action runner that the configuration requires."""

import os
import platform
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from exporter.actions.evidence import Evidence
from exporter.actions.runner import ActionRunner, Tools
from exporter.clock import Clock, boot_ns
from exporter.collectors.child import OWN_USER, User
from exporter.collectors.control_client import ATTEMPTS as CONTROL_ATTEMPTS
from exporter.collectors.control_client import ControlClient, SessionLock
from exporter.collectors.daemon_directory import DaemonDirectory, DirectoryCollector
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.discovery import Discovery
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.kernel_log import KernelLog
from exporter.collectors.logs import LogCollector
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pod_resources import PodResources
from exporter.collectors.pool import CollectorPool, ControlPoller, LocationRegistry
from exporter.collectors.proc import Proc
from exporter.collectors.processes import AddressRangesCollector, Pods, Processes, WorkloadProcesses, affordable_pidfds
from exporter.collectors.systemd import Journal, Systemctl, Units, UnitStates
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.config.settings import Attribution, Config
from exporter.incidents import fault_address
from exporter.model.daemon import Daemon
from exporter.model.node import CollectorName, Node
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.elf import Machine
from exporter.report.reasons import reason_text
from exporter.state import poll_schedule
from exporter.state.processes import unnamed_pods
from exporter.usage.attribution import processes_to_watch

if TYPE_CHECKING:
    from exporter.libcuda_probes.collector import LibcudaCollector

CONTINUOUS = 0.0
"""The period of a collector that waits for its next event itself."""
PROCESS_WAIT = 0.5
"""How long the collector of processes waits for an exit, before it begins to watch newly requested processes."""
JOURNAL_PERIOD = 0.2
ADDRESS_RANGES_PERIOD = 1.0
"""How often the collector checks which clients are due. A fault triggers it."""
LIBCUDA_PROBES_PERIOD = 1.0
POD_RESOURCES_PERIOD = 15.0
UNITS_PERIOD = 600.0
UNIT_STATES_PERIOD = 0.5
"""The collector reads only the units that are requested."""
UNCHANGED_PERIOD = 5.0
"""How often a frequent collector reports that nothing has changed."""
UNITS_DEADLINE = 10.0

NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""The driver makes it on a machine with GPUs. NVIDIA's container runtime gives it to containers that use GPUs."""

Collect = Callable[[], Reading]


class Assembly:
    """The collectors that a configuration requires, and the runner of the watchdog's actions."""

    def __init__(self, config: Config, clock: Clock, inbox: Inbox, *, process_wait: float = PROCESS_WAIT) -> None:
        constants = config.constants
        self._config = config
        self._clock = clock
        self._inbox = inbox
        self._path = os.environ.get("PATH", os.defpath)
        self._proc = Proc(constants.procfs, clock)
        self._changes = FileChanges()
        self.nvml = Nvml(clock)
        self._libcuda_probes = self._probes() if config.attribution is Attribution.BPF else None
        held = affordable_pidfds()
        self.processes = Processes(proc=constants.procfs, clock=clock, wait=process_wait, max_pidfds=held)
        self.pods = Pods(constants.pods, clock=clock)
        self.pod_resources = PodResources(constants.pod_resources, clock)
        systemctl = Systemctl(clock, path=self._path)
        self.units = Units(systemctl, clock)
        self._kernel_log = KernelLog(constants.kmsg, clock)
        self._unit_states = UnitStates(systemctl, clock)
        self._unit_states_thread = self._thread(
            CollectorName.UNIT_STATES,
            self._unit_states.collect,
            period=UNIT_STATES_PERIOD,
            deadline=UNITS_DEADLINE,
            quiet=True,
        )
        self._node, self._fault_at = Node(), 0.0
        ranges = AddressRangesCollector(self._proc, clock, lambda: fault_address.wanted(self._node))
        self._address_ranges_thread = self._thread(
            CollectorName.ADDRESS_RANGES, ranges.collect, period=ADDRESS_RANGES_PERIOD, quiet=True
        )
        self.journal = self._journal_thread = None
        if constants.journal:
            self.journal = Journal(clock, path=self._path)
            collect = _without_problem(self.journal.collect)
            self._journal_thread = self._thread(CollectorName.JOURNAL, collect, period=JOURNAL_PERIOD, quiet=True)
        self.discovery = None
        if constants.discovery:
            self.discovery = Discovery(
                patterns=constants.pipe_directories,
                proc=constants.procfs,
                clock=clock,
                gke_config=constants.gke_config,
            )
        self.locations = LocationRegistry(discovery=self.discovery, journal=self.journal)
        self._identities = Identities()
        self._workloads = WorkloadProcesses(self._proc, clock)

    def pool(self) -> CollectorPool:
        """Return the collector threads of the service."""
        nvml = self._thread(CollectorName.NVML, self.collect_gpus, period=None)
        pool = CollectorPool(
            (nvml, *self._threads()),
            locate=self._locate,
            poller=self._control_poller,
            collector=lambda location: LogCollector(
                CollectorName.LOGS,
                location,
                inbox=self._inbox,
                clock=self._clock,
                changes=self._changes,
                deadline=self._config.constants.collect_deadline,
            ),
            directory=lambda location: DirectoryCollector(
                CollectorName.PIPE_DIRECTORY,
                self.directory(location),
                inbox=self._inbox,
                clock=self._clock,
                deadline=self._config.constants.collect_deadline,
            ),
            directories=lambda: self.locations.all,
            watch=lambda node: self._request(node, pool),
            nvml=nvml,
        )
        return pool

    def close(self) -> None:
        """Close the files and libraries of all collectors."""
        if self._libcuda_probes is not None:
            self._libcuda_probes.close()
        for each in (self.nvml, self.processes, self._changes, self._kernel_log):
            each.close()
        if self.journal is not None:
            self.journal.close()

    def collect_gpus(self) -> Reading:
        """Read NVML. If the node has GPUs but the exporter's container got none, this is the problem.

        On GKE it is none: there only pods that take a share from the scheduler, or are privileged, get GPUs.
        """
        reading = self.nvml.collect()
        if reading.problem is None or NVIDIA_DEVICE.exists():
            return reading
        try:
            node_has_gpus = (self._config.constants.procfs / f"1/root{NVIDIA_DEVICE}").exists()
        except OSError:
            node_has_gpus = False
        if not node_has_gpus:
            return reading
        if self._config.constants.gke_config.exists():
            return replace(reading, problem=None)
        problem = Reason(ReasonCode.CONTAINER_WITHOUT_GPUS, detail=reading.problem.parameters.get("detail") or "")
        return replace(reading, problem=problem)

    def directory(self, location: DaemonLocation) -> DaemonDirectory:
        """Return the reader of one daemon's pipe directory."""
        return DaemonDirectory(location, self._proc, self._clock, self._identities, self._workloads)

    def action_runner(self) -> ActionRunner:
        """Return the runner of the watchdog's actions."""
        constants = self._config.constants
        evidence = Evidence(
            self._config.state_directory / "evidence", proc=constants.procfs, kmsg=constants.kmsg, clock=self._clock
        )
        tools = Tools(
            clock=self._clock, proc=self._proc, client=self.control_client, path=self._path, evidence=evidence
        )
        return ActionRunner(tools, inbox=self._inbox, location=_location)

    def control_client(
        self, location: DaemonLocation, deadline: float | None = None, user: User = OWN_USER
    ) -> ControlClient:
        """Return a client that queries the daemon there as `user`, with a deadline in seconds for each reply."""
        constants = self._config.constants
        return ControlClient(
            location,
            executable=constants.control_executable,
            deadline=constants.control_deadline if deadline is None else deadline,
            clock=self._clock,
            path=self._path,
            lock=SessionLock(self._config.runtime_directory, self._clock),
            user=user,
            proc=self._proc,
        )

    @property
    def control_deadline(self) -> float:
        """Seconds that one collection from a daemon may take: several refusals, then a query without a reply."""
        return self._config.constants.control_deadline * (CONTROL_ATTEMPTS + 1)

    def _threads(self) -> Iterator[CollectorThread]:
        yield self._thread(CollectorName.PROCESS, self.processes.collect, period=CONTINUOUS, quiet=True)
        if self.discovery is not None:
            yield self._thread(
                CollectorName.DISCOVERY, self.discovery.collect, period=self._config.constants.discovery_period
            )
            yield self._thread(CollectorName.UNITS, self.units.collect, period=UNITS_PERIOD, deadline=UNITS_DEADLINE)
        yield self._unit_states_thread
        yield self._address_ranges_thread
        if self._journal_thread is not None:
            yield self._journal_thread
        yield self._thread(CollectorName.NVML_EVENTS, self.nvml.xid_events.collect, period=CONTINUOUS, quiet=True)
        if self._libcuda_probes is not None:
            yield self._thread(CollectorName.LIBCUDA_PROBES, self._libcuda_probes.collect, period=LIBCUDA_PROBES_PERIOD)
        problem = self._kernel_log.open()
        if problem is None:
            yield self._thread(CollectorName.KERNEL, self._kernel_log.collect, period=CONTINUOUS, quiet=True)
        else:
            structlog.get_logger().info(
                "kernel_log_not_followed", problem=problem.code.value, text=reason_text(problem, CollectorName.KERNEL)
            )
        yield self._thread(
            CollectorName.PODS, _without_problem(self.pods.collect), period=self._config.constants.discovery_period
        )
        yield self._thread(CollectorName.POD_RESOURCES, self.pod_resources.collect, period=POD_RESOURCES_PERIOD)

    def _locate(self, daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
        locations = self.locations.locate(daemons)
        self._identities.order = tuple(self.locations.all)
        if self.journal is not None and self._journal_thread is not None and self.journal.awaits_collection:
            self._journal_thread.trigger()
        return locations

    def _request(self, node: Node, pool: CollectorPool) -> None:
        """Request the next readings from the collectors."""
        wanted = poll_schedule.readings_wanted(node)
        self.processes.watch(poll_schedule.processes_wanted(node), wanted.states, poll_schedule.start_ticks(node))
        pool.want(wanted)
        self.pods.watch(unnamed_pods(node))
        if self._libcuda_probes is not None:
            self._libcuda_probes.watch(*processes_to_watch(node))
        self._node, fault_at = node, fault_address.last_fault_at(node)
        if fault_at > self._fault_at:
            self._fault_at = fault_at
            self._address_ranges_thread.trigger()
        pool.explain_ends(poll_schedule.unexplained_ends(node))
        if self._unit_states.watch(poll_schedule.units_wanted(node), poll_schedule.units_urgent(node)):
            self._unit_states_thread.trigger()

    def _control_poller(self, location: DaemonLocation) -> ControlPoller:
        client = self.control_client(location)
        thread = self._thread(
            CollectorName.CONTROL, client.collect, period=None, deadline=self.control_deadline, daemon=location.name
        )
        return ControlPoller(client, thread)

    def _probes(self) -> "LibcudaCollector":
        """Create the collector of launches. Its modules are imported only if attribution is on."""
        from exporter.libcuda_probes.collector import LibcudaCollector
        from exporter.libcuda_probes.libraries import CUDA_MACHINES, Libraries

        return LibcudaCollector(
            uses=self.nvml.uses.read,
            sms=self.nvml.uses.sms,
            libraries=Libraries(self._proc, self._clock, CUDA_MACHINES.get(platform.machine(), Machine.X86_64)),
            proc=self._proc,
            clock=self._clock,
            boot_ns=boot_ns,
        )

    def _thread(
        self,
        name: str,
        collect: Collect,
        *,
        period: float | None,
        deadline: float | None = None,
        quiet: bool = False,
        daemon: str | None = None,
    ) -> CollectorThread:
        """Return a collector's thread; a `quiet` one reports only some of the collections that find nothing new."""
        return CollectorThread(
            name,
            collect,
            period=period,
            deadline=self._config.constants.collect_deadline if deadline is None else deadline,
            inbox=self._inbox,
            clock=self._clock,
            report_interval=UNCHANGED_PERIOD if quiet else 0.0,
            daemon=daemon,
        )


def _location(daemon: str, node: Node) -> DaemonLocation:
    """Return where the watchdog acts: only a configured daemon has actions, and its directories are on this host."""
    known = node.daemons[daemon]
    location = on_host(daemon, Path(known.pipe_directory), Path(known.log_directory))
    return replace(location, expected=known.declared.expected, owner=known.declared.owner)


def _without_problem(collect: Collect) -> Collect:
    """Wrap a collector that is optional, so that its failures are not problems."""
    return lambda: replace(collect(), problem=None)
