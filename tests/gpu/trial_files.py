"""A played trial as it lies on disk: the truth, what was recorded, and what an exporter beside it said."""

import gzip
import io
import json
import re
from collections.abc import Mapping, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Any

from exporter.model.incident import Incident
from exporter.recording import Recording
from exporter.state.reducer import reduce_all

# No neighbour is harmed in these.
HARMLESS = ("assert", "abort", "kill-idle", "bypasser-oob", "crash-loop", "exit")

# Of a client that was killed on two GPUs the log tells twice.
AT_ONCE = 0.05

_LINE = re.compile(r"\[(?P<stamp>\S+ \S+) Server +\d+\] (?P<said>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The log's word of a fault: when it was written, when it was read, and who had the sticky error."""

    written: float
    read: float
    sticky: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An incident as somebody tells it: `first_told` is when the API was first seen to."""

    affected: frozenset[int]
    refused: frozenset[int]
    suspects: Mapping[int, float]
    kind: str
    first_told: float | None = None

    @property
    def suspect(self) -> int | None:
        """Who stands out, if anybody does."""
        ranked = sorted(self.suspects.items(), key=lambda each: -each[1])
        return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None


class TrialFiles:
    """The files of one trial, by that of its truth."""

    def __init__(self, truth: Path) -> None:
        self.name = truth.name.removesuffix(".truth.json")
        self.truth: Mapping[str, Any] = json.loads(truth.read_text())
        self._directory = truth.parent

    @property
    def kind(self) -> str:
        """What was done."""
        return str(self.truth["fault_kind"])

    @property
    def culprits(self) -> list[int]:
        """In the order of their deeds."""
        return [pid for pid in (self.truth.get("culprit"), *self.truth.get("also_culprits", ())) if pid]

    def deed(self, culprit: int) -> float | None:
        """When it did harm: its own word, or the time of its killing."""
        told = self.truth["clients"][str(culprit)].get("faulted")
        killings = [each["at"] for each in self.truth["happened"] if each["pid"] == culprit]
        found = told if told is not None else next(iter(killings), None)
        return None if found is None else float(found)

    @cached_property
    def text(self) -> str:
        """The recording."""
        packed = self._directory / f"{self.name}.jsonl.gz"
        if packed.exists():
            return gzip.decompress(packed.read_bytes()).decode(errors="replace")
        return (self._directory / f"{self.name}.jsonl").read_text(errors="replace")

    @cached_property
    def blocks(self) -> list[Block]:
        """One for each fault that the server's log tells of."""
        found: list[tuple[float, float, set[int]]] = []
        listing = False
        for at, stamp, said in self._lines():
            if said == "Server is handling a fatal GPU error." and not (
                found and _seconds(stamp) - found[-1][0] < AT_ONCE
            ):
                found.append((_seconds(stamp), at, set()))
            if listing and said.isdigit():
                found[-1][2].add(int(said))
            listing = "have a sticky error set" in said or (listing and said.isdigit())
        return [Block(written=written, read=read, sticky=frozenset(pids)) for written, read, pids in found]

    @cached_property
    def incidents(self) -> list[Incident]:
        """What becomes of the recording."""
        recording = Recording(io.StringIO(self.text))
        present = recording.header.node()
        for after, _ in reduce_all(present, recording.observations()):
            present = after
        return sorted(present.incidents.values(), key=lambda each: each.started_at)

    @property
    def recorded(self) -> list[Found]:
        """The same, to be compared."""
        return [
            Found(
                affected=frozenset(each.affected),
                refused=frozenset(refusal.pid for refusal in each.refused if refusal.pid is not None),
                suspects={suspect.client.pid: suspect.confidence for suspect in each.suspects},
                kind=each.kind,
            )
            for each in self.incidents
        ]

    @cached_property
    def said(self) -> Mapping[str, Any] | None:
        """All that the exporter beside it said; None where there was none."""
        file = self._directory / f"{self.name}.live.json"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def live(self) -> list[Found]:
        """The incidents that it told of."""
        told = [] if self.said is None else self.said["incidents"]
        return [_told(each) for each in sorted(told, key=lambda each: float(each["last"]["started_at"]))]

    @property
    def visible(self) -> list[float]:
        """When its count of faults was first seen to have grown."""
        return [] if self.said is None else [each["answered"] for each in self.said["faults"]]

    def may_be_affected(self, pids: Set[int]) -> bool:
        """Whether the clients' own words allow it: all that had an error, and beside them who caused it or left."""
        leavers = {
            int(pid) for pid, each in self.truth["clients"].items() if each["name"].startswith(("leaver", "sib"))
        }
        victims = set(self.truth["victims"])
        return victims <= pids <= victims | leavers | set(self.culprits)

    def _lines(self) -> list[tuple[float, str, str]]:
        seen = [json.loads(line) for line in self.text.splitlines() if '"log"' in line and '"server.log"' in line]
        found = [(each["at"], _LINE.match(each["line"])) for each in seen if each.get("source") == "log"]
        return [(at, match["stamp"], match["said"].strip()) for at, match in found if match is not None]


def _told(told: Mapping[str, Any]) -> Found:
    incident = told["last"]
    return Found(
        affected=frozenset(each["pid"] for each in incident["affected"]),
        refused=frozenset(each["pid"] for each in incident["refused"] if each["pid"] is not None),
        suspects={each["pid"]: each["confidence"] for each in incident["suspects"]},
        kind=incident["kind"],
        first_told=told["first"]["answered"],
    )


def _seconds(stamp: str) -> float:
    """The machines on which trials are played have no other time than UTC."""
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
