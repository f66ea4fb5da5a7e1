"""Accounting: SM time, energy and memory, posted to the workloads that used them.

SM time is posted by `usage.attribution` for each window. Energy and memory are posted at each reading of a GPU, memory
also when a process leaves. Between two readings, memory counts as held as at the first. A process that left held it
until the exporter noticed, and a new one since the exporter first noticed its connection.

The number of workload accounts is bounded. What is in an account that is closed moves to SharedAccount.CLOSED, and a
workload that comes again begins at 0. So no total decreases, and the parts add up to the total.
"""

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import TypeVar

from exporter.model.event import Event, EventName
from exporter.model.identity import Workload
from exporter.model.node import Node
from exporter.model.observation import GpuReading, GpuUuid, Observation, ProcessExit, ProcessReading
from exporter.model.usage import Account, GpuUsage, HeldMemory, Method, SharedAccount, Usage, UsageKey, UsageTotals
from exporter.model.values import replace, without
from exporter.state.gpus import used_bytes
from exporter.state.processes import FORGOTTEN_SECONDS, workload_of

UNATTRIBUTED: UsageKey = (SharedAccount.UNATTRIBUTED, None)

PRECISION = 1 << 40  # Fractions are rounded to multiples of 1 / PRECISION.
MAX_ACCOUNTS = 1024  # Most workloads that have accounts on a node.

MAX_COMMANDS, MAX_COMMAND_LENGTH = 8, 64
"""Of so many commands of a workload, the last ones, the pace on a quiet GPU is remembered. A process chooses its own:
longer ones could fill the state file."""

PACES_SECONDS = 86400.0  # A recurring job finds its paces on a quiet GPU for so long after its last use.
LAST_USED_RESOLUTION_SECONDS = 60.0  # `last_used_at` is updated so often: all of it is copied each time.

LONGEST_GAP_SECONDS = 600.0
"""Twice the longest interval that can be set between two readings. After a longer gap it is unknown what happened in
between: the exporter was stopped, or its machine was suspended."""

Key = TypeVar("Key")
Amount = TypeVar("Amount", int, Usage)


def account(before: Node, node: Node, seen: Observation | None, events: Collection[Event]) -> Node:
    """Post the memory and energy that an observation and its events report; None is the end of a recording."""
    for pid in _left(before, seen, events):
        node = _with_memory_released(before, node, pid, node.at if seen is None else seen.at)
    if isinstance(seen, GpuReading) and seen.problem is None:
        node = _with_energy(before, node, seen)
        node = _with_memory_read(node, seen)
        node = replace(node, usage_totals=close_idle_accounts(node.usage_totals, node.at, node.processes.values()))
    return node


def account_of(node: Node, pid: int, *, at: float | None = None) -> Account:
    """Return the account for what a process did at a time, by default now; a recently ended one is still known.

    A server has an account of its own, whichever clients it serves.
    """
    if any(pid in daemon.servers for daemon in node.daemons.values()):
        return SharedAccount.SERVER
    process, death = node.processes.get(pid), node.deaths.get(pid)
    at = node.at if at is None else at
    if death is not None and death.process is not None and (process is None or process.started > at):
        # The PID belongs to another process now.
        process = death.process
    return workload_of(process) or SharedAccount.UNATTRIBUTED


def key_of(node: Node, pid: int, method: Method, *, at: float) -> UsageKey:
    """Return where to post what a process did at a time, if it was found by a method."""
    account = account_of(node, pid, at=at)
    return UNATTRIBUTED if account is SharedAccount.UNATTRIBUTED else (account, method)


def post_time(
    totals: UsageTotals, gpu: GpuUuid, busy_us: int, parts: Mapping[UsageKey, float], *, at: float
) -> UsageTotals:
    """Post the SM time of a window, in microseconds of the whole GPU, by each account's part; the rest unattributed."""
    totals, posted = _with_accounts(totals, apportioned(busy_us, _weights(parts)), at)
    usage = _with_use(totals, gpu, {key: Usage(sm_us=us) for key, us in posted.items()})
    usage = replace(usage, sm_us_without_energy=_sums(usage.sm_us_without_energy, posted.items()))
    return _with_gpu(totals, gpu, usage)


def post_energy(totals: UsageTotals, gpu: GpuUuid, millijoules: int, *, at: float, known: bool = True) -> UsageTotals:
    """Post energy in proportion to the SM time since the last posting.

    It is unattributed if no process ran, or if it is not `known` which processes ran all that time.
    """
    sm_us = totals.gpus.get(gpu, GpuUsage()).sm_us_without_energy
    weights = sm_us if known and any(sm_us.values()) else {UNATTRIBUTED: 1}
    totals, posted = _with_accounts(totals, apportioned(millijoules, weights), at)
    usage = _with_use(totals, gpu, {key: Usage(energy_mj=mj) for key, mj in posted.items()})
    return _with_gpu(totals, gpu, replace(usage, sm_us_without_energy={}))


