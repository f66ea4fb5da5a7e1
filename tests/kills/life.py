"""One life of the exporter: it watches the world from a second on, keeps the books, and shows them, until it is killed.

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

from exporter.metrics.usage_totals import USAGE

from exporter.metrics.gpus import USAGE
from exporter.model.node import Node
from exporter.model.observation import Observation
from exporter.model.settings import Retention
from exporter.model.usage import Account, Method, SharedAccount, UsageTotals
from exporter.reducer import reduce
from exporter.store.database import StateFile
from exporter.store.tables import Refused, Storable
from exporter.store.writer import Writer
from exporter.usage.accounting import account_of, post_time
from exporter.view import View
from tests.builders import AT, GPU, node
from tests.clocks import HandClock
from tests.kills.world import World

TURN_SECONDS = 0.001
"""How long a second of the world takes here, beside what is done in it."""


class StepLog:
    """The file of a life's steps."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)

    def write(self, what: str, **details: Any) -> None:
        """One line, of which a kill may leave a part."""
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


def steps_of(path: Path) -> list[Mapping[str, Any]]:
    """Return the steps of a life until its kill."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def live(world: World, begin: int, directory: Path, steps: StepLog, *, ends: int | None) -> None:
    """From a second on, for ever; or until it `ends` in good order."""
    clock = HandClock(AT + begin)
    writer = Writer(LoggedStateFile(directory, clock, steps), clock)
    present = writer.open().restore(node())
    steps.write("begins", sums=sums(present.usage_totals), shown=shown(present, writer))
    present = _cycle(present, writer, world.begins(begin))
    second = begin
    while second != ends:
        second += 1
        clock.time = AT + second
        present = _posted(_folded(present, world.goes_on(second)), world, second)
        steps.write("posts", second=second)
        writer.add(present, ())
        steps.write("shows", shown=shown(present, writer))
        time.sleep(TURN_SECONDS)
    writer.close()
    steps.write("ends", second=second)


def sums(ledger: UsageTotals) -> Mapping[str, int]:
    """The books as the world speaks of them."""
    found: Counter[str] = Counter()
    for book in ledger.gpus.values():
        found["sm"] += book.total.sm_us
        found["energy"] += book.total.energy_mj
        for (payer, _), used in book.by_account.items():
            found[f"sm {_name(payer)}"] += used.sm_us
        for payer, held in book.memory_byte_ms.items():
            found[f"memory {_name(payer)}"] += held
    return {name: amount for name, amount in found.items() if amount and SharedAccount.UNATTRIBUTED not in name}


def shown(present: Node, writer: Writer) -> Mapping[str, float]:
    """What a scrape sees."""
    view = View(present, usage_totals=writer.usage_totals)
    counters = [family for family in USAGE.families if family.name.endswith("_total")]
    return {" ".join((each.name, *labels)): value for each in counters for labels, value in each.samples(view)}


def _cycle(present: Node, writer: Writer, seen: Iterable[Observation]) -> Node:
    present = _folded(present, seen)
    writer.add(present, ())
    return present


def _folded(present: Node, seen: Iterable[Observation]) -> Node:
    for each in seen:
        present, _ = reduce(present, each)
    return present


def _posted(present: Node, world: World, second: int) -> Node:
    there = world.there(second)
    parts: Counter[tuple[Account, Method | None]] = Counter()
    for each in there:
        parts[account_of(present, each.pid), Method.FLIGHT] += 1 / len(there)  # type: ignore[assignment]
    ledger = post_time(present.usage_totals, GPU, world.busy[second], parts, at=present.at)
    return replace(present, usage_totals=ledger)


def _name(payer: Account) -> str:
    return payer.value if isinstance(payer, SharedAccount) else payer.name
