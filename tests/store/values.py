"""Strategies for any value of the model, and some incidents and events."""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Any, get_args, get_origin, get_type_hints

from hypothesis import strategies as st

from exporter.model.event import Event, EventName
from exporter.model.incident import ClientDetails, Incident, IncidentEnd, Suspect
from exporter.model.reason import Parameters, Reason, ReasonCode, parameters_of
from tests.builders import AT, DAEMON, SERVER

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
    """Return an incident with many values, all of them hostile."""
    client = ClientDetails(pid=600, client="600-a", user=HOSTILE, command=HOSTILE, memory_bytes={HOSTILE: 1})
    suspect = Suspect(client=client, confidence=0.5, indications=(Reason(ReasonCode.UNSPECIFIED, text=HOSTILE),))
    return fault(name, daemon=HOSTILE, affected=(600,), client_details={600: client}, suspects=(suspect,))


def event(at: float = AT, **known: Any) -> Event:
    """Return an event."""
    return Event(at=at, **{"event": EventName.CLIENT_CONNECTED, "daemon": DAEMON, **known})
