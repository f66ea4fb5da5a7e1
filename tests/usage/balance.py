"""Invariants of the usage totals, for any postings in any order."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, astuple, fields

from exporter.model.identity import Workload
from exporter.model.usage import GpuUsage, SharedAccount, Usage, UsageKey, UsageTotals
from exporter.usage import accounting

Sum = tuple[str, ...]


def assert_balanced(totals: UsageTotals) -> None:
    """The parts add up to the total, in integers, and the number of accounts is bounded."""
    for usage in totals.gpus.values():
        assert whole(usage.by_account.values()) == usage.total
        numbers = [n for used in usage.by_account.values() for n in astuple(used)]
        assert all(type(n) is int and n >= 0 for n in (*numbers, *usage.memory_byte_ms.values()))
        owners = {account for account, _ in usage.by_account} | usage.memory_byte_ms.keys()
        assert {each for each in owners if isinstance(each, Workload)} <= totals.last_used_at.keys()
    assert len(totals.last_used_at) <= accounting.MAX_ACCOUNTS


def whole(used: Iterable[Usage]) -> Usage:
    parts = tuple(used)
    return Usage(**{each.name: sum(getattr(part, each.name) for part in parts) for each in fields(Usage)})


def assert_only_grown(before: UsageTotals, after: UsageTotals) -> None:
    """No sum has decreased, except that of a closed account, which has moved to CLOSED."""
    for gpu, usage in before.gpus.items():
        now = after.gpus[gpu]
        assert all(new >= old for new, old in zip(astuple(now.total), astuple(usage.total), strict=True))
        assert sum(now.memory_byte_ms.values()) >= sum(usage.memory_byte_ms.values())
        closed = before.last_used_at.keys() - after.last_used_at.keys()
        then, later = Counter(dict(_sums(usage))), Counter(dict(_sums(now)))
        fallen = {key for key, amount in then.items() if later[key] < amount}
        assert all(account in closed or was_reopened(before, after, account) for (account, _), _ in fallen)
        assert not any(isinstance(account, SharedAccount) for (account, _), _ in fallen)


def was_reopened(before: UsageTotals, after: UsageTotals, account: object) -> bool:
    """Return whether an account was closed and opened again in between."""
    gone = Counter(dict(_closed(before)))
    return account in after.last_used_at and any(amount > gone[key] for key, amount in _closed(after))


def _closed(totals: UsageTotals) -> Iterator[tuple[Sum, int]]:
    for gpu, usage in totals.gpus.items():
        for (account, method), used in usage.by_account.items():
            if account is SharedAccount.CLOSED:
                yield from (((gpu, method or "", name), amount) for name, amount in asdict(used).items())
        yield (gpu, "", "memory"), usage.memory_byte_ms.get(SharedAccount.CLOSED, 0)


def _sums(usage: GpuUsage) -> Iterator[tuple[tuple[UsageKey, str], int]]:
    for key, used in usage.by_account.items():
        yield from (((key, name), amount) for name, amount in asdict(used).items())
    for account, held in usage.memory_byte_ms.items():
        yield ((account, None), "memory"), held
