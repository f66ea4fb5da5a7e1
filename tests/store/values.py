"""Strategies for any value of the model, some incidents and events, and access to a state file."""

import sqlite3
import threading
from collections.abc import Collection, Iterable, Mapping
from contextlib import closing
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from exporter.model.event import Event, EventName
from exporter.model.incident import ClientDetails, Clues, Incident, IncidentEnd, Suspect
from exporter.model.kernels import FaultKernels
from exporter.model.reason import Parameters, Reason, ReasonCode, parameters_of
from exporter.model.settings import Retention
from exporter.model.usage import UsageTotals
from exporter.model.watchdog import WatchdogState
from exporter.store.database import FILE, Refused, StateFile, Storable, StoredState, WatchdogRow
from tests.builders import AT, DAEMON, SERVER
from tests.clocks import HandClock
from tests.eventually import PATIENCE_SECONDS

RETENTION = Retention(max_age=100.0, max_incidents=3, max_events=5)

texts = st.text(max_size=8) | st.binary(max_size=8).map(lambda raw: raw.decode(errors="surrogateescape"))
"""Bytes that are not UTF-8 become lone surrogates, as in texts of the kernel."""

_PLAIN = {
    str: texts,
    int: st.integers(-(2**63), 2**63),
    float: st.floats(min_value=-2e9, max_value=2e9),
    bool: st.booleans(),
    NoneType: st.none(),
}


def whole(kind: type[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy for a dataclass with any values that the types of its fields allow."""
    if kind is Reason:
        return st.sampled_from(ReasonCode).flatmap(_reasons)
    hints = get_type_hints(kind)
    return st.builds(kind, **{part.name: _any(hints[part.name]) for part in fields(kind)})


def _reasons(code: ReasonCode) -> st.SearchStrategy[Reason]:
    needed, allowed = parameters_of(code)
    values = {name: _any(get_args(hint)[0]) for name, hint in get_type_hints(Parameters).items() if name in allowed}
    optional = {name: values[name] for name in allowed - needed}
    known = st.fixed_dictionaries({name: values[name] for name in needed}, optional=optional)
    return known.map(lambda parameters: Reason(code, **parameters))


def _any(hint: Any) -> st.SearchStrategy[Any]:
    if isinstance(hint, UnionType):
        return st.one_of(*map(_any, get_args(hint)))
    if get_origin(hint) is tuple:
        return st.lists(_any(get_args(hint)[0]), max_size=2).map(tuple)
    if get_origin(hint) is Mapping:
        return st.dictionaries(*map(_any, get_args(hint)), max_size=2)
    if is_dataclass(hint):
        return whole(hint)  # type: ignore[arg-type]
    return st.sampled_from(list(hint)) if issubclass(hint, Enum) else _PLAIN[hint]


HOSTILE = "\0'; DROP TABLE incidents; --\"\\ \udcff\n\N{RIGHT-TO-LEFT OVERRIDE}"


def fault(name: str = "one", *, at: float = AT, ended: float | None = None, **known: Any) -> Incident:
    """Return an incident. It is open unless it has `ended`."""
    ending = None if ended is None else IncidentEnd.RECOVERED
    known = {"daemon": DAEMON, "server": SERVER, **known}
    return Incident(id=name, started_at=at, detected_at=at, ended_at=ended, ending=ending, **known)


def rich(name: str = "one") -> Incident:
    client = ClientDetails(pid=600, client="600-a", user=HOSTILE, command=HOSTILE, memory_bytes={HOSTILE: 1})
    suspect = Suspect(client=client, confidence=0.5, indications=(Reason(ReasonCode.UNSPECIFIED, text=HOSTILE),))
    kernels = FaultKernels(pid=600, fault_ns=1, in_flight=(), in_flight_count=0, last=())
    known = {"affected": (600,), "client_details": {600: client}, "suspects": (suspect,)}
    return fault(name, daemon=HOSTILE, clues=Clues(kernels=(kernels,)), **known)


def event(at: float = AT, **known: Any) -> Event:
    return Event(at=at, **{"event": EventName.CLIENT_CONNECTED, "daemon": DAEMON, **known})


class Disk(StateFile):
    """A state file on a disk that the test controls. It remembers the values that it wrote."""

    def __init__(self, directory: Path, clock: HandClock) -> None:
        super().__init__(directory, Retention(), clock)
        self.answers, self.asked = threading.Event(), threading.Event()
        self.answers.set()
        self.absent = False
        self.problem: Exception | None = None
        """Why nothing can be written."""
        self.values: list[Storable] = []
        self.totals: list[UsageTotals] = []

    def open(self) -> StoredState:
        """Open the file once the disk answers, if it is there."""
        self._wait()
        if self.absent:
            raise OSError(5, "no such disk")
        return super().open()

    def write(
        self, values: Iterable[Storable] = (), totals: UsageTotals | None = None, *, expected: Collection[str] = ()
    ) -> Refused:
        """Write once the disk answers, unless it has a problem."""
        self._wait()
        if self.problem is not None:
            raise self.problem
        values = tuple(values)
        refused = super().write(values, totals, expected=expected)
        self.values += values
        self.totals += [] if totals is None else [totals]
        return refused

    def _wait(self) -> None:
        self.asked.set()
        self.answers.wait(PATIENCE_SECONDS)


def loaded(directory: Path) -> StoredState:
    """Return what the next start loads from a directory."""
    with closing(StateFile(directory, Retention(), HandClock(AT))) as state_file:
        return state_file.open()


def assert_equal(value: object, wanted: object) -> None:
    """For `eventually`."""
    assert value == wanted


def rows(states: Mapping[str, WatchdogState]) -> list[WatchdogRow]:
    return [WatchdogRow(daemon=name, state=state) for name, state in states.items()]


def reopened(state_file: StateFile) -> StoredState:
    """Return what the next start loads."""
    state_file.close()
    return state_file.open()


def query(directory: Path, statement: str, *values: object) -> list[tuple[object, ...]]:
    """Execute a statement in the state file of a directory, and return the rows of its result."""
    connection = sqlite3.connect(directory / FILE)
    with connection:
        result = connection.execute(statement, values).fetchall()
    connection.close()
    return result
