"""Files of a trial: the truth, the recording, and the reports of an exporter that ran beside it."""

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
from exporter.reducer import reduce_all

# These affect no other client.
HARMLESS = ("assert", "abort", "kill-idle", "bypasser-oob", "crash-loop", "exit")

# The log reports a client that was killed on two GPUs twice.
AT_ONCE = 0.05

# A rank of NCCL that waits for another one in vain is ended later, which is a fault of its own.
FAULT_SECONDS = 2.0

_LINE = re.compile(r"\[(?P<stamp>\S+ \S+) Server +\d+\] (?P<message>.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """A fault block of the log: when it was written and read, and the clients with the sticky error."""

    written: float
    read: float
    sticky: frozenset[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """An incident as reported. `first_reported` is when the API first had it."""

    affected: frozenset[int]
    refused: frozenset[int]
    suspects: Mapping[int, float]
    kind: str
    core_dumps: bool = False
    started_at: float = 0.0
    first_reported: float | None = None

    @property
    def suspect(self) -> int | None:
        """The main suspect, if there is one."""
        ranked = sorted(self.suspects.items(), key=lambda each: -each[1])
        return ranked[0][0] if ranked and (len(ranked) == 1 or ranked[0][1] > ranked[1][1]) else None


class TrialFiles:
    """The files of a trial, found by the truth file."""

    def __init__(self, truth: Path) -> None:
        self.name = truth.name.removesuffix(".truth.json")
        self.truth: Mapping[str, Any] = json.loads(truth.read_text())
        self._directory = truth.parent

    @property
    def kind(self) -> str:
        """The kind of the trial."""
        return str(self.truth["fault_kind"])

    @property
    def causes(self) -> list[int]:
        """PIDs of the causes, in the order of their faults."""
        return [pid for pid in (self.truth.get("cause"), *self.truth.get("also_culprits", ())) if pid]

    @property
    def failed(self) -> frozenset[int]:
        """PIDs of the clients that received an error of the fault, and were not only refused."""
        errors = {int(pid): each.get("cuda_errors", ()) for pid, each in self.truth["clients"].items()}
        ends = self.truth["moment"] + FAULT_SECONDS
        failed = frozenset(pid for pid, own in errors.items() if own and own[0]["at"] < ends)
        return failed - frozenset(self.truth["refused"])

    def fault_time(self, cause: int) -> float | None:
        """Return when the client caused a fault: as it reports, or when it was killed."""
        value = self.truth["clients"][str(cause)].get("faulted")
        killings = [each["at"] for each in self.truth["happened"] if each["pid"] == cause]
        found = value if value is not None else next(iter(killings), None)
        return None if found is None else float(found)

    @cached_property
    def text(self) -> str:
        """Return the recording."""
        packed = self._directory / f"{self.name}.jsonl.gz"
        if packed.exists():
            return gzip.decompress(packed.read_bytes()).decode(errors="replace")
        return (self._directory / f"{self.name}.jsonl").read_text(errors="replace")

    @cached_property
    def blocks(self) -> list[Block]:
        """One for each fault in the server's log."""
        found: list[tuple[float, float, set[int]]] = []
        listing = False
        for at, stamp, message in self._lines():
            if message == "Server is handling a fatal GPU error." and not (
                found and _seconds(stamp) - found[-1][0] < AT_ONCE
            ):
                found.append((_seconds(stamp), at, set()))
            if listing and message.isdigit():
                found[-1][2].add(int(message))
            listing = "have a sticky error set" in message or (listing and message.isdigit())
        return [Block(written=written, read=read, sticky=frozenset(pids)) for written, read, pids in found]

    @cached_property
    def incidents(self) -> list[Incident]:
        """The incidents of a replay."""
        recording = Recording(io.StringIO(self.text))
        present = recording.header.node()
        for after, _ in reduce_all(present, recording.observations()):
            present = after
        return sorted(present.incidents.values(), key=lambda each: each.started_at)

    @property
    def recorded(self) -> list[Found]:
        """The same in comparable form."""
        return [
            Found(
                affected=frozenset(each.affected),
                refused=frozenset(refusal.pid for refusal in each.refused if refusal.pid is not None),
                suspects={suspect.client.pid: suspect.confidence for suspect in each.suspects},
                kind=each.kind,
                core_dumps=each.core_dumps,
            )
            for each in self.incidents
        ]

    @cached_property
    def answer(self) -> Mapping[str, Any] | None:
        """All reports of the exporter beside it; None without one."""
        file = self._directory / f"{self.name}.live.json"
        return json.loads(file.read_text()) if file.exists() else None

    @property
    def live(self) -> list[Found]:
        """The incidents that it reported."""
        incidents = [] if self.answer is None else self.answer["incidents"]
        return [_found(each) for each in sorted(incidents, key=lambda each: float(each["last"]["started_at"]))]

    @property
    def visible(self) -> list[float]:
        """Times of the first scrapes with a higher count of faults."""
        return [] if self.answer is None else [each["answered"] for each in self.answer["faults"]]

    @property
    def has_core_dumps(self) -> bool:
        """Whether the kernel log shows core dumps. In few trials the fault is an ordinary one in spite of them."""
        return "): MMU Fault" in self.text or "UNRECOGNIZED_FAULT" in self.text

    def may_be_affected(self, pids: Set[int]) -> bool:
        """Return whether these clients can be affected: all clients with an error, and the causes or exited clients."""
        leavers = {
            int(pid) for pid, each in self.truth["clients"].items() if each["name"].startswith(("leaver", "sib"))
        }
        victims = set(self.truth["victims"])
        return victims <= pids <= victims | leavers | set(self.causes)

    def _lines(self) -> list[tuple[float, str, str]]:
        seen = [json.loads(line) for line in self.text.splitlines() if '"log"' in line and '"server.log"' in line]
        found = [(each["at"], _LINE.match(each["line"])) for each in seen if each.get("source") == "log"]
        return [(at, match["stamp"], match["message"].strip()) for at, match in found if match is not None]


def _found(report: Mapping[str, Any]) -> Found:
    incident = report["last"]
    return Found(
        affected=frozenset(each["pid"] for each in incident["affected"]),
        refused=frozenset(each["pid"] for each in incident["refused"] if each["pid"] is not None),
        suspects={each["pid"]: each["confidence"] for each in incident["suspects"]},
        kind=incident["kind"],
        core_dumps=bool(incident["core_dumps"]),
        started_at=incident["started_at"],
        first_reported=report["first"]["answered"],
    )


def _seconds(stamp: str) -> float:
    """Return the seconds of a log time. The machines use UTC."""
    return datetime.strptime(stamp, "%Y-%m-%d %H:%M:%S.%f").replace(tzinfo=UTC).timestamp()