def post_use(totals: UsageTotals, gpu: GpuUuid, posted: Mapping[UsageKey, Usage], *, at: float) -> UsageTotals:
    """Post each amount to its account."""
    totals, used = _with_accounts(totals, posted, at)
    return _with_gpu(totals, gpu, _with_use(totals, gpu, used))


def remember_pace(
    totals: UsageTotals, gpu: GpuUuid, account: Account, command: str, pace: tuple[float, ...]
) -> UsageTotals:
    """Remember the pace of a workload's process on a quiet GPU, if the workload has an account."""
    usage = totals.gpus.get(gpu)
    known = {} if usage is None else usage.paces.get(account, {})
    is_new = known.get(command) != pace and len(command) <= MAX_COMMAND_LENGTH
    if usage is None or account not in totals.last_used_at or not is_new:
        return totals
    others = [(name, each) for name, each in known.items() if name != command][1 - MAX_COMMANDS :]
    return _with_gpu(totals, gpu, replace(usage, paces={**usage.paces, account: {**dict(others), command: pace}}))


def remembered_paces(node: Node, gpu: GpuUuid, pids: Collection[int]) -> Mapping[int, tuple[float, ...]]:
    """Return the paces on a quiet GPU of earlier processes like these, as far as they are remembered."""
    paces, found = node.usage_totals.gpus.get(gpu, GpuUsage()).paces, {}
    for pid in pids if paces else ():
        process = node.processes.get(pid)
        if process is not None and (pace := paces.get(account_of(node, pid), {}).get(process.command or "")):
            found[pid] = pace
    return found


def post_memory(totals: UsageTotals, gpu: GpuUuid, held: Mapping[Account, int], *, at: float) -> UsageTotals:
    """Post memory that was held, in bytes times milliseconds."""
    amounts: dict[UsageKey, int] = {(account, None): amount for account, amount in held.items() if amount > 0}
    if not amounts:
        return totals
    totals, posted = _with_accounts(totals, amounts, at)
    usage = totals.gpus.get(gpu, GpuUsage())
    memory = _sums(usage.memory_byte_ms, ((account, amount) for (account, _), amount in posted.items()))
    return _with_gpu(totals, gpu, replace(usage, memory_byte_ms=memory))


def close_idle_accounts(totals: UsageTotals, at: float, present: Iterable[ProcessReading] = ()) -> UsageTotals:
    """Close the accounts of workloads that have used nothing for FORGOTTEN_SECONDS. Drop old paces of closed ones.

    A workload with a `present` process may use a GPU that cannot be read.
    """
    idle = {workload for workload, last_used_at in totals.last_used_at.items() if at - last_used_at > FORGOTTEN_SECONDS}
    if idle:
        idle = idle.difference(map(workload_of, present))
    old = any(at - last_used_at > PACES_SECONDS for last_used_at in totals.closed.values())
    return _closed(totals, idle, at) if idle or old else totals


