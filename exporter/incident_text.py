"""Faults in words, for a person at a terminal."""

import shlex
from collections.abc import Iterable

from exporter.model.incident import Incident, Suspect, Tenant
from exporter.view import printable

MOST_NAMED = 8
"""So many are named; of the others it is said how many they are."""

SURE = ((0.8, "very likely"), (0.5, "likely"), (0.2, "possibly"))


def brief(incident: Incident, now: float) -> str:
    """One line: when, where, what, and how it ended."""
    since = f"{now - incident.started_at:.0f} s ago"
    how = "still in FAULT" if incident.open else f"{incident.ending} after {incident.seconds or 0:.1f} s"
    what = f"{incident.kind} fault of server {incident.server}, {len(incident.affected)} clients affected"
    return f"{incident.id}: {printable(incident.daemon)}: {what}, {since}, {how}"


def details(incident: Incident, now: float, pipe_directory: str | None) -> list[str]:
    """All that helps now, a line each, with the commands that end who holds up recovery.

    `pipe_directory` is None where the daemon cannot be told, in this namespace's PIDs, to end anybody.
    """
    return [
        brief(incident, now),
        f"  affected: {_named(_who(incident, pid) for pid in incident.affected)}",
        f"  suspected: {_suspected(incident.suspects)}",
        *_held_up(incident, now, pipe_directory),
        *_turned_away(incident),
    ]


def _held_up(incident: Incident, now: float, pipe_directory: str | None) -> Iterable[str]:
    for pid, stay in list(incident.blockers.items())[:MOST_NAMED]:
        yield f"  held up by {_who(incident, pid)} for {now - stay.since:.0f} s; end it with the first that works:"
        if pipe_directory is not None:
            where = f"CUDA_MPS_PIPE_DIRECTORY={shlex.quote(printable(pipe_directory))}"
            yield f'    echo "terminate_client {incident.server} {pid}" | {where} nvidia-cuda-mps-control'
        yield f"    kill -KILL {pid}"
    if len(incident.blockers) > MOST_NAMED:
        yield f"  and by {len(incident.blockers) - MOST_NAMED} more"


def _turned_away(incident: Incident) -> Iterable[str]:
    if incident.refused_count:
        pids = _named(str(each.pid) for each in incident.refused if each.pid is not None)
        yield f"  turned away until that ends (error 807): {incident.refused_count} newcomers: {pids}"


def _suspected(suspects: tuple[Suspect, ...]) -> str:
    return _named(
        f"{_called(each.tenant)} ({_sure(each.confidence)}, {each.confidence:.2f}: "
        f"{printable('; '.join(each.evidence))})"
        for each in suspects
    )


def _sure(confidence: float) -> str:
    return next((words for least, words in SURE if confidence >= least), "unlikely")


def _who(incident: Incident, pid: int) -> str:
    tenant = incident.tenants.get(pid)
    return str(pid) if tenant is None else _called(tenant)


def _called(tenant: Tenant) -> str:
    return f"{tenant.pid} ({printable(tenant.command or '-')[:32]}, {printable(tenant.user or '-')})"


def _named(names: Iterable[str]) -> str:
    told = list(names)
    more = [f"{len(told) - MOST_NAMED} more"] if len(told) > MOST_NAMED else []
    return ", ".join([*told[:MOST_NAMED], *more]) or "nobody"
