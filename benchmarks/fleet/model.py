"""A fleet of simulated nodes: which client used what and when, what failed, and so what each owner used in all.

A node has 8 GPUs with 3 clients each, and a daemon for each half of them. Workloads begin and end. Faults and daemon
deaths interrupt their clients. An exporter is sometimes down: it then counts nothing, and its counters in memory begin
at 0 again; some exporters also lose their stored usage. Everything follows from the seed.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

GPUS, CLIENTS_OF_GPU, HALF = 8, 3, 4
DAEMONS = ("/run/nvidia/mps/training/pipe", "/run/nvidia/mps/inference/pipe")
MINUTE, HOUR = 60.0, 3600.0
IDLE_WATTS, BUSY_WATTS = 100.0, 600.0
"""Power of an idle GPU, which is unattributed, and more at full use of its SMs, which belongs to the clients."""

UNATTRIBUTED_SM = 0.01
GIBIBYTE = 1 << 30
SERVER_BYTES = 480 << 20
SERIES_END_AFTER = 20 * MINUTE
CONFIDENCES = ("high", "medium", "low")

Owner = tuple[str, str, str, str, str]
"""Team, namespace, user, kind of workload, application."""

_ALPHABET, _OF_HASHES = "bcdfghjklmnpqrstvwxz2456789", "bcdf456789"
"""The characters of the ends of pods' names, and of the hashes of ReplicaSets before them."""
_NAMES = ("llm-serve", "embed", "rerank-v2", "speech", "vision-api", "recsys", "tune", "whisper-large")


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload as the exporter identifies it, and the application that it belongs to."""

    kind: str
    name: str
    application: str
    namespace: str = ""
    pod: str = ""
    user: str = ""
    unit: str = ""
    team: str = ""

    @property
    def owner(self) -> Owner:
        """Who pays."""
        return self.team, self.namespace, self.user, self.kind, self.application

    @property
    def labels(self) -> dict[str, str]:
        """The labels of its info."""
        return {
            "workload_kind": self.kind,
            "workload": self.name,
            "client_namespace": self.namespace,
            "client_pod": self.pod,
            "client_container": self.name if self.kind == "container" else "",
            "user": self.user,
            "unit": self.unit,
            "job_manager": "slurm" if self.kind == "job" else "",
            "job_id": self.name if self.kind == "job" else "",
            "label_team": self.team,
        }


UNATTRIBUTED, SERVER = (Workload(kind, "", "") for kind in ("unattributed", "mps_server"))


@dataclass(frozen=True, slots=True, eq=False)
class Client:
    """A client on a GPU, while it is connected: its fraction of the SMs, its memory in bytes, and its limits."""

    workload: Workload
    gpu: int
    began: float
    ended: float
    sm: float
    memory: int
    threads: float
    memory_limit: int
    pid: int


@dataclass(frozen=True, slots=True)
class Fault:
    """A fatal error of a GPU, which ends its clients. It is over when the server has recovered."""

    at: float
    over: float
    gpu: int
    affected: tuple[Client, ...] = ()
    suspect: Client | None = None
    confidence: str = "none"


@dataclass(frozen=True, slots=True)
class Period:
    """A time in which something is so. Of an exporter that was down, `lost` says whether it lost its stored usage."""

    began: float
    ended: float
    gpu: int = 0
    lost: bool = False


@dataclass(slots=True, eq=False)
class Account:
    """What a node counts for a workload: from its first client until 20 minutes after its last."""

    workload: Workload
    clients: list[Client] = field(default_factory=list)

    @property
    def began(self) -> float:
        """Return when its series begin."""
        return self.clients[0].began

    @property
    def used_until(self) -> float:
        """Return when the last client ends."""
        return max(client.ended for client in self.clients)


@dataclass
class Node:
    """A node from its first scrape to its last, and all that happens on it."""

    instance: str
    phase: float
    """When it is scraped, in seconds after a full minute."""
    began: float
    ended: float
    clients: list[Client]
    faults: list[Fault]
    deaths: list[tuple[float, int]]  # time, daemon
    refusals: list[tuple[float, int]]
    bypasses: list[Period]
    outages: list[Period]

    @cached_property
    def accounts(self) -> Sequence[Account]:
        """All accounts that there were. A workload that comes back after its account ended gets a new one."""
        found: list[Account] = []
        last: dict[tuple[str, str], Account] = {}
        for client in sorted(self.clients, key=lambda each: each.began):
            key = client.workload.kind, client.workload.name
            account = last.get(key)
            if account is None or client.began > account.used_until + SERIES_END_AFTER:
                account = last[key] = Account(client.workload)
                found.append(account)
            account.clients.append(client)
        return found

    def is_up(self, at: float) -> bool:
        """Return whether its exporter answers."""
        return self.began <= at < self.ended and not any(each.began <= at < each.ended for each in self.outages)

    def scrapes(self, began: float, ended: float) -> list[float]:
        """Return the times from `began` to `ended` at which it is scraped."""
        first = began + (self.phase - began) % MINUTE
        return [first + MINUTE * each for each in range(1 + int((ended - first) // MINUTE))]

    def watched(self, began: float, ended: float) -> float:
        """Return for how many seconds of a time the exporter ran."""
        began, ended = max(began, self.began), min(ended, self.ended)
        missing = sum(max(0.0, min(ended, each.ended) - max(began, each.began)) for each in self.outages)
        return max(0.0, ended - began - missing)

    def counts_since(self, at: float, *, stored: bool) -> float:
        """Return since when a counter counts: of usage, which is stored, or of what is only in memory."""
        restarts = [each.ended for each in self.outages if each.ended <= at and (each.lost or not stored)]
        return max(restarts, default=self.began)


def _sums() -> defaultdict[Any, float]:
    return defaultdict(float)


Use = dict[Owner, float]


@dataclass
class Totals:
    """The truth of a time, by owner or by node. Faulted clients are by owner, suspected owner and confidence."""

    sm_seconds: Use = field(default_factory=_sums)
    memory_byte_seconds: Use = field(default_factory=_sums)
    energy_joules: Use = field(default_factory=_sums)
    client_seconds: Use = field(default_factory=_sums)
    requested_sm_seconds: Use = field(default_factory=_sums)
    faults_suffered: Use = field(default_factory=_sums)
    faults_caused: Use = field(default_factory=_sums)
    faulted_clients: dict[tuple[Owner, Owner | None, str], float] = field(default_factory=_sums)
    client_minutes: dict[tuple[str, str], float] = field(default_factory=_sums)
    """By node and outcome."""
    sm_seconds_of_node: dict[str, float] = field(default_factory=_sums)
    faults: dict[str, float] = field(default_factory=_sums)
    deaths: dict[str, float] = field(default_factory=_sums)


@dataclass
class Fleet:
    """All nodes."""

    nodes: Sequence[Node]

    def totals(self, began: float, ended: float) -> Totals:
        """Return what exporters could count, from each node's last scrape before one time to that before the other."""
        totals = Totals()
        for node in self.nodes:
            _add(totals, node, *(node.scrapes(at - MINUTE, at)[-1] for at in (began, ended)))
        return totals


