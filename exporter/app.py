"""Composition root: builds the collectors and the action runner that the configuration requires, or collects once."""

import contextlib
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from exporter.actions.evidence import Evidence
from exporter.actions.runner import ActionRunner, Tools
from exporter.clock import Clock, SystemClock, boot_ns
from exporter.collectors.child import OWN_USER, User
from exporter.collectors.control_client import ATTEMPTS as CONTROL_ATTEMPTS
from exporter.collectors.control_client import ControlClient, SessionLock
from exporter.collectors.daemon_directory import DaemonDirectory, DirectoryCollector
from exporter.collectors.daemon_processes import Identities
from exporter.collectors.discovery import Discovery
from exporter.collectors.file_changes import FileChanges
from exporter.collectors.kernel_log import KernelLog
from exporter.collectors.logs import DaemonLogs, LogCollector, read_tail
from exporter.collectors.nvml.collector import Nvml
from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.collectors.pods import PodLabels, Pods
from exporter.collectors.pool import CollectorPool, ControlPoller, LocationRegistry
from exporter.collectors.proc import Proc
from exporter.collectors.processes import AddressRangesCollector, Processes, affordable_pidfds
from exporter.collectors.systemd import Journal, Systemctl, Units, UnitStates
from exporter.collectors.thread import CollectorThread, Inbox, Reading, collect_each
from exporter.collectors.workload_processes import WorkloadProcesses
from exporter.config.settings import Attribution, Config
from exporter.incidents import fault_address, incidents
from exporter.logger import logger
from exporter.model.daemon import Daemon
from exporter.model.node import CollectorName, Node
from exporter.model.observation import SourceReading
from exporter.model.reason import Reason, ReasonCode
from exporter.model.settings import PollIntervals
from exporter.parse.elf import Machine
from exporter.recording import header_of
from exporter.reducer import reduce
from exporter.report.reasons import reason_text
from exporter.state import poll_schedule
from exporter.state.gpus import BYPASSING_AFTER_SECONDS, may_bypass
from exporter.state.lifecycle import HELD_AFTER_SECONDS, SECOND_PROBE_SECONDS
from exporter.state.log_files import with_log_tail, without_reused_pids
from exporter.state.processes import unlabelled_pods, unnamed_pods
from exporter.usage.attribution import processes_to_watch

if TYPE_CHECKING:
    from exporter.libcuda_probes.collector import LibcudaCollector

