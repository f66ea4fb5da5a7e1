"""Composition root: builds the collectors that the configuration asks for."""

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
from exporter.collectors.child import OURSELVES, User
from exporter.collectors.control import ATTEMPTS as CONTROL_ATTEMPTS
from exporter.collectors.control import ControlClient, SessionLock
from exporter.collectors.discovery import Discovery
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.journal import Journal
from exporter.collectors.kernel_log import KernelLog
from exporter.collectors.location_registry import LocationRegistry
from exporter.collectors.logs import LogCollector, log_collector
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pool import CollectorPool, ControlPoller
from exporter.collectors.proc import Proc
from exporter.collectors.processes import Pods, Processes, affordable_pidfds
from exporter.collectors.thread import CollectorThread, Inbox, Reading
from exporter.collectors.units import Units, UnitStates
from exporter.config.settings import Config
from exporter.model.daemon import Daemon
from exporter.model.node import Node
from exporter.parse.elf import Machine
from exporter.report.problem_text import problem_text
from exporter.state import poll_schedule
from exporter.state.control_replies import CONTROL
from exporter.state.gpus import NVML
from exporter.state.processes import nameless_pods
from exporter.state.reducer import LOGS
from exporter.state.xids import KERNEL, NVML_EVENTS
from exporter.usage.attribution import processes_to_watch
from exporter.usage.launch_history import LIBCUDA_PROBES

if TYPE_CHECKING:
    from exporter.libcuda_probes.collector import LibcudaCollector

JOURNAL_PERIOD = 0.2
PROCESS_WAIT = 0.5
"""An exit is seen at once; this is how soon a process that is newly wanted is met."""

FINDER_PERIOD = 10.0
PODS_PERIOD = 10.0
UNITS_PERIOD = 600.0
UNIT_STATES_PERIOD = 0.5
"""The source itself looks only where that is wanted."""
AT_ONCE = 0.0
"""The period of a source that waits by itself for something to happen."""

REPORT_INTERVAL = 5.0
"""How often a source tells that it has seen nothing new."""

UNITS_DEADLINE = 10.0

LIBCUDA_PROBES_PERIOD = 1.0

PROCESS, DISCOVERY, JOURNAL, PODS, UNITS = "process", "finder", "journal", "pods", "units"
UNIT_STATES = "unit_states"
"""What the sources are called, beside those of which the core knows."""

PIPE_DIRECTORIES = (
    "/tmp/nvidia-mps*",  # noqa: S108 (chosen by NVIDIA)
    "/run/nvidia-mps",
    "/run/nvidia-mps/*",
    "/run/nvidia/mps/*/pipe",
    "/run/nvidia/mps/*/*/pipe",
)
"""Where discovery looks for pipe directories."""

NVIDIA_DEVICE = Path("/dev/nvidiactl")
"""The driver makes it on a machine with GPUs. NVIDIA's container runtime gives it to containers that use GPUs."""

Collect = Callable[[], Reading]