def _add(totals: Totals, node: Node, began: float, ended: float) -> None:
    whole = node.watched(began, ended)
    totals.sm_seconds[UNATTRIBUTED.owner] += GPUS * UNATTRIBUTED_SM * whole
    totals.energy_joules[UNATTRIBUTED.owner] += GPUS * IDLE_WATTS * whole
    totals.memory_byte_seconds[SERVER.owner] += GPUS * SERVER_BYTES * whole
    totals.sm_seconds_of_node[node.instance] += GPUS * UNATTRIBUTED_SM * whole
    for client in node.clients:
        seconds, owner = node.watched(max(began, client.began), min(ended, client.ended)), client.workload.owner
        totals.sm_seconds[owner] += client.sm * seconds
        totals.sm_seconds_of_node[node.instance] += client.sm * seconds
        totals.energy_joules[owner] += client.sm * BUSY_WATTS * seconds
        totals.memory_byte_seconds[owner] += client.memory * seconds
        totals.client_seconds[owner] += seconds
        totals.requested_sm_seconds[owner] += client.threads * seconds
        totals.client_minutes[node.instance, "served"] += seconds / MINUTE
    for fault in node.faults:
        if began < fault.at <= ended:
            totals.faults[node.instance] += 1
            totals.client_minutes[node.instance, "faulted"] += len(fault.affected)
        if began < fault.over <= ended:
            _add_incident(totals, fault)
    totals.client_minutes[node.instance, "refused"] += sum(began < at <= ended for at, _ in node.refusals)
    totals.deaths[node.instance] += sum(began < at <= ended for at, _ in node.deaths)
    bypassed = (node.watched(max(began, each.began), min(ended, each.ended)) for each in node.bypasses)
    totals.client_minutes[node.instance, "bypassed"] += sum(bypassed) / MINUTE


def _add_incident(totals: Totals, fault: Fault) -> None:
    suspect = None if fault.suspect is None else fault.suspect.workload
    for owner in {client.workload: client.workload.owner for client in fault.affected}.values():
        totals.faults_suffered[owner] += 1
    for client in fault.affected:
        totals.faulted_clients[client.workload.owner, None if suspect is None else suspect.owner, fault.confidence] += 1
    if suspect is not None and fault.confidence in ("high", "medium"):
        totals.faults_caused[suspect.owner] += 1


