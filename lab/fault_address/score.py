"""Compare what the faulting address shows with the truth: `python3 -m lab.fault_address.score FILES`."""

import gzip
import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from exporter.incidents.fault_address import find_owner
from exporter.model.gpu import FailedAccess
from exporter.model.incident import AddressClue
from exporter.model.observation import AddressRange, AddressRanges
from exporter.parse.kernel_log import parse_failed_access, parse_kernel_record, parse_xid

MIB = 1 << 20
NAMED = 0.8


def trials(files: Sequence[Path]) -> Iterator[Mapping[str, Any]]:
    """Yield the recorded trials."""
    for file in files:
        with gzip.open(file, "rt") as lines:
            yield from map(json.loads, lines)


def access_of(trial: Mapping[str, Any]) -> FailedAccess | None:
    """Return the first failed access that the kernel reported."""
    for line in trial.get("lines", ()):
        xid = parse_xid(parse_kernel_record(line) or "")
        access = None if xid is None else parse_failed_access(xid.text)
        if access is not None:
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
    return find_owner(access, trial["xid_at"], list(map(int, trial["early"])), readings_of(trial))


def main(files: Sequence[Path], half: int | None = None) -> None:
    """Print for each kind how many trials named a client at 0.8 or more, and how many of these were right."""
    rows: dict[str, list[tuple[str, bool, bool]]] = defaultdict(list)
    for trial in trials(files):
        if half is not None and trial["number"] % 2 != half:
            continue
        clue = clue_of(trial) if "early" in trial else None
        if clue is None:
            rows[trial["kind"]].append(("no address", False, False))
            continue
        best = clue.matches[0] if clue.matches else None
        named = best is not None and best.share >= NAMED and not clue.unread
        place = "none" if best is None else best.place.value
        rows[trial["kind"]].append((place, named, best is not None and best.pid == trial["culprit"]))
    totals = [0, 0, 0]
    for kind, results in sorted(rows.items()):
        counted = [each for each in results if each[0] != "no address"]
        naming = [each for each in counted if each[1]]
        right = [each for each in naming if each[2]]
        places = ", ".join(f"{count} {place}" for place, count in Counter(each[0] for each in counted).items())
        counts = f"{len(results):3} trials, {len(counted):3} addresses: {len(naming):3} named, {len(right):3} right"
        print(f"{kind:34} {counts}; {places}")
        totals = [total + len(more) for total, more in zip(totals, (counted, naming, right), strict=True)]
    print(f"{'all':34} {totals[0]} addresses, {totals[1]} named, {totals[2]} right")


if __name__ == "__main__":
    main([Path(each) for each in sys.argv[1:]])