CONTINUOUS = 0.0
"""The period of a collector that waits for its next event itself."""
PROCESS_WAIT = 0.5
"""How long the collector of processes waits for an exit, before it begins to watch newly requested processes."""
PROCESS_LISTS_PERIOD = 0.5
"""How often NVML's lists of processes are compared with those of the last reading."""
JOURNAL_PERIOD = 0.2
ADDRESS_RANGES_PERIOD = 5.0
"""How often the collector checks which clients are due. A fault and new processes trigger it."""
LIBCUDA_PROBES_PERIOD = 1.0
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
        self._workloads = WorkloadProcesses(self._proc, clock, constants.pods, config.slurm_trusted_namespaces)
        self.processes = Processes(
            proc=constants.procfs, clock=clock, wait=process_wait, max_pidfds=held, workloads=self._workloads
        )
        self.pods = Pods(constants.pods, clock=clock)
        self.pod_labels = PodLabels(config.pod_labels, clock) if config.pod_labels else None
        systemctl = Systemctl(clock, path=self._path)
        self.units = Units(systemctl, clock)
        self._kernel_log = KernelLog(constants.kmsg, clock, apart=self._proc.is_apart)
        self._unit_states = UnitStates(systemctl, clock)
        self._unit_states_thread = self._thread(
            CollectorName.UNIT_STATES,
            self._unit_states.collect,
            period=UNIT_STATES_PERIOD,
            deadline=UNITS_DEADLINE,
            quiet=True,
        )
        self._node = Node()
        self._confirmed_at = self._next_change = float("-inf")
        """When NVML was last read to confirm a process, and when changed lists of processes may have it read again."""
        self._launches_thread: CollectorThread | None = None
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
                patterns=constants.pipe_directories, proc=constants.procfs, clock=clock, gke_config=constants.gke_config
            )
        self.locations = LocationRegistry(discovery=self.discovery, journal=self.journal)
        self._identities = Identities()

    def pool(self) -> CollectorPool:
        """Return the collector threads of the service."""
        # Imported now, because an upgrade may remove the files before the first query needs them.
        import tenacity  # noqa: F401

        nvml = self._thread(CollectorName.NVML, self.collect_gpus, period=PROCESS_LISTS_PERIOD, due=self._gpus_changed)
        shared: Mapping[str, Any] = {
            "inbox": self._inbox,
            "clock": self._clock,
            "deadline": self._config.constants.collect_deadline,
        }
        pool = CollectorPool(
            (nvml, *self._threads()),
            locate=self._locate,
            poller=self._control_poller,
            collector=lambda each: LogCollector(CollectorName.LOGS, each, changes=self._changes, **shared),
            directory=lambda each: DirectoryCollector(CollectorName.PIPE_DIRECTORY, self.directory(each), **shared),
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

    def _gpus_changed(self) -> bool:
        now = self._clock.now()
        if poll_schedule.is_confirmation_due(self._node, now, self._confirmed_at):
            self._confirmed_at = now
            return True
        if now < self._next_change or not may_bypass(self._node, self.nvml.changed_processes()):
            return False
        self._next_change = now + self._config.constants.intervals.stale
        return True

    def collect_gpus(self) -> Reading:
        """Read NVML."""
        return self.explained(self.nvml.collect())

    def explained(self, reading: Reading) -> Reading:
        """Return a reading. If the node has GPUs but the exporter's container got none, this is its problem.

        On GKE it is none: there only pods that take a share from the scheduler, or are privileged, get GPUs.
        """
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
        if reading.problem.code is ReasonCode.DRIVER_NOT_OPEN:
            return reading
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
        period = self._config.constants.discovery_period
        yield self._thread(CollectorName.PROCESS, self.processes.collect, period=CONTINUOUS, quiet=True)
        if self.discovery is not None:
            yield self._thread(CollectorName.DISCOVERY, self.discovery.collect, period=period)
            yield self._thread(CollectorName.UNITS, self.units.collect, period=UNITS_PERIOD, deadline=UNITS_DEADLINE)
        yield self._unit_states_thread
        yield self._address_ranges_thread
        if self._journal_thread is not None:
            yield self._journal_thread
        xids = self.nvml.xid_events
        yield self._thread(
            CollectorName.NVML_EVENTS, lambda: self.explained(xids.collect()), period=CONTINUOUS, quiet=True
        )
        if self._libcuda_probes is not None:
            self._launches_thread = self._thread(
                CollectorName.LIBCUDA_PROBES, self._libcuda_probes.collect, period=LIBCUDA_PROBES_PERIOD
            )
            yield self._launches_thread
        problem = self._kernel_log.open()
        if problem is None:
            yield self._thread(CollectorName.KERNEL, self._kernel_log.collect, period=CONTINUOUS, quiet=True)
        else:
            logger().info(
                "kernel_log_not_followed", problem=problem.code.value, text=reason_text(problem, CollectorName.KERNEL)
            )
        yield self._thread(CollectorName.PODS, _without_problem(self.pods.collect), period=period)
        if self.pod_labels is not None:
            yield self._thread(CollectorName.POD_LABELS, self.pod_labels.collect, period=period)

    def _locate(self, daemons: Mapping[str, Daemon]) -> Mapping[str, DaemonLocation]:
        locations = self.locations.locate(daemons)
        self._identities.order = tuple(self.locations.all)
        if self.journal is not None and self._journal_thread is not None and self.journal.awaits_collection:
            self._journal_thread.trigger()
        return locations

    def _request(self, node: Node, pool: CollectorPool) -> None:
        wanted = poll_schedule.readings_wanted(node)
        self.processes.watch(poll_schedule.processes_wanted(node), wanted.states, poll_schedule.start_ticks(node))
        pool.want(wanted)
        self.pods.watch(unnamed_pods(node))
        if self.pod_labels is not None:
            self.pod_labels.watch(unlabelled_pods(node))
        before, self._node = self._node, node
        if self._libcuda_probes is not None and self._launches_thread is not None:
            sign_at = incidents.last_sign_at(node)
            self._libcuda_probes.watch(*processes_to_watch(node), sign_at)
            if sign_at > incidents.last_sign_at(before):
                self._launches_thread.trigger()
        new_fault = fault_address.last_fault_at(node) > fault_address.last_fault_at(before)
        if new_fault or node.processes is not before.processes:
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
        from exporter.libcuda_probes.handles import Handles
        from exporter.libcuda_probes.libraries import CUDA_MACHINES, Libraries, holder_of
        from exporter.libcuda_probes.readable import ReadableNames, demangle_command
        from exporter.libcuda_probes.recorder import KernelRecorder

        handles = Handles(self._proc.start_ticks, lambda pid: holder_of(self._proc, pid))
        return LibcudaCollector(
            uses=self.nvml.uses.read,
            gpus=self.nvml.uses.gpus,
            libraries=Libraries(self._proc, self._clock, CUDA_MACHINES.get(os.uname().machine, Machine.X86_64)),
            proc=self._proc,
            clock=self._clock,
            boot_ns=boot_ns,
            recorder=KernelRecorder(handles, ReadableNames(self._clock, demangle_command()).names),
        )

    def _thread(
        self, name: str, collect: Collect, *, deadline: float | None = None, quiet: bool = False, **others: Any
    ) -> CollectorThread:
        """Return a collector's thread; a `quiet` one reports only some of the collections that find nothing new."""
        return CollectorThread(
            name,
            collect,
            deadline=self._config.constants.collect_deadline if deadline is None else deadline,
            inbox=self._inbox,
            clock=self._clock,
            report_interval=UNCHANGED_PERIOD if quiet else 0.0,
            **others,
        )


def _location(daemon: str, node: Node) -> DaemonLocation:
    """Return where the watchdog acts: only a configured daemon has actions, and its directories are on this host."""
    known = node.daemons[daemon]
    location = on_host(daemon, Path(known.pipe_directory), Path(known.log_directory))
    return replace(location, expected=known.declared.expected, owner=known.declared.owner)


def _without_problem(collect: Collect) -> Collect:
    """Wrap a collector that is optional, so that its failures are not problems."""
    return lambda: replace(collect(), problem=None)


MAX_ROUNDS = 4
"""Rounds of queries to a daemon. Each reply can lead to another query: servers, their states, their clients."""

DISCOVERY_ROUNDS = 2
"""`Discovery` reports a daemon without a pid file only if it finds the daemon twice."""

MOST_SECONDS = 20.0
"""After this time no collection begins, so that several that hang do not add up. What was not collected is reported."""


class OneShot:
    """Runs one kind of collector after the other, and reduces what they return into `node`."""

    def __init__(self, node: Node, clock: Clock, *, deadline: float, wait: Callable[[float], object]) -> None:
        """Abandon a collection after `deadline` seconds; `wait` sleeps."""
        self.node = node
        self._clock = clock
        self._deadline = deadline
        self._ends = clock.monotonic() + MOST_SECONDS
        self._wait = wait
        self._probed: set[str] = set()
        """The daemons that gave no answer, and were asked again after a while."""
        self.directories: Mapping[str, DaemonDirectory] = {}

    def collect(self, name: str, collect: Callable[[], Reading], daemon: str | None = None) -> None:
        """Run one collector. `daemon` is the daemon that it is for, if each daemon has one."""
        self.collect_each(name, {daemon or "": collect})

    def collect_each(self, name: str, collectors: Mapping[str, Callable[[], Reading]]) -> None:
        """Run the collectors of these daemons at the same time."""
        began = self._clock.monotonic()
        if self.seconds_left > 0:
            readings = collect_each(min(self._deadline, self.seconds_left), collectors)
        else:
            readings = dict.fromkeys(collectors, Reading(problem=Reason(ReasonCode.NOT_TRIED, seconds=MOST_SECONDS)))
        for daemon, reading in readings.items():
            collected = SourceReading(
                at=self._clock.now(),
                name=name,
                seconds=self._clock.monotonic() - began,
                problem=reading.problem,
                daemon=daemon or None,
            )
            for observation in (*reading.observations, collected):
                self.node, _ = reduce(self.node, observation)

    @property
    def seconds_left(self) -> float:
        """How long collections may still begin."""
        return self._ends - self._clock.monotonic()

    def collect_processes(self, processes: Processes) -> None:
        """Read the pipe directories, and the processes that the node refers to."""
        wanted = poll_schedule.readings_wanted(self.node)
        for directory in self.directories.values():
            directory.wanted = wanted
        self.collect_each(
            CollectorName.PIPE_DIRECTORY, {name: directory.collect for name, directory in self.directories.items()}
        )
        processes.watch(poll_schedule.processes_wanted(self.node), wanted.states, poll_schedule.start_ticks(self.node))
        self.collect(CollectorName.PROCESS, processes.collect)

    def query_all(self, clients: Sequence[ControlClient], processes: Processes) -> None:
        """Query the daemons until no reply leads to another query."""
        for _ in range(MAX_ROUNDS):
            self.collect_processes(processes)
            due = [(each, poll_schedule.commands(self.node, each.daemon, PollIntervals())) for each in clients]
            self.query_each((client, commands) for client, commands in due if commands)
        # One query without a reply, or one refusal, proves nothing. A second one does.
        fresh = [client for client in clients if client.daemon not in self._probed]
        refused = [each for each in fresh if self.node.daemons[each.daemon].commands.refused_since is not None]
        unanswered = [each for each in fresh if self.node.daemons[each.daemon].commands.unanswered_since is not None]
        silent = dict.fromkeys((*refused, *unanswered))
        if silent:
            self._probed.update(client.daemon for client in silent)
            self._wait(HELD_AFTER_SECONDS if refused else SECOND_PROBE_SECONDS)
            daemons = self.node.daemons
            self.query_each((client, (poll_schedule.probe(daemons[client.daemon]),)) for client in silent)
            self.collect_processes(processes)

    def query_each(self, queries: Iterable[tuple[ControlClient, tuple[str, ...]]]) -> None:
        """Query daemons at the same time: those that hang take no time of the others."""
        collectors: dict[str, Callable[[], Reading]] = {}
        for client, commands in queries:
            client.request_from(self.node.daemons[client.daemon], commands)
            collectors[client.daemon] = client.collect
        self.collect_each(CollectorName.CONTROL, collectors)

    def read_log_tails(self, locations: Mapping[str, DaemonLocation], journal: Journal | None) -> None:
        """Read the last lines of the logs: what they report happened before this collection."""
        tails: dict[str, list[tuple[str, str]]] = {}

        def read(name: str) -> Reading:
            unit = self.node.daemons[name].runtime.journal
            if unit is None or journal is None:
                tails[name] = list(read_tail(locations[name]))
                return Reading()
            state, lines = journal.journal_of(name, unit).tail()
            tails[name] = [(state.file, line) for line in lines]
            return Reading((state,), state.problem)

        self.collect_each(CollectorName.LOGS, {name: partial(read, name) for name in locations})
        for name, lines in tails.items():
            self.node = with_log_tail(self.node, name, lines)


def collect_once(config: Config) -> Node:
    """Collect once with the collectors that the configuration requires."""
    clock, wait = SystemClock(), threading.Event().wait
    with contextlib.closing(Assembly(config, clock, Inbox(), process_wait=0.0)) as assembly:
        one_shot = OneShot(header_of(config).node(), clock, deadline=assembly.control_deadline, wait=wait)
        if assembly.discovery is not None:
            for _ in range(DISCOVERY_ROUNDS):
                one_shot.collect(CollectorName.DISCOVERY, assembly.discovery.collect)
            one_shot.collect(CollectorName.UNITS, assembly.units.collect)
        locations = assembly.locations.locate(one_shot.node.daemons)
        one_shot.directories = {name: assembly.directory(each) for name, each in assembly.locations.all.items()}
        clients = [assembly.control_client(location) for location in locations.values()]
        logs = {name: DaemonLogs(location, clock) for name, location in locations.items() if location.logs}
        one_shot.collect_each(CollectorName.LOGS, {name: each.collect for name, each in logs.items()})
        one_shot.collect_processes(assembly.processes)
        one_shot.query_all(clients, assembly.processes)
        one_shot.collect(CollectorName.NVML, assembly.collect_gpus)
        # The limits that daemons are asked for depend on the GPUs.
        one_shot.query_all(clients, assembly.processes)
        one_shot.read_log_tails(locations, assembly.journal)
        one_shot.collect_processes(assembly.processes)
        one_shot.node = without_reused_pids(one_shot.node)
        assembly.pods.watch(unnamed_pods(one_shot.node))
        for observation in assembly.pods.collect().observations:
            one_shot.node, _ = reduce(one_shot.node, observation)
        # A process bypasses MPS if a later list of clients does not contain it either.
        bypassing = any(gpu.bypassing_processes for gpu in one_shot.node.gpus.values())
        if bypassing and one_shot.seconds_left > BYPASSING_AFTER_SECONDS:
            daemons = [(client, one_shot.node.daemons[client.daemon]) for client in clients]
            one_shot.query_each((client, (each.dialect.list_servers,)) for client, each in daemons if each.supported)
            wait(BYPASSING_AFTER_SECONDS)
            one_shot.collect(CollectorName.NVML, assembly.collect_gpus)
        return one_shot.node