def simulated(
    count: int, began: float, ended: float, *, seed: int = 1, fault_hours: float = 200.0, churn: bool = True
) -> Fleet:
    """Return a fleet in a time: two nodes share the Slurm jobs. With `churn`, one node is new and one goes away.

    `fault_hours` is the mean time between two faults of a node.
    """
    nodes = []
    for number in range(count):
        first, last = began, ended
        if churn and number == count - 1:
            first = began + (ended - began) / 3
        if churn and number == count - 2:
            last = began + 2 * (ended - began) / 3
        nodes.append(_Maker(number, count, first, last, seed, fault_hours).node())
    return Fleet(nodes)


class _Maker:
    """Makes a node."""

    def __init__(self, number: int, count: int, began: float, ended: float, seed: int, fault_hours: float) -> None:
        self.chance = random.Random(f"{seed} {number}")
        self.jobs = random.Random(f"{seed} jobs {number // 2}")
        self.number, self.count, self.began, self.ended, self.hours = number, count, began, ended, fault_hours
        self.last_pid = 20_000

    def node(self) -> Node:
        outages = [
            Period(at, at + self.chance.uniform(60, 180), lost=self.chance.random() < 0.3) for at in self.times(12)
        ]
        deaths = [(at, self.chance.randrange(2)) for at in self.times(self.hours) if _clear(outages, at)]
        faults: list[Fault] = []
        for at in self.times(self.hours):
            over = at + self.chance.uniform(60, 300)
            alone = not faults or at > faults[-1].over + MINUTE
            watched = _clear(outages, at) and _clear(outages, over)
            if alone and watched and all(abs(at - death) > 900 for death, _ in deaths):
                faults.append(Fault(at, over, self.chance.randrange(GPUS)))
        interruptions = [Period(each.at, each.over + 10, each.gpu) for each in faults]
        interruptions += [
            Period(at, at + 60, gpu) for at, half in deaths for gpu in range(HALF * half, HALF * half + 4)
        ]
        clients = [client for slot in self.slots() for client in self.with_interruptions(slot, interruptions)]
        refusals = [
            (at + 2 * each, self.chance.randrange(2))
            for at in self.times(self.hours / 4)
            for each in range(self.chance.randint(1, 12))
            if _clear(outages, at + 2 * each)
        ]
        bypasses = [
            Period(at, at + self.chance.uniform(20, 90) * MINUTE, self.chance.randrange(GPUS))
            for at in self.times(self.hours)
        ]
        return Node(
            f"node{self.number:04}:10677",
            (3.5 + 7.25 * self.number) % MINUTE,
            self.began,
            self.ended,
            clients,
            [self.with_suspect(each, clients) for each in faults],
            deaths,
            refusals,
            bypasses,
            outages,
        )

    def times(self, hours: float) -> Iterator[float]:
        """Yield random times with a mean distance, not in the first and last minutes."""
        at = self.began + self.chance.expovariate(1 / (hours * HOUR))
        while at < self.ended - 400:
            if at > self.began + 100:
                yield at
            at += self.chance.expovariate(1 / (hours * HOUR))

    def slots(self) -> Iterator[Client]:
        """Yield a client for each GPU of each workload, without faults."""
        for gpu in range(GPUS):
            yield from self.one_after_another((gpu,), self.deployment, 5 * HOUR)
            if gpu % 2 == 0:
                yield from self.one_after_another((gpu,), self.stateful_set, 8 * HOUR)
            elif gpu % 4 == 1:
                yield from self.one_after_another((gpu,), self.short_job, None)
            else:
                yield from self.one_after_another((gpu,), self.deployment, 5 * HOUR)
        if self.number // 2 % 4 == 0:
            yield from self.slurm_jobs((0, 1, 2))
        else:
            for gpu in range(3):
                yield from self.one_after_another((gpu,), self.deployment, 5 * HOUR)
        yield from self.one_after_another((3, 4), self.unit, 6 * HOUR)
        several = self.container if self.number % 20 == 0 else self.deployment
        yield from self.one_after_another((5, 6), several, 3 * HOUR)
        yield from self.one_after_another((7,), self.user, 2 * HOUR)

    def one_after_another(
        self, gpus: Sequence[int], make: Callable[[], Workload], mean: float | None
    ) -> Iterator[Client]:
        """Yield the clients of workloads that follow each other. Without a mean life, they live 2 to 5 minutes."""
        at = self.began - (0.0 if mean is None else self.chance.uniform(0, mean))
        while at < self.ended:
            life = self.chance.uniform(120, 300) if mean is None else max(120.0, self.chance.expovariate(1 / mean))
            workload = make()
            for gpu in gpus:
                yield self.client(workload, gpu, at, at + life)
            at += life + self.chance.uniform(5, 120)

    def slurm_jobs(self, gpus: Sequence[int]) -> Iterator[Client]:
        """Yield the clients of jobs that two nodes share."""
        at, job = self.began - self.jobs.uniform(0, 3 * HOUR), 1_000_000 + 10_000 * (self.number // 2)
        while at < self.ended:
            life, job, user = self.jobs.uniform(0.5, 6) * HOUR, job + 1, f"user{self.jobs.randrange(12)}"
            for gpu in gpus:
                yield self.client(Workload("job", str(job), str(job), user=user), gpu, at, at + life)
            at += life + 60

    def client(self, workload: Workload, gpu: int, began: float, ended: float) -> Client:
        self.last_pid += self.chance.randint(1, 9)
        memory = self.chance.randint(2, 30) * GIBIBYTE
        threads = self.chance.choice((0.25, 0.5, 1.0))
        return Client(
            workload, gpu, began, ended, self.chance.uniform(0.02, 0.3), memory, threads, 40 * GIBIBYTE, self.last_pid
        )

    def with_interruptions(self, client: Client, interruptions: Iterable[Period]) -> Iterator[Client]:
        """Yield the parts of a client's life between interruptions: it is started again, in the same workload."""
        began = client.began
        for each in sorted((each for each in interruptions if each.gpu == client.gpu), key=lambda each: each.began):
            if began < each.began < client.ended:
                yield self._part(client, began, each.began)
            if began < each.ended:
                began = max(began, each.ended) if each.began < client.ended else began
        if began < client.ended:
            yield self._part(client, began, client.ended)

    def _part(self, client: Client, began: float, ended: float) -> Client:
        return self.client(client.workload, client.gpu, began, ended)

    def with_suspect(self, fault: Fault, clients: Iterable[Client]) -> Fault:
        """Return the fault with the clients that it ended, and sometimes with a suspect."""
        affected = tuple(each for each in clients if each.gpu == fault.gpu and each.ended == fault.at)
        if not affected or self.chance.random() < 0.2:
            return Fault(fault.at, fault.over, fault.gpu, affected)
        suspect, confidence = self.chance.choice(affected), self.chance.choice(CONFIDENCES)
        return Fault(fault.at, fault.over, fault.gpu, affected, suspect, confidence)

    # Workloads

    def suffix(self, length: int, alphabet: str = _ALPHABET) -> str:
        return "".join(self.chance.choice(alphabet) for _ in range(length))

    def uid(self) -> str:
        digits = f"{self.chance.getrandbits(128):032x}"
        return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))

    def pod(self, application: str, pod: str, number: int) -> Workload:
        namespace, team = f"ns-{number % (5 + self.count // 25)}", f"team-{number % 7}"
        return Workload("pod", self.uid(), application, namespace, pod, f"app{number % 3}", team=team)

    def deployment(self) -> Workload:
        number = self.chance.randrange(max(8, self.count * 3 // 2))
        application = f"{_NAMES[number % len(_NAMES)]}-{_word(number)}"
        return self.pod(
            application,
            f"{application}-{self.suffix(self.chance.choice((9, 10)), _OF_HASHES)}-{self.suffix(5)}",
            number,
        )

    def stateful_set(self) -> Workload:
        number = self.chance.randrange(max(6, self.count // 3))
        application = f"db-{_word(number)}"
        return self.pod(application, f"{application}-{self.number}", number)

    def short_job(self) -> Workload:
        number = self.chance.randrange(max(4, self.count // 20))
        application = f"batch-{_word(number)}"
        return self.pod(application, f"{application}-{self.suffix(5)}", number)

    def unit(self) -> Workload:
        name = f"service{self.number % 9}.service"
        return Workload("unit", name, name, user="svc", unit=name)

    def container(self) -> Workload:
        name = f"{self.chance.getrandbits(256):064x}"
        return Workload("container", name, name[:12], user=f"user{self.chance.randrange(12)}")

    def user(self) -> Workload:
        name = f"user{self.chance.randrange(3)}"
        return Workload("user", name, name, user=name)


def _clear(outages: Iterable[Period], at: float) -> bool:
    """Whether an exporter runs then, and some minutes before and after."""
    return not any(each.began - 300 <= at <= each.ended + 300 for each in outages)


def _word(number: int) -> str:
    """Return a name without digits for a number."""
    return "".join(chr(ord("a") + int(digit)) for digit in str(number))


def by(counts: Mapping[Owner, float], *parts: int) -> dict[tuple[str, ...], float]:
    """Return sums by parts of the owner, as numbers of its place in the tuple."""
    sums: dict[tuple[str, ...], float] = defaultdict(float)
    for owner, count in counts.items():
        sums[tuple(owner[part] for part in parts)] += count
    return dict(sums)