class Assembly:
    """The sources that a configuration asks for."""

    def __init__(self, config: Config, clock: Clock, inbox: Inbox, *, process_wait: float = PROCESS_WAIT) -> None:
        self._config = config
        self._clock = clock
        self._inbox = inbox
        self._path = os.environ.get("PATH", os.defpath)
        self.nvml = Nvml(clock)
        self.libcuda_probes = self._libcuda_probes() if config.attribution.counts_launches else None
        held = affordable_pidfds()
        self.processes = Processes({}, proc=config.constants.procfs, clock=clock, wait=process_wait, most_held=held)
        self._changes = FileChanges()
        self.pods = Pods(config.constants.pods, clock=clock)
        self.units = Units(clock, path=self._path)
        self.unit_states = UnitStates(clock, path=self._path)
        self._unit_thread = self._thread(
            UNIT_STATES,
            self.unit_states.collect,
            period=UNIT_STATES_PERIOD,
            deadline=UNITS_DEADLINE,
            report_interval=REPORT_INTERVAL,
        )
        self.kernel = KernelLog(config.constants.kmsg, clock)
        self.journal = Journal(clock, path=self._path) if config.constants.journal else None
        self._journal_thread = None if self.journal is None else self._follower_of(self.journal)
        self.discovery = self._discovery() if config.constants.discovery else None
        self.location_registry = LocationRegistry(
            discovery=self.discovery, processes=self.processes, journal=self.journal
        )

    def pool(self) -> CollectorPool:
        """All eyes of the service."""
        nvml = self._thread(NVML, self.collect_gpus, period=None)
        pool = CollectorPool(
            (nvml, *self._threads()),
            locate=self._locate,
            poller=self._poller,
            collector=self._log_collector,
            watch=lambda node: self._watch(node, pool),
            nvml=nvml,
        )
        return pool

    def close(self) -> None:
        """Let go of all that is held."""
        if self.libcuda_probes is not None:
            self.libcuda_probes.close()
        for close in (self.nvml.close, self.processes.close, self._changes.close, self.kernel.close):
            close()
        if self.journal is not None:
            self.journal.close()

    def _threads(self) -> Iterator[CollectorThread]:
        yield self._thread(PROCESS, self.processes.collect, period=AT_ONCE, report_interval=REPORT_INTERVAL)
        if self.discovery is not None:
            yield self._thread(DISCOVERY, self.discovery.collect, period=FINDER_PERIOD)
            yield self._thread(UNITS, self.units.collect, period=UNITS_PERIOD, deadline=UNITS_DEADLINE)
        yield self._unit_thread
        if self._journal_thread is not None:
            yield self._journal_thread
        yield self._thread(NVML_EVENTS, self.nvml.collect_xids, period=AT_ONCE, report_interval=REPORT_INTERVAL)
        if self.libcuda_probes is not None:
            yield self._thread(LIBCUDA_PROBES, self.libcuda_probes.collect, period=LIBCUDA_PROBES_PERIOD)
        if self._hears_the_kernel():
            yield self._thread(KERNEL, self.kernel.collect, period=AT_ONCE, report_interval=REPORT_INTERVAL)
        yield self._thread(PODS, _without_problem(self.pods.collect), period=PODS_PERIOD)

    def _follower_of(self, journal: Journal) -> CollectorThread:
        return self._thread(
            JOURNAL, _without_problem(journal.collect), period=JOURNAL_PERIOD, report_interval=REPORT_INTERVAL
        )

    def _locate(self, daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
        locations = self.location_registry.locate(daemons)
        if self.journal is not None and self._journal_thread is not None and self.journal.awaits_collection:
            self._journal_thread.trigger()
        return locations

    def _hears_the_kernel(self) -> bool:
        """Return whether the kernel log can be read."""
        problem = self.kernel.open()
        if problem is not None:
            structlog.get_logger().info(
                "kernel_log_not_followed", problem=problem.code.value, text=problem_text(problem, KERNEL)
            )
            return False
        return True

    def collect_gpus(self) -> Reading:
        """Read NVML. If the machine has GPUs, and the exporter's container got none, their absence is no problem."""
        reading = self.nvml.collect()
        if reading.problem is None or NVIDIA_DEVICE.exists():
            return reading
        init = self._config.constants.procfs / "1" / "root"
        return replace(reading, problem=None) if _exists(init / NVIDIA_DEVICE.relative_to("/")) else reading

    def _watch(self, node: Node, pool: CollectorPool) -> None:
        self.processes.watch(poll_schedule.watched(node))
        self.processes.witnesses.want(poll_schedule.witnesses_wanted(node))
        self.pods.watch(nameless_pods(node))
        if self.libcuda_probes is not None:
            self.libcuda_probes.watch(*processes_to_watch(node))
        pool.read_logs(poll_schedule.last_words_awaited(node))
        at_once = self.unit_states.watch(poll_schedule.units_wanted(node), poll_schedule.units_pressing(node))
        if at_once:
            self._unit_thread.trigger()

    def _log_collector(self, location: DaemonLocation) -> LogCollector:
        """What follows the logs of the daemon in a place."""
        return log_collector(
            LOGS,
            location,
            inbox=self._inbox,
            clock=self._clock,
            changes=self._changes,
            deadline=self._config.constants.collect_deadline,
        )

    def _poller(self, location: DaemonLocation) -> ControlPoller:
        client = self.control_client(location)
        thread = self._thread(CONTROL, client.collect, period=None, deadline=self.ask_deadline, daemon=location.name)
        return ControlPoller(client, thread)

    def hands(self) -> ActionRunner:
        """What does as the watchdog has decided."""
        constants = self._config.constants
        evidence = Evidence(
            self._config.state_directory / "evidence",
            proc=constants.procfs,
            kmsg=constants.kmsg,
            clock=self._clock,
        )
        tools = Tools(
            clock=self._clock,
            proc=Proc(constants.procfs, self._clock),
            client=self.control_client,
            path=self._path,
            evidence=evidence,
        )
        return ActionRunner(tools, inbox=self._inbox, location=_location)

    def control_client(
        self, location: DaemonLocation, deadline: float | None = None, user: User = OURSELVES
    ) -> ControlClient:
        """What asks the daemon in a place; as whom, and within how many seconds an answer must come."""
        runtime_directory, constants = self._config.runtime_directory, self._config.constants
        client = ControlClient(
            location.name,
            location.pipe.path,
            executable=constants.control_executable,
            deadline=constants.control_deadline if deadline is None else deadline,
            clock=self._clock,
            path=self._path,
            lock=SessionLock(runtime_directory, self._clock),
            runtime_directory=runtime_directory,
            user=user,
            proc=Proc(constants.procfs, self._clock),
        )
        client.set_location(location)
        return client

    @property
    def ask_deadline(self) -> float:
        """How long one look at a daemon may take: it may be refused a few times, and then not answer."""
        return self._config.constants.control_deadline * (CONTROL_ATTEMPTS + 1)

    def _libcuda_probes(self) -> "LibcudaCollector":
        """Create the collector of launches. Its modules are imported only if attribution is on."""
        from exporter.libcuda_probes.collector import LibcudaCollector
        from exporter.libcuda_probes.libraries import Libraries, machine_named

        proc = Proc(self._config.constants.procfs, self._clock)
        return LibcudaCollector(
            uses=self.nvml.uses.read,
            sms=self.nvml.uses.sms,
            libraries=Libraries(proc, self._clock, machine_named(platform.machine()) or Machine.X86_64),
            proc=proc,
            clock=self._clock,
            boot_ns=boot_ns,
        )

    def _discovery(self) -> Discovery:
        return Discovery(
            patterns=PIPE_DIRECTORIES, anywhere=True, proc=self._config.constants.procfs, clock=self._clock
        )

    def _thread(
        self,
        name: str,
        collect: Collect,
        *,
        period: float | None,
        deadline: float | None = None,
        report_interval: float = 0.0,
        daemon: str | None = None,
    ) -> CollectorThread:
        return CollectorThread(
            name,
            collect,
            period=period,
            deadline=self._config.constants.collect_deadline if deadline is None else deadline,
            inbox=self._inbox,
            clock=self._clock,
            report_interval=report_interval,
            daemon=daemon,
        )


def _location(daemon: str, node: Node) -> DaemonLocation:
    """Where a daemon is that is acted for: such a one was named, with directories of this host."""
    known = node.daemons[daemon]
    location = on_host(daemon, Path(known.pipe_directory), Path(known.log_directory))
    return replace(location, expected=known.declared.expected, owner=known.declared.owner)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:
        return False


def _without_problem(collect: Collect) -> Collect:
    """The look of a source that nobody asked for: what it cannot see, it does not miss."""
    return lambda: replace(collect(), problem=None)
