"""One run of the exporter: it watches the timeline from a second on, adds up the usage, and shows it until its kill.

It writes each step into a file, one line each, so that the steps before the kill are known.
"""

import json
import os
import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from exporter.metrics.gpus import USAGE
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Retention
from exporter.model.usage import Account, Method, SharedAccount, UsageTotals
from exporter.reducer import reduce
from exporter.store.database import Refused, StateFile, Storable
from exporter.store.writer import Writer
from exporter.usage.accounting import account_of, post_time
from exporter.view import View
from tests.builders import AT, GPU, node
from tests.clocks import HandClock
from tests.kills.gpu_timeline import GpuTimeline

TURN_SECONDS = 0.001
"""How long a second of the timeline takes here, in addition to the work for it."""


class StepLog:
    """The file of a run's steps."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **details: Any) -> None:
        """Write one line. A kill may leave a part of it."""
        os.write(self._file, (json.dumps({"what": what, **details}) + "\n").encode())


class LoggedStateFile(StateFile):
    """A state file that logs its writes."""

    def __init__(self, directory: Path, clock: HandClock, steps: StepLog) -> None:
        super().__init__(directory, Retention(), clock)
        self._steps = steps

    def write(
        self, values: Iterable[Storable] = (), totals: UsageTotals | None = None, *, expected: Collection[str] = ()
    ) -> Refused:
        """Write, and log it."""
        self._steps.write("writes")
        refused = super().write(values, totals, expected=expected)
        self._steps.write("written", sums=sums(UsageTotals() if totals is None else totals))
        return refused


def steps_of(log: Path) -> list[Mapping[str, Any]]:
    """Return the steps of a run until its kill."""
    text = log.read_text() if log.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def run_exporter(timeline: GpuTimeline, begin: int, directory: Path, steps: StepLog, *, end: int) -> None:
    """Run from a second of the timeline to another, and exit cleanly."""
    clock = HandClock(AT + begin)
    writer = Writer(LoggedStateFile(directory, clock, steps), clock)
    present = writer.open().restore(node())
    steps.write("begins", sums=sums(present.usage_totals), shown=shown(present, writer))
    present = _reduced(present, timeline.first(begin))
    writer.add(present, ())
    for second in range(begin + 1, end + 1):
        clock.time = AT + second
        present = _posted(_reduced(present, timeline.next(second)), timeline, second)
        steps.write("posts", second=second)
        writer.add(present, ())
        steps.write("shows", shown=shown(present, writer))
        time.sleep(TURN_SECONDS)
    writer.close()
    steps.write("ends")


def sums(totals: UsageTotals) -> Mapping[str, int]:
    """Return the totals by the names that the timeline has for them."""
    named: Counter[str] = Counter()
    for gpu in totals.gpus.values():
        named["sm"] += gpu.total.sm_us
        named["energy"] += gpu.total.energy_mj
        for (account, _), used in gpu.by_account.items():
            named[f"sm {_name(account)}"] += used.sm_us
        for account, byte_ms in gpu.memory_byte_ms.items():
            named[f"memory {_name(account)}"] += byte_ms
    return {name: amount for name, amount in named.items() if amount and SharedAccount.UNATTRIBUTED not in name}


def shown(present: Node, writer: Writer) -> Mapping[str, float]:
    """Return the counters of a scrape."""
    view = View(present, usage_totals=writer.usage_totals)
    counters = [family for family in USAGE.families if family.name.endswith("_total")]
    return {" ".join((each.name, *labels)): value for each in counters for labels, value in each.samples(view)}


def _reduced(present: Node, observations: Iterable[Observation]) -> Node:
    for observation in observations:
        present, _ = reduce(present, observation)
    return present


def _posted(present: Node, timeline: GpuTimeline, second: int) -> Node:
    clients = timeline.clients(second)
    parts: Counter[tuple[Account, Method | None]] = Counter()
    for client in clients:
        parts[account_of(present, client.pid), Method.FLIGHT] += 1 / len(clients)  # type: ignore[assignment]
    totals = post_time(present.usage_totals, GPU, timeline.busy[second], parts, at=present.at)
    return replace(present, usage_totals=totals)


def _name(account: Account) -> str:
    return account.value if isinstance(account, SharedAccount) else account.name
