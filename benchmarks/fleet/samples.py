"""What a simulated node exposes at a time: modelled families by the truth, all others as the demo's node shows them."""

from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import chain, product

from benchmarks.fleet.model import (
    BUSY_WATTS,
    DAEMONS,
    GPUS,
    HALF,
    IDLE_WATTS,
    SERIES_END_AFTER,
    SERVER,
    SERVER_BYTES,
    UNATTRIBUTED,
    UNATTRIBUTED_SM,
    Account,
    Client,
    Fault,
    Node,
    Workload,
)
from exporter.demo.scenario import initial_node
from exporter.demo.simulation import Simulation, advance
from exporter.metrics.catalogue import NodeCollector
from tests.clocks import HandClock
from tests.dashboards.history import escaped, view_of
from tests.simulated import ACTING

GPU_BYTES = 141 << 30
INCIDENT_SHOWN = 3600.0
DEMO_SECONDS = 900.0
SLOTS = 16
CONTENTION = 0.05

Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """A series without the labels of its target, and its labels as text."""

    name: str
    labels: Labels
    text: str = field(init=False)

    def __post_init__(self) -> None:
        text = ",".join(f'{name}="{escaped(value)}"' for name, value in self.labels.items())
        object.__setattr__(self, "text", text)


Sample = tuple[Series, float]


@cache
def demo() -> Sequence[tuple[str, Labels, float]]:
    """Return the samples of the demo's node after some minutes."""
    simulation = Simulation(2, HandClock(DEMO_SECONDS), calm=True, past=DEMO_SECONDS, probes=True)
    nodes = advance(replace(initial_node(), simulated=True), simulation, ACTING)
    [node] = deque((node for node, _ in nodes), maxlen=1)
    return [
        (sample.name, sample.labels, float(sample.value))
        for family in NodeCollector(view_of(node)).collect()
        for sample in family.samples
    ]


MODELLED = frozenset(
    {
        *("cuda_mps_workload_info", "cuda_mps_pod_labels", "cuda_mps_workload_clients"),
        *("cuda_mps_workload_sm_seconds_total", "cuda_mps_workload_energy_joules_total"),
        *("cuda_mps_workload_memory_byte_seconds_total", "cuda_mps_workload_memory_used_bytes"),
        *("cuda_mps_workload_active_thread_ratio", "cuda_mps_workload_pinned_memory_limit_bytes"),
        *("cuda_mps_workload_clients_connected_total", "cuda_mps_workload_faults_affected_total"),
        *("cuda_mps_workload_faults_suspected_total", "cuda_mps_workload_faulted_clients_total"),
        *("cuda_mps_gpu_sm_seconds_total", "cuda_mps_gpu_accounted_energy_joules_total"),
        *("cuda_mps_gpu_memory_used_bytes", "cuda_mps_gpu_memory_total_bytes", "cuda_mps_gpu_clients_fit"),
        "cuda_mps_bypassing_processes",
        *("cuda_mps_faults_total", "cuda_mps_fault_info", "cuda_mps_fault_affected_clients_total"),
        *("cuda_mps_fault_last_affected_clients", "cuda_mps_fault_last_affected_workload_clients"),
        *("cuda_mps_fault_last_timestamp_seconds", "cuda_mps_incident_timestamp_seconds"),
        *("cuda_mps_clients_refused_total", "cuda_mps_daemon_losses_total", "cuda_mps_clients_connected_total"),
        *("cuda_mps_daemon_last_loss_timestamp_seconds", "cuda_mps_daemon_clients"),
        *("cuda_mps_workload_contention_seconds_total", "cuda_mps_workload_contention_caused_seconds_total"),
        *("cuda_mps_exporter_snapshot_timestamp_seconds", "cuda_mps_client_info", "cuda_mps_client_memory_used_bytes"),
    }
)


