"""Compare trials with their truth, and print the figures of docs/hardware.md.

python3 -m lab.fault_trials.results DIRECTORY...
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from math import sqrt
from pathlib import Path

from exporter.incidents.root_cause import Z
from exporter.model.reason import ReasonCode

from .files import FAULT_SECONDS, HARMLESS, Found, TrialFiles

BANDS = (("at least 0.8", 0.8), ("0.5 to 0.8", 0.5), ("below 0.5", 0.0))


def main(*directories: str) -> int:
    """Return the number of trials with a wrong result, at most 100."""
    files = sorted(file for each in directories for file in Path(each).glob("*.truth.json"))
    trials = [TrialFiles(file) for file in files]
    wrong = 0
    for trial in trials:
        if shortfalls := list(_shortfalls(trial)):
            wrong += 1
            _print(f"{trial.name}: {'; '.join(shortfalls)}")
    _print(f"\n{len(trials)} trials, {sum(len(each.blocks) for each in trials)} faults in their logs")
    with_live = [each for each in trials if each.answer is not None]
    for source, judged, how in (("recordings", trials, _recorded), ("live", with_live, _live)):
        _print(f"\n# {source}: {len(judged)} trials")
        _print_counts(judged, how)
        _print_suspects(judged, how)
    _print_indications(trials)
    _print_times(trials)
    for line in domains(with_live):
        _print(line)
    return min(wrong, 100)


def domains(trials: list[TrialFiles]) -> Iterator[str]:
    """Yield, for trials with expected failure domains: who failed, who is affected by the live incident, and a sum."""
    hits = []
    for trial in (each for each in trials if "domain" in each.truth["facts"]):
        names = {int(pid): each["name"] for pid, each in trial.truth["clients"].items()}
        live = [each for each in trial.live if each.started_at < trial.truth["moment"] + FAULT_SECONDS]
        affected = frozenset[int]().union(*(each.affected for each in live))
        failed = trial.failed | {cause for cause in trial.causes if cause in affected}
        hits.append(len(live) == 1 and affected == failed)
        domain = " ".join(sorted(trial.truth["facts"]["domain"]))
        shown = (f"failed {names_of(failed, names)}", f"incident {names_of(affected, names)}", f"shares a GPU {domain}")
        yield f"{trial.name}: {', '.join(shown)}"
    if hits:
        yield f"affected clients exact: {sum(hits)} of {len(hits)}"


def names_of(pids: Collection[int], names: Mapping[int, str]) -> str:
    """Return the names of clients, sorted."""
    return " ".join(sorted(names.get(pid, str(pid)) for pid in pids))


def _recorded(trial: TrialFiles) -> list[Found]:
    return trial.recorded


def _live(trial: TrialFiles) -> list[Found]:
    return trial.live


IncidentsOf = Callable[[TrialFiles], list[Found]]


def _shortfalls(trial: TrialFiles) -> Iterator[str]:
    if trial.blocks and trial.kind in HARMLESS:
        yield "a fault where there should be none"
    if trial.truth["victims"] and not trial.blocks and trial.kind not in HARMLESS:
        yield "victims, and no word in the log"
    for source, found in (("recording", trial.recorded), ("live", trial.live if trial.answer is not None else None)):
        if found is None:
            continue
        if len(found) != len(trial.blocks):
            yield f"{source}: {len(found)} incidents of {len(trial.blocks)} faults"
        yield from (f"{source}: {each}" for each in _differences(trial, found))
    if trial.answer is not None and [_gist(each) for each in trial.live] != [_gist(each) for each in trial.recorded]:
        yield f"the exporter reported {trial.live}, the recording {trial.recorded}"


def _gist(found: Found) -> tuple[object, ...]:
    """Return the parts of an incident that do not depend on the table of confidence."""
    return found.affected, found.refused, found.kind, found.suspect


def _differences(trial: TrialFiles, found: list[Found]) -> Iterator[str]:
    for incident, block in zip(found, trial.blocks, strict=False):
        if incident.affected != block.sticky:
            yield f"affected {sorted(incident.affected)}, not {sorted(block.sticky)}"
    if found and not trial.may_be_affected(frozenset[int]().union(*(each.affected for each in found))):
        yield f"affected {found}, victims {trial.truth['victims']}"
    if not _refused_exactly(trial, found):
        yield f"refused {[sorted(each.refused) for each in found]}, not {trial.truth['refused']}"
    for incident, cause in zip(found, trial.causes, strict=False):
        yield from (
            f"suspects {pid} at {confidence}"
            for pid, confidence in incident.suspects.items()
            if confidence >= BANDS[trial.has_core_dumps][1] and pid != cause
        )
        if incident.core_dumps != trial.has_core_dumps:
            yield f"core dumps {'' if incident.core_dumps else 'not '}named"


def _refused_exactly(trial: TrialFiles, found: list[Found]) -> bool:
    """Return whether the refused clients are exact. A crash loop refuses clients too, and is no incident."""
    return not found or set().union(*(each.refused for each in found)) == set(trial.truth["refused"])


def _print_counts(trials: list[TrialFiles], incidents_of: IncidentsOf) -> None:
    pairs = [(found, block) for each in trials for found, block in zip(incidents_of(each), each.blocks, strict=False)]
    extra = sum(max(0, len(incidents_of(each)) - len(each.blocks)) for each in trials)
    harmless = [each for each in trials if each.kind in HARMLESS]
    refusing = [each for each in trials if each.truth["refused"] and incidents_of(each)]
    _print(f"faults found: {_rate(len(pairs), sum(len(each.blocks) for each in trials))}; too many: {extra}")
    _print(f"incidents in harmless trials: {_rate(sum(len(incidents_of(each)) for each in harmless), len(harmless))}")
    _print(f"affected exactly: {_rate(sum(found.affected == block.sticky for found, block in pairs), len(pairs))}")
    _print(
        f"refused exactly: {_rate(sum(_refused_exactly(each, incidents_of(each)) for each in refusing), len(refusing))}"
    )


def _print_suspects(trials: list[TrialFiles], incidents_of: IncidentsOf) -> None:
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    bands: dict[str, list[bool]] = defaultdict(list)
    for trial in trials:
        for incident, cause in zip(incidents_of(trial), trial.causes, strict=False):
            suspect = incident.suspect
            outcome = "unknown" if suspect is None else "right" if suspect == cause else "wrong"
            by_kind[trial.kind][outcome] += 1
            by_kind[trial.kind][f"as {incident.kind}"] += 1
            for pid, confidence in incident.suspects.items():
                bands[next(name for name, least in BANDS if confidence >= least)].append(pid == cause)
    for kind, counts in sorted(by_kind.items()):
        _print(f"  {kind}: {', '.join(f'{name} {count}' for name, count in sorted(counts.items(), reverse=True))}")
    for name, _ in BANDS:
        _print(f"  suspicions of {name}: {_rate(sum(bands[name]), len(bands[name]))}")


def _print_indications(trials: list[TrialFiles]) -> None:
    """Print how often each indication was right."""
    indications = (ReasonCode.WORKER_IN_RESET, ReasonCode.INSTRUCTION_FETCH_FAILED)
    hits: dict[str, list[bool]] = defaultdict(list)
    for trial in trials:
        for incident, cause in zip(trial.incidents, trial.causes, strict=False):
            for code in indications:
                pids = [
                    suspect.client.pid
                    for suspect in incident.suspects
                    if code in (reason.code for reason in suspect.indications)
                ]
                if pids:
                    hits[code if len(pids) == 1 else f"{code}, {len(pids)} clients"].append(cause in pids)
            alive = cause in incident.affected and len(incident.affected) > 1
            if alive and incident.clues.named is not None:
                hits[f"log names it, {trial.truth['facts'].get('load')}"].append(incident.clues.named == cause)
                named = {xid.pid for xid in incident.xids} - {None}
                hits[f"Xid names it, {trial.truth['facts'].get('load')}"].append(cause in named)
    _print("\n# indications")
    for name, results in sorted(hits.items()):
        _print(f"  {name}: {_rate(sum(results), len(results))}")


def _print_times(trials: list[TrialFiles]) -> None:
    times: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for trial in trials:
        for block in trial.blocks:
            times["block to observed by a recorder"].append((block.read - block.written, trial.name))
        if trial.answer is None or not len(trial.blocks) == len(trial.visible) == len(trial.live):
            continue
        for block, visible, live, cause in zip(trial.blocks, trial.visible, trial.live, trial.causes, strict=False):
            deed = trial.fault_time(cause)
            assert live.first_reported is not None
            times["block to metrics"].append((visible - block.written, trial.name))
            times["block to API"].append((live.first_reported - block.written, trial.name))
            if deed is not None:
                times["fault to block"].append((block.written - deed, trial.name))
                times["fault to metrics"].append((visible - deed, trial.name))
                times["fault to API"].append((live.first_reported - deed, trial.name))
    _print("\n# seconds: median, 95th percentile, worst, n")
    for name, those in sorted(times.items()):
        values = sorted(value for value, _ in those)
        ninety_fifth = values[min(len(values) - 1, int(0.95 * len(values)))]
        median = statistics.median(values)
        _print(f"  {name}: {median:.3f}, {ninety_fifth:.3f}, {values[-1]:.3f} ({max(those)[1]}), {len(values)}")


def _rate(hits: int, trials: int) -> str:
    """Return the rate with its 95 % interval (Wilson)."""
    if not trials:
        return "0 of 0"
    rate, squared = hits / trials, Z * Z / trials
    spread = Z * sqrt(rate * (1 - rate) / trials + squared / (4 * trials))
    low, high = ((rate + squared / 2 + sign * spread) / (1 + squared) for sign in (-1, 1))
    return f"{hits} of {trials} ({max(0, low):.2f} to {min(1, high):.2f})"


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