def apportioned(total: int, weights: Mapping[UsageKey, int]) -> dict[UsageKey, int]:
    """Divide an integer in proportion to weights, none of which is negative, by the largest remainders."""
    weights = {key: weight for key, weight in weights.items() if weight > 0}
    divisor = sum(weights.values())
    if total <= 0 or not divisor:
        return {}
    parts = {key: total * weight // divisor for key, weight in weights.items()}
    by_remainder = sorted(weights, key=lambda key: -(total * weights[key] % divisor))
    for key in by_remainder[: total - sum(parts.values())]:
        parts[key] += 1
    return {key: part for key, part in parts.items() if part}


def _weights(fractions: Mapping[UsageKey, float]) -> dict[UsageKey, int]:
    """Return integer weights for fractions of one; the rest is unattributed.

    NaN counts as 0, and another value outside 0 to 1 as the nearest fraction.
    """
    known = {key: min(max(fraction, 0.0), 1.0) for key, fraction in fractions.items() if not math.isnan(fraction)}
    weights = {key: round(PRECISION * fraction) for key, fraction in known.items()}
    weights[UNATTRIBUTED] = weights.get(UNATTRIBUTED, 0) + max(0, PRECISION - sum(weights.values()))
    return weights


def _sums(before: Mapping[Key, Amount], amounts: Iterable[tuple[Key, Amount]]) -> dict[Key, Amount]:
    sums = dict(before)
    for key, amount in amounts:
        sums[key] = sums[key] + amount if key in sums else amount
    return sums


def _with_use(totals: UsageTotals, gpu: GpuUuid, posted: Mapping[UsageKey, Usage]) -> GpuUsage:
    usage = totals.gpus.get(gpu, GpuUsage())
    return replace(usage, by_account=_sums(usage.by_account, posted.items()), total=sum(posted.values(), usage.total))


def _with_gpu(totals: UsageTotals, gpu: GpuUuid, usage: GpuUsage) -> UsageTotals:
    return replace(totals, gpus={**totals.gpus, gpu: usage})


def _with_accounts(
    totals: UsageTotals, amounts: Mapping[UsageKey, Amount], at: float
) -> tuple[UsageTotals, dict[UsageKey, Amount]]:
    """Open the accounts of these amounts. If there are too many, SharedAccount.OTHERS takes the amount."""
    opened: list[tuple[UsageKey, Amount]] = []
    for (wanted, method), amount in amounts.items():
        totals, account = _with_account(totals, wanted, at)
        opened.append(((account, method), amount))
    return totals, _sums({}, opened)


def _with_account(totals: UsageTotals, wanted: Account, at: float) -> tuple[UsageTotals, Account]:
    if isinstance(wanted, SharedAccount):
        return totals, wanted
    last_used_at = totals.last_used_at.get(wanted)
    if last_used_at is not None and at - last_used_at < LAST_USED_RESOLUTION_SECONDS:
        return totals, wanted
    if last_used_at is None and len(totals.last_used_at) >= MAX_ACCOUNTS:
        return totals, SharedAccount.OTHERS
    opened = {**totals.last_used_at, wanted: at}
    return replace(totals, last_used_at=opened, closed=without(totals.closed, wanted)), wanted


def _closed(totals: UsageTotals, idle: Collection[Workload], at: float) -> UsageTotals:
    """Move what the accounts of idle workloads have to CLOSED; energy for their last SM time will go to OTHERS."""
    last_used_at = {workload: then for workload, then in totals.last_used_at.items() if workload not in idle}
    used_at = {**totals.closed, **{workload: totals.last_used_at[workload] for workload in idle}}
    with_paces = {who for usage in totals.gpus.values() for who in usage.paces}
    kept = (who for who, then in used_at.items() if who in with_paces and at - then <= PACES_SECONDS)
    recent = sorted(kept, key=used_at.__getitem__)
    remembered = {who: used_at[who] for who in recent[-MAX_ACCOUNTS:]}
    closed: dict[Account, Account] = dict.fromkeys(idle, SharedAccount.CLOSED)
    others: dict[Account, Account] = dict.fromkeys(idle, SharedAccount.OTHERS)
    gpus = {}
    for gpu, usage in totals.gpus.items():
        used = (((closed.get(who, who), how), use) for (who, how), use in usage.by_account.items())
        sm_us = (((others.get(who, who), how), us) for (who, how), us in usage.sm_us_without_energy.items())
        memory = ((closed.get(who, who), held) for who, held in usage.memory_byte_ms.items())
        gpus[gpu] = replace(
            usage,
            by_account=_sums({}, used),
            sm_us_without_energy=_sums({}, sm_us),
            memory_byte_ms=_sums({}, memory),
            paces={who: paces for who, paces in usage.paces.items() if who in last_used_at or who in remembered},
        )
    return replace(totals, gpus=gpus, last_used_at=last_used_at, closed=remembered)


def _left(before: Node, seen: Observation | None, events: Iterable[Event]) -> Iterator[int]:
    process = before.processes.get(seen.pid) if isinstance(seen, ProcessReading | ProcessExit) else None
    match seen:
        case ProcessExit() if process is None or process.start_ticks == seen.start_ticks:
            yield seen.pid
        case ProcessReading() if process is not None and process.start_ticks != seen.start_ticks:
            yield seen.pid
    left = EventName.CLIENT_DISCONNECTED
    yield from (event.pid for event in events if event.event is left and event.pid is not None)


def _with_memory_released(before: Node, node: Node, pid: int, at: float) -> Node:
    """Post the memory of a process that left. If a later reading lists it again, it has held it only since then."""
    for gpu, usage in node.usage_totals.gpus.items():
        memory = usage.held_memory.get(pid)
        if memory is not None and memory.bytes:
            held: dict[Account, int] = {}
            _hold(held, _account_of_memory(before, pid, memory), memory.bytes, memory.since, at)
            released = replace(memory, bytes=0, since=at)
            usage = replace(usage, held_memory={**usage.held_memory, pid: released})
            totals = post_memory(_with_gpu(node.usage_totals, gpu, usage), gpu, held, at=node.at)
            node = replace(node, usage_totals=totals)
    return node


def _with_energy(before: Node, node: Node, reading: GpuReading) -> Node:
    """Post a GPU's energy since its last reading; energy before the first reading of this run is unknown."""
    gpu, totals = reading.gpu, node.usage_totals
    usage = totals.gpus.get(gpu, GpuUsage())
    last = before.gpus[gpu].energy if gpu in before.gpus else None
    now = node.gpus[gpu].energy
    if last is None or now is None:
        return replace(node, usage_totals=_with_gpu(totals, gpu, replace(usage, sm_us_without_energy={})))
    used = now.total - last.total
    if used <= 0:
        return node
    in_time = usage.read_at is not None and abs(reading.at - usage.read_at) <= LONGEST_GAP_SECONDS
    return replace(node, usage_totals=post_energy(totals, gpu, used, at=node.at, known=in_time))


def _with_memory_read(node: Node, reading: GpuReading) -> Node:
    """Post the memory that was held until a reading, and remember what is held from then on. Ignore a late reading."""
    gpu, totals = reading.gpu, node.usage_totals
    usage = totals.gpus.get(gpu, GpuUsage())
    if usage.read_at is not None and 0 <= usage.read_at - reading.at <= LONGEST_GAP_SECONDS:
        return node
    if reading.compute_processes is None and reading.mps_processes is None:
        return replace(node, usage_totals=_with_gpu(totals, gpu, replace(usage, read_at=reading.at)))
    held: dict[Account, int] = {}
    for pid, memory in usage.held_memory.items():
        _hold(held, _account_of_memory(node, pid, memory), memory.bytes, memory.since, reading.at)
    now: dict[int, HeldMemory] = {}
    for pid, amount in used_bytes(reading).items():
        process, previous = node.processes.get(pid), usage.held_memory.get(pid)
        ticks = None if process is None else process.start_ticks
        same = previous is not None and previous.bytes > 0 and (ticks is None or previous.start_ticks in (None, ticks))
        if previous is None or not same:
            since = _held_since(node, pid, usage, reading.at)
            previous = HeldMemory(bytes=0, since=since, account=account_of(node, pid))
            _hold(held, previous.account, amount, previous.since, reading.at)
        now[pid] = HeldMemory(
            bytes=max(0, amount),
            since=reading.at,
            account=_account_of_memory(node, pid, previous),
            start_ticks=ticks or previous.start_ticks,
        )
    totals = _with_gpu(totals, gpu, replace(usage, held_memory=now, read_at=reading.at))
    return replace(node, usage_totals=post_memory(totals, gpu, held, at=node.at))


def _hold(held: dict[Account, int], account: Account, amount: int, since: float, until: float) -> None:
    """Add memory that was held for a time. After a long gap, or if the clock was set, the time is unknown."""
    if 0.0 < until - since <= LONGEST_GAP_SECONDS:
        held[account] = held.get(account, 0) + max(0, amount) * (int(1000 * until) - int(1000 * since))


def _held_since(node: Node, pid: int, usage: GpuUsage, at: float) -> float:
    """Return since when a new process holds memory: since it connected, if that is after the last reading."""
    connected = (daemon.clients[pid].connected_at for daemon in node.daemons.values() if pid in daemon.clients)
    left = usage.held_memory.get(pid)
    earliest = (usage.read_at, None if left is None else left.since)
    return max(min(connected, default=at), *(since for since in earliest if since is not None), -math.inf)


def _account_of_memory(node: Node, pid: int, memory: HeldMemory) -> Account:
    """Return the account of held memory. Once known it stays so, also for a server that its daemon has removed."""
    return account_of(node, pid) if memory.account is SharedAccount.UNATTRIBUTED else memory.account


def workloads(node: Node) -> Mapping[int, Workload]:
    """Return the known workloads of the connected clients, by PID."""
    reported = (daemon for daemon in node.daemons.values() if daemon.is_reported(node.at))
    by_pid = ((pid, workload_of(node.processes.get(pid))) for daemon in reported for pid in daemon.clients)
    return {pid: workload for pid, workload in by_pid if workload is not None}


def memory_by_workload(node: Node) -> Mapping[GpuUuid, Mapping[Workload, int]]:
    """Return the bytes that the clients of each workload use on each GPU."""
    owners, by_gpu = workloads(node), dict[GpuUuid, dict[Workload, int]]()
    for uuid, gpu in node.gpus.items():
        held = used_bytes(gpu.reading)
        totals = by_gpu[uuid] = defaultdict(int)
        for pid in owners.keys() & held:
            totals[owners[pid]] += held[pid]
    return by_gpu