class Exposed:
    """The samples of a node, or only those of some families. Series are the same objects each time."""

    def __init__(self, node: Node, number: int, families: Collection[str] = ()) -> None:
        self.node, self._families = node, families
        self.gpus = [f"GPU-{number:08x}-{gpu:04x}-4000-8000-000000000000" for gpu in range(GPUS)]
        self._series: dict[tuple[str, ...], Series] = {}
        self._template = _Template(self.gpus)
        self._static = [sample for sample in self._template.of_node() if not families or sample[0].name in families]
        self._of_client: dict[Client, Sequence[Sample]] = {}

    def samples(self, at: float) -> Iterator[Sample]:
        """Yield the samples at a time: nothing while the exporter is down."""
        if not self.node.is_up(at):
            return
        yield from self._static
        parts = (self._usage(at), self._counts(at), self._gpus(at), self._daemons(at), self._clients(at))
        for sample in chain.from_iterable(parts):
            if not self._families or sample[0].name in self._families:
                yield sample

    def _clients(self, at: float) -> Iterator[Sample]:
        for client in self._connected(at):
            if client not in self._of_client:
                self._of_client[client] = list(self._template.of_client(client, self.gpus[client.gpu]))
            yield from self._of_client[client]

    def series(self, name: str, **labels: str) -> Series:
        """Return a series, always the same object."""
        key = (name, *labels.values())
        found = self._series.get(key)
        if found is None:
            found = self._series[key] = Series(name, labels)
        return found

    def _connected(self, at: float) -> list[Client]:
        return [client for client in self.node.clients if client.began <= at < client.ended]

    def _shown(self, at: float) -> list[Account]:
        return [
            account for account in self.node.accounts if account.began <= at < account.used_until + SERIES_END_AFTER
        ]

    def _usage(self, at: float) -> Iterator[Sample]:
        """Yield what is stored on the node's disk: the use of each workload."""
        node, since = self.node, self.node.counts_since(at, stored=True)
        whole = node.watched(since, at)
        for uuid in self.gpus:
            yield self._of_workload("sm_seconds_total", UNATTRIBUTED, gpu=uuid, method=""), UNATTRIBUTED_SM * whole
            yield self._of_workload("energy_joules_total", UNATTRIBUTED, gpu=uuid, method=""), IDLE_WATTS * whole
            yield self._of_workload("memory_byte_seconds_total", SERVER, gpu=uuid), SERVER_BYTES * whole
        for shared in (UNATTRIBUTED, SERVER):
            yield self.series("cuda_mps_workload_info", **shared.labels), 1
        for account in self._shown(at):
            used: dict[int, tuple[float, float]] = {}
            for client in account.clients:
                if client.began < at and client.ended > since:
                    seconds = node.watched(max(since, client.began), min(at, client.ended))
                    sm, memory = used.get(client.gpu, (0.0, 0.0))
                    used[client.gpu] = sm + client.sm * seconds, memory + client.memory * seconds
            if not used:
                continue
            workload = account.workload
            yield self.series("cuda_mps_workload_info", **workload.labels), 1
            if workload.kind == "pod":
                yield self._pod_labels(account), 1
            for gpu, (sm, memory) in used.items():
                uuid = self.gpus[gpu]
                yield self._of_workload("sm_seconds_total", workload, gpu=uuid, method="measured"), sm
                yield self._of_workload("energy_joules_total", workload, gpu=uuid, method="measured"), BUSY_WATTS * sm
                yield self._of_workload("memory_byte_seconds_total", workload, gpu=uuid), memory
                for contention in ("contention_seconds_total", "contention_caused_seconds_total"):
                    yield self._of_workload(contention, workload, gpu=uuid), CONTENTION * sm

    def _pod_labels(self, account: Account) -> Series:
        pod = account.workload
        return self.series(
            "cuda_mps_pod_labels",
            workload=pod.name,
            client_pod_uid=pod.name,
            client_pod=pod.pod,
            client_namespace=pod.namespace,
            label_team=pod.team,
        )

    def _of_workload(self, family: str, workload: Workload, **labels: str) -> Series:
        named = {"workload_kind": workload.kind, "workload": workload.name}
        return self.series(f"cuda_mps_workload_{family}", **named, **labels)

    def _counts(self, at: float) -> Iterator[Sample]:
        """Yield what the exporter counts in memory, and what is so now, by workload."""
        since = self.node.counts_since(at, stored=False)
        over = [fault for fault in self.node.faults if since < fault.over <= at]
        for account in self._shown(at):
            workload = account.workload
            connected = sum(client.began <= at and client.ended > since for client in account.clients)
            suffered = [fault for fault in over if any(each.workload == workload for each in fault.affected)]
            caused = [
                fault
                for fault in over
                if fault.suspect is not None
                and fault.suspect.workload == workload
                and fault.confidence in ("high", "medium")
            ]
            if connected or suffered or caused:
                yield self._of_workload("clients_connected_total", workload), connected
                yield self._of_workload("faults_affected_total", workload), len(suffered)
                yield self._of_workload("faults_suspected_total", workload), len(caused)
            faulted: Counter[tuple[str, str]] = Counter()
            for fault in suffered:
                clients = sum(each.workload == workload for each in fault.affected)
                faulted[_suspect_of(fault), fault.confidence] += clients
            for (suspect, confidence), count in faulted.items():
                labels = {"suspect_workload": suspect, "confidence": confidence}
                yield self._of_workload("faulted_clients_total", workload, **labels), count
        yield from self._current(at)

    def _current(self, at: float) -> Iterator[Sample]:
        """Yield what a workload has now: its clients, their memory and their limits."""
        here: dict[tuple[Workload, int], list[Client]] = {}
        clients: Counter[tuple[Workload, int]] = Counter()
        for client in self._connected(at):
            here.setdefault((client.workload, client.gpu), []).append(client)
            clients[client.workload, client.gpu // HALF] += 1
        for (workload, half), count in clients.items():
            yield self._of_workload("clients", workload, daemon=DAEMONS[half]), count
        for (workload, gpu), of_gpu in here.items():
            values = {
                "memory_used_bytes": sum(each.memory for each in of_gpu),
                "active_thread_ratio": sum(each.threads for each in of_gpu),
                "pinned_memory_limit_bytes": sum(each.memory_limit for each in of_gpu),
            }
            for family, value in values.items():
                yield self._of_workload(family, workload, gpu=self.gpus[gpu]), value

    def _gpus(self, at: float) -> Iterator[Sample]:
        node, since = self.node, self.node.counts_since(at, stored=True)
        whole = node.watched(since, at)
        sm = [UNATTRIBUTED_SM * whole] * GPUS
        memory, count = [SERVER_BYTES] * GPUS, [0] * GPUS
        for client in node.clients:
            if client.began < at and client.ended > since:
                sm[client.gpu] += client.sm * node.watched(max(since, client.began), min(at, client.ended))
            if client.began <= at < client.ended:
                memory[client.gpu] += client.memory
                count[client.gpu] += 1
        for gpu, uuid in enumerate(self.gpus):
            energy = IDLE_WATTS * whole + BUSY_WATTS * (sm[gpu] - UNATTRIBUTED_SM * whole)
            yield self.series("cuda_mps_gpu_sm_seconds_total", gpu=uuid), sm[gpu]
            yield self.series("cuda_mps_gpu_accounted_energy_joules_total", gpu=uuid), energy
            yield self.series("cuda_mps_gpu_memory_used_bytes", gpu=uuid), memory[gpu]
            yield self.series("cuda_mps_gpu_memory_total_bytes", gpu=uuid), GPU_BYTES
            room = {
                "memory": (GPU_BYTES - memory[gpu]) * max(1, count[gpu]) // memory[gpu],
                "slots": SLOTS - count[gpu],
            }
            for bound, fit in room.items():
                yield self.series("cuda_mps_gpu_clients_fit", gpu=uuid, bound=bound), fit
            bypassing = sum(each.gpu == gpu and each.began <= at < each.ended for each in node.bypasses)
            yield self.series("cuda_mps_bypassing_processes", daemon=DAEMONS[gpu // HALF], gpu=uuid), bypassing

    def _daemons(self, at: float) -> Iterator[Sample]:
        node, since = self.node, self.node.counts_since(at, stored=False)
        for half, daemon in enumerate(DAEMONS):
            here = [each for each in node.faults if since < each.at <= at and each.gpu // HALF == half]
            deaths = [time for time, each in node.deaths if since < time <= at and each == half]
            refused = sum(since < time <= at and each == half for time, each in node.refusals)
            of_daemon = [client for client in node.clients if client.gpu // HALF == half]
            connected = [client for client in of_daemon if client.began <= at < client.ended]
            yield self.series("cuda_mps_faults_total", daemon=daemon), len(here)
            affected = sum(len(each.affected) for each in here)
            yield self.series("cuda_mps_fault_affected_clients_total", daemon=daemon), affected
            for reason in ("limit", "fault", "other"):
                count = refused if reason == "limit" else 0
                yield self.series("cuda_mps_clients_refused_total", daemon=daemon, reason=reason), count
            for reason in ("died", "replaced"):
                count = len(deaths) if reason == "died" else 0
                yield self.series("cuda_mps_daemon_losses_total", daemon=daemon, reason=reason), count
            if deaths:
                yield self.series("cuda_mps_daemon_last_loss_timestamp_seconds", daemon=daemon), deaths[-1]
            yield self.series("cuda_mps_daemon_clients", daemon=daemon), len(connected)
            came = sum(client.began <= at and client.ended > since for client in of_daemon)
            yield self.series("cuda_mps_clients_connected_total", daemon=daemon), came
            if here:
                yield self.series("cuda_mps_fault_last_timestamp_seconds", daemon=daemon), here[-1].at
                if at < here[-1].over + INCIDENT_SHOWN:
                    yield from self._last_fault(daemon, here[-1])
        yield self.series("cuda_mps_exporter_snapshot_timestamp_seconds"), at

    def _last_fault(self, daemon: str, fault: Fault) -> Iterator[Sample]:
        of = {"daemon": daemon, "incident": f"{fault.gpu}-{int(1000 * fault.at):x}"}
        sure = {"high": "0.90", "medium": "0.60", "low": "0.30", "none": ""}[fault.confidence]
        info = {"kind": "memory", "suspect_workload": _suspect_of(fault), "confidence": sure}
        yield self.series("cuda_mps_fault_info", **of, **info), 1
        yield self.series("cuda_mps_incident_timestamp_seconds", **of), fault.at
        yield self.series("cuda_mps_fault_last_affected_clients", **of), len(fault.affected)
        for workload, count in Counter(each.workload for each in fault.affected).items():
            labels = {**of, "workload_kind": workload.kind, "workload": workload.name}
            yield self.series("cuda_mps_fault_last_affected_workload_clients", **labels), count


def _suspect_of(fault: Fault) -> str:
    return "" if fault.suspect is None else f"{fault.suspect.workload.kind}/{fault.suspect.workload.name}"


class _Template:
    """The other families of the demo's node, for the daemons, servers, GPUs and clients of a simulated one."""

    def __init__(self, gpus: Sequence[str]) -> None:
        self.gpus = gpus
        others = [each for each in demo() if each[0] not in MODELLED]
        # The client with the most families.
        known = Counter(labels["client"] for _, labels, _ in others if "client" in labels)
        client = max(known, key=lambda each: known[each])
        self.of_clients = [each for each in others if each[1].get("client") == client]
        self.client = next(
            labels
            for name, labels, _ in demo()
            if name == "cuda_mps_client_memory_used_bytes" and labels["client"] == client
        )
        self.info = next(
            labels for name, labels, _ in demo() if name == "cuda_mps_client_info" and labels["client"] == client
        )
        daemon, gpu = self.client["daemon"], self.client["gpu"]
        self.others = [
            (name, labels, value)
            for name, labels, value in others
            if "client" not in labels
            and "workload" not in labels
            and labels.get("daemon", daemon) == daemon
            and labels.get("gpu", gpu) == gpu
        ]

    def of_node(self) -> Iterator[Sample]:
        """Yield the samples of the node, its daemons and its GPUs."""
        for name, labels, value in self.others:
            daemons = DAEMONS if "daemon" in labels else (None,)
            gpus = range(GPUS) if "gpu" in labels else (None,)
            for daemon, gpu in product(daemons, gpus):
                if daemon is None or gpu is None or daemon == DAEMONS[gpu // HALF]:
                    yield self._with(name, labels, value, daemon, None if gpu is None else self.gpus[gpu], gpu)

    def _with(
        self, name: str, labels: Labels, value: float, daemon: str | None, uuid: str | None, index: int | None
    ) -> Sample:
        changed = {
            "daemon": daemon,
            "pipe_directory": daemon,
            "gpu": uuid,
            "index": None if index is None else str(index),
        }
        new = {key: changed.get(key) or text for key, text in labels.items()}
        return Series(name, new), value

    def of_client(self, client: Client, gpu: str) -> Iterator[Sample]:
        """Yield the samples of a client."""
        workload = client.workload
        known = {
            "daemon": DAEMONS[client.gpu // HALF],
            "client": f"{client.pid}-{workload.kind[:2]}",
            "gpu": gpu,
            "pid": str(client.pid),
        }
        identity = dict.fromkeys(("job_slot", "task", "uid"), "") | workload.labels
        identity |= {"client_pod_uid": workload.name if workload.kind == "pod" else "", "command": "python3"}
        info = {key: known.get(key, identity.get(key, text)) for key, text in self.info.items()}
        yield Series("cuda_mps_client_info", info), 1
        labels = {key: known[key] for key in ("daemon", "client", "gpu")}
        yield Series("cuda_mps_client_memory_used_bytes", labels), client.memory
        for name, labels_, value in self.of_clients:
            yield Series(name, {key: known.get(key, text) for key, text in labels_.items()}), value
