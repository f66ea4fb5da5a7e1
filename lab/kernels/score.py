"""Compare the incidents of the trials with the truth.

    python3 -m lab.kernels.score trials.jsonl.gz [recording.jsonl.gz]

With the recording, it is replayed with and without the kernels that were read, and the suspects of both are compared.
"""

import gzip
import json
import statistics
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from exporter.model.kernels import KernelReading
from exporter.recording import Recording
from exporter.reducer import reduce_all

from .service import shown_kernels

MOST_SHOWN = 4
CONFIDENT, ACCUSED = 0.8, 0.5

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """A trial's result. `place` is that of the faulting kernel among those shown for its client; None: it is not.

    `suspects` are confidences by PID. `seconds` is from the first Xid, or else from the fault, to the kernel's name in
    the incident.
    """

    name: str
    incident: bool
    fresh: bool
    count: int
    place: int | None
    culprit: int
    suspects: Mapping[int, float]
    seconds: float | None

    @property
    def right(self) -> bool:
        """Whether the culprit is named with confidence."""
        return self.suspects.get(self.culprit, 0.0) >= CONFIDENT

    @property
    def wrong(self) -> bool:
        """Whether an innocent is accused."""
        return any(found >= ACCUSED for pid, found in self.suspects.items() if pid != self.culprit)


def verdict(trial: Json) -> Verdict:
    """Return the result of a trial, by its last incident that has suspects or any."""
    incidents = sorted(trial["incidents"], key=lambda each: bool(each["last"]["suspects"]))
    incident = incidents[-1] if incidents else {"last": {"suspects": []}, "named_at": {}}
    last, culprit = incident["last"], trial["culprit"]
    shown = shown_kernels(last, culprit)
    place = next((index for index, text in enumerate(shown) if trial["kernel"] in text), None)
    named = [at for text, at in incident["named_at"].get(str(culprit), {}).items() if trial["kernel"] in text]
    faulted = [each["at"] for of in trial["events"] for each in of if each["event"] == "fault"]
    signs = [each["at"] for each in last.get("xids", ())] or faulted or [trial["fault_at"]]
    return Verdict(
        name=trial["name"],
        incident=bool(incidents),
        fresh=trial["fresh"],
        count=len(trial["pids"]),
        place=place,
        culprit=culprit,
        suspects={each["pid"]: each["confidence"] for each in last["suspects"]},
        seconds=min(named) - min(signs) if named else None,
    )


def happened(trial: Json) -> bool:
    """Return whether there was a fault: an error of any client."""
    return any(each["event"] == "error" for of in trial["events"] for each in of)


def report(trials: Iterable[Json]) -> str:
    """Return the figures by kind, of the trials with a fault."""
    trials = [*trials]
    verdicts = [verdict(each) for each in trials if happened(each)]
    lines = [
        f"{len(trials)} trials, {len(verdicts)} with an error, {sum(bool(each['stuck']) for each in trials)} stuck",
        f"{'kind':20} trials incident shown first confident innocents  seconds (median, worst)",
    ]
    groups = {each.name: [one for one in verdicts if one.name == each.name] for each in verdicts}
    rows = {
        **dict(sorted(groups.items())),
        "fresh kernel": [each for each in verdicts if each.fresh],
        "ordinary kernel": [each for each in verdicts if not each.fresh],
        "2 or 3 clients": [each for each in verdicts if each.count <= 3],
        "4 to 8 clients": [each for each in verdicts if each.count > 3],
        "all": verdicts,
        "all with an incident": [each for each in verdicts if each.incident],
    }
    return "\n".join([*lines, *(_row(name, group) for name, group in rows.items()), *_misses(trials)]) + "\n"


def _row(name: str, group: Sequence[Verdict]) -> str:
    seconds = sorted(each.seconds for each in group if each.seconds is not None)
    shown = sum(each.place is not None and each.place < MOST_SHOWN for each in group)
    text = f"{statistics.median(seconds):.2f}, {seconds[-1]:.2f}" if seconds else "-"
    return (
        f"{name:20} {len(group):6} {sum(each.incident for each in group):8} {shown:5} "
        f"{sum(each.place == 0 for each in group):5} {sum(each.right for each in group):9} "
        f"{sum(each.wrong for each in group):9}  {text}"
    )


def _misses(trials: Iterable[Json]) -> Iterable[str]:
    """Yield the trials with an incident in which the kernel is not shown, or an innocent is accused."""
    for trial in trials:
        found = verdict(trial)
        missed = found.place is None or found.place >= MOST_SHOWN
        if found.incident and (missed or found.wrong):
            shown = shown_kernels(trial["incidents"][-1]["last"], found.culprit)[:MOST_SHOWN]
            habit = trial["parts"][trial["cause"]]["habit"]
            yield (
                f"trial {trial['number']} {found.name}, {habit}, {'fresh' if found.fresh else 'ordinary'}: culprit "
                f"{found.culprit} in {trial['kernel']}, shown {shown}; suspects {dict(found.suspects)}"
            )


def replayed(recording: str, trials: Sequence[Json], *, kernels: bool) -> list[dict[int, float]]:
    """Return the suspects of each trial in a replay, with the kernels that were read or without."""
    with gzip.open(recording, "rt") as stream:
        source = Recording(stream)
        present = source.header.node()
        observations = (each for each in source.observations() if kernels or not isinstance(each, KernelReading))
        for after, _ in reduce_all(present, observations):
            present = after
    found = []
    for trial, following in zip(trials, [*trials[1:], None], strict=True):
        end = float("inf") if following is None else following["began"]
        of = [each for each in present.incidents.values() if trial["began"] <= each.started_at < end]
        suspects = next((each.suspects for each in reversed(of) if each.suspects), ())
        found.append({each.client.pid: each.confidence for each in suspects})
    return found


def main(file: str, recording: str | None = None) -> None:
    """Print the report."""
    with gzip.open(file, "rt") as stream:
        trials = [json.loads(line) for line in stream]
    print(report(trials))
    for kernels in (False, True) if recording else ():
        suspects = replayed(str(recording), trials, kernels=kernels)
        pairs = [(trial["culprit"], found) for trial, found in zip(trials, suspects, strict=True) if happened(trial)]
        right = sum(found.get(culprit, 0.0) >= CONFIDENT for culprit, found in pairs)
        wrong = sum(
            max((each for pid, each in found.items() if pid != culprit), default=0.0) >= ACCUSED
            for culprit, found in pairs
        )
        way = "with" if kernels else "without"
        print(f"replay {way} kernels: {right} of {len(pairs)} confident and right, {wrong} with an accused innocent")


if __name__ == "__main__":
    main(*sys.argv[1:])
