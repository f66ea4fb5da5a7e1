"""Compare what the faulting address shows, and the exporter's own incident, with the truth.

    python3 -m lab.fault_address.score FILES

A client is named if it has 0.8 or more. Without MPS, the culprit is no client, and any named client is wrong.
"""

import gzip
import json
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, NamedTuple

from exporter.incidents.fault_address import find_owner
from exporter.model.incident import AddressClue, FailedAccess
from exporter.model.observation import AddressRange, AddressRanges
from exporter.parse.kernel_log import parse_failed_access, parse_kernel_record, parse_xid

MIB = 1 << 20
NAMED, LIKELY = 0.8, 0.5
UNIDENTIFIED = re.compile("random|null|in-anothers-range|framed|fixed-layout|forked|1g-foreign|exit")
"""The kinds whose address cannot identify the culprit, or does so on purpose for another."""


def trials(files: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the recorded trials."""
    for file in files:
        with gzip.open(file, "rt") as lines:
            yield from map(json.loads, lines)


def access_of(trial: Mapping[str, Any]) -> FailedAccess | None:
    """Return the first failed access that the kernel reported, without those of processes that do not use MPS."""
    for line in trial.get("lines", ()):
        xid = parse_xid(parse_kernel_record(line) or "")
        access = None if xid is None else parse_failed_access(xid.text)
        if access is not None and xid is not None and xid.pid not in trial.get("foreign", ()):
            return access
    return None


def _merged(ranges: Sequence[Sequence[Any]], kinds: str) -> tuple[AddressRange, ...]:
    merged: list[AddressRange] = []
    for start, end, kind in ranges:
        if kind not in kinds:
            continue
        if merged and merged[-1][1] == start:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    return tuple(each for each in merged if each[1] - each[0] >= MIB)


def readings_of(trial: Mapping[str, Any]) -> Mapping[int, Sequence[AddressRanges]]:
    """Return the readings of each client: before the fault, and after its Xid."""
    found: dict[int, list[AddressRanges]] = defaultdict(list)
    for name, at in (("early", trial["go"]), ("late", trial["xid_at"])):
        for pid, ranges in trial[name].items():
            if ranges:
                gpu, host = _merged(ranges, "rd"), _merged(ranges, "a")
                found[int(pid)].append(AddressRanges(at=at, pid=int(pid), start_ticks=0, gpu=gpu, host=host))
    return found


def clue_of(trial: Mapping[str, Any]) -> AddressClue | None:
    """Return what the address shows."""
    access = access_of(trial)
    if access is None:
        return None
    clients = [pid for pid in map(int, trial["early"]) if pid not in trial.get("foreign", ())]
    return find_owner(access, trial["xid_at"], clients, readings_of(trial))


class InFlight(StrEnum):
    """What the work in flight says about the client that the address fits best."""

    NO_MATCH = "address fits no client"
    UNKNOWN = "unknown"
    AGREES = "only this client had work"
    SAME = "this client had work, others too"
    CONTRADICTS = "this client had no work"


def in_flight_of(incident: Mapping[str, Any]) -> InFlight:
    """Return whether the work in flight agrees with the address."""
    matches = (incident["address"] or {}).get("matches")
    if not matches:
        return InFlight.NO_MATCH
    known = {each["pid"]: each["in_flight"] for each in incident["affected"]}
    own = known.pop(matches[0]["pid"], None)
    if own is None:
        return InFlight.UNKNOWN
    if not own:
        return InFlight.CONTRADICTS
    return InFlight.AGREES if all(each is False for each in known.values()) else InFlight.SAME


class Named(NamedTuple):
    """Whether a client was named, and whether that was right."""

    named: bool
    right: bool


def named_in(incident: Mapping[str, Any], culprit: int) -> Named:
    """Return what the exporter's incident says. Its suspects are in order."""
    first = next(iter(incident["suspects"]), None)
    return Named(first is not None and first["confidence"] >= NAMED, first is not None and first["pid"] == culprit)


def suspects_an_innocent(incident: Mapping[str, Any], culprit: int) -> bool:
    """Return whether the incident reports another client than the culprit as the likely cause."""
    return any(each["confidence"] >= LIKELY and each["pid"] != culprit for each in incident["suspects"])


def named_by(clue: AddressClue, culprit: int) -> Named:
    """Return what the address alone says."""
    best = clue.matches[0] if clue.matches else None
    named = best is not None and best.share >= NAMED and not clue.is_weak and {*clue.unread} <= {best.pid}
    return Named(named, best is not None and best.pid == culprit)


def print_counts(title: str, results: Sequence[Named], more: str = "") -> None:
    """Print how many trials named a client, and how many of these were right."""
    naming = [each for each in results if each.named]
    print(f"{title:34} {len(results):3}, {len(naming):3} named, {sum(each.right for each in naming):3} right{more}")


def print_totals(rows: Mapping[str, Sequence[Named]]) -> None:
    """Print the sum of the kinds whose address should identify the culprit, and that of the others."""
    for title, unidentified in (("all of an own layout", False), ("all others", True)):
        kinds = [kind for kind in rows if bool(UNIDENTIFIED.search(kind)) == unidentified]
        print_counts(title, [each for kind in kinds for each in rows[kind]])


def print_addresses(all_trials: Sequence[Mapping[str, Any]]) -> None:
    """Print what the address alone says, by kind."""
    rows: dict[str, list[Named]] = defaultdict(list)
    places: dict[str, list[str]] = defaultdict(list)
    for trial in all_trials:
        clue = clue_of(trial)
        if clue is not None:
            rows[trial["kind"]].append(named_by(clue, trial["culprit"]))
            places[trial["kind"]].append(clue.matches[0].place.value if clue.matches else "none")
    counted = Counter(trial["kind"] for trial in all_trials)
    for kind in sorted(counted):
        each = ", ".join(f"{count} {place}" for place, count in Counter(places[kind]).items())
        print_counts(kind, rows[kind], f"; {each or '0'} of {counted[kind]} trials")
    print_totals(rows)


def print_incidents(all_trials: Sequence[Mapping[str, Any]]) -> None:
    """Print what the exporter's own incidents say, by kind and by the work in flight."""
    by_kind: dict[str, list[Named]] = defaultdict(list)
    by_work: dict[InFlight, list[Named]] = defaultdict(list)
    exact: dict[str, list[bool]] = defaultdict(list)
    innocent: Counter[str] = Counter()
    for trial in all_trials:
        incident = trial.get("incident")
        if incident is None:
            continue
        result = named_in(incident, trial["culprit"])
        by_kind[trial["kind"]].append(result)
        innocent[trial["kind"]] += suspects_an_innocent(incident, trial["culprit"])
        by_work[in_flight_of(incident)].append(result)
        if "died" in trial:
            exact[trial["kind"]].append({each["pid"] for each in incident["affected"]} == set(trial["died"]))
    for kind, results in sorted(by_kind.items()):
        affected = f"; affected clients exact in {sum(exact[kind])} of {len(exact[kind])}"
        print_counts(kind, results, f"{affected}; an innocent with {LIKELY} or more in {innocent[kind]}")
    print_totals(by_kind)
    print("\nWork in flight and the client that the address fits best:")
    for work in InFlight:
        print_counts(work, by_work[work])


def main(files: Sequence[Path]) -> None:
    """Print both comparisons."""
    everything = list(trials(files))
    complete = [trial for trial in everything if "early" in trial and "failed" not in trial]
    print(f"{len(everything)} trials, of which {len(everything) - len(complete)} failed\n\nThe address alone:")
    print_addresses(complete)
    print("\nThe incidents of the exporter:")
    print_incidents(complete)


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
