"""Judges trials by their truths, and prints the figures that docs/hardware.md has.

python3 -m tests.gpu.fault_judgement DIRECTORY...
"""

import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from math import sqrt
from pathlib import Path

from exporter.incidents.root_cause import Z

from .trial_files import HARMLESS, Found, TrialFiles

BANDS = (("at least 0.8", 0.8), ("0.5 to 0.8", 0.5), ("below 0.5", 0.0))


def main(*directories: str) -> int:
    """How many trials were judged wrongly, at most 100."""
    files = sorted(file for each in directories for file in Path(each).glob("*.truth.json"))
    trials = [TrialFiles(file) for file in files]
    wrong = 0
    for trial in trials:
        if shortfalls := list(_shortfalls(trial)):
            wrong += 1
            _say(f"{trial.name}: {'; '.join(shortfalls)}")
    _say(f"\n{len(trials)} trials, {sum(len(each.blocks) for each in trials)} faults in their logs")
    with_live = [each for each in trials if each.said is not None]
    for source, judged, how in (("recordings", trials, _recorded), ("live", with_live, _live)):
        _say(f"\n# {source}: {len(judged)} trials")
        _tell_counts(judged, how)
        _tell_suspects(judged, how)
    _tell_signs(trials)
    _tell_times(trials)
    return min(wrong, 100)


def _recorded(trial: TrialFiles) -> list[Found]:
    return trial.recorded


def _live(trial: TrialFiles) -> list[Found]:
    return trial.live


Told = Callable[[TrialFiles], list[Found]]


def _shortfalls(trial: TrialFiles) -> Iterator[str]:
    if trial.blocks and trial.kind in HARMLESS:
        yield "a fault where there should be none"
    if trial.truth["victims"] and not trial.blocks and trial.kind not in HARMLESS:
        yield "victims, and no word in the log"
    for source, found in (("recording", trial.recorded), ("live", trial.live if trial.said is not None else None)):
        if found is None:
            continue
        if len(found) != len(trial.blocks):
            yield f"{source}: {len(found)} incidents of {len(trial.blocks)} faults"
        yield from (f"{source}: {each}" for each in _differences(trial, found))
    if trial.said is not None and [_gist(each) for each in trial.live] != [_gist(each) for each in trial.recorded]:
        yield f"the exporter said {trial.live}, the recording {trial.recorded}"


def _gist(found: Found) -> tuple[object, ...]:
    """What does not hang on how sure a sign makes, which may have been measured anew since."""
    return found.affected, found.refused, found.kind, found.suspect


def _differences(trial: TrialFiles, found: list[Found]) -> Iterator[str]:
    for incident, block in zip(found, trial.blocks, strict=False):
        if incident.affected != block.sticky:
            yield f"affected {sorted(incident.affected)}, not {sorted(block.sticky)}"
    if found and not trial.may_be_affected(frozenset[int]().union(*(each.affected for each in found))):
        yield f"affected {found}, victims {trial.truth['victims']}"
    if not _refused_exactly(trial, found):
        yield f"refused {[sorted(each.refused) for each in found]}, not {trial.truth['refused']}"
    for incident, culprit in zip(found, trial.culprits, strict=False):
        yield from (
            f"suspects {pid} at {confidence}"
            for pid, confidence in incident.suspects.items()
            if confidence >= BANDS[0][1] and pid != culprit
        )


def _refused_exactly(trial: TrialFiles, found: list[Found]) -> bool:
    """A crash loop refuses too, and is no incident."""
    return not found or set().union(*(each.refused for each in found)) == set(trial.truth["refused"])


def _tell_counts(trials: list[TrialFiles], told: Told) -> None:
    pairs = [(found, block) for each in trials for found, block in zip(told(each), each.blocks, strict=False)]
    extra = sum(max(0, len(told(each)) - len(each.blocks)) for each in trials)
    harmless = [each for each in trials if each.kind in HARMLESS]
    refusing = [each for each in trials if each.truth["refused"] and told(each)]
    _say(f"faults found: {_rate(len(pairs), sum(len(each.blocks) for each in trials))}; too many: {extra}")
    _say(f"incidents in harmless trials: {_rate(sum(len(told(each)) for each in harmless), len(harmless))}")
    _say(f"affected exactly: {_rate(sum(found.affected == block.sticky for found, block in pairs), len(pairs))}")
    _say(f"refused exactly: {_rate(sum(_refused_exactly(each, told(each)) for each in refusing), len(refusing))}")


def _tell_suspects(trials: list[TrialFiles], told: Told) -> None:
    by_kind: dict[str, Counter[str]] = defaultdict(Counter)
    bands: dict[str, list[bool]] = defaultdict(list)
    for trial in trials:
        for incident, culprit in zip(told(trial), trial.culprits, strict=False):
            suspect = incident.suspect
            outcome = "unknown" if suspect is None else "right" if suspect == culprit else "wrong"
            by_kind[trial.kind][outcome] += 1
            by_kind[trial.kind][f"as {incident.kind}"] += 1
            for pid, confidence in incident.suspects.items():
                bands[next(name for name, least in BANDS if confidence >= least)].append(pid == culprit)
    for kind, counts in sorted(by_kind.items()):
        _say(f"  {kind}: {', '.join(f'{name} {count}' for name, count in sorted(counts.items(), reverse=True))}")
    for name, _ in BANDS:
        _say(f"  suspicions of {name}: {_rate(sum(bands[name]), len(bands[name]))}")


def _tell_signs(trials: list[TrialFiles]) -> None:
    """As far as a suspicion's evidence tells them; and those that say nothing."""
    signs = {"in reset": "in reset", "cut off": "instructions could not be fetched"}
    hits: dict[str, list[bool]] = defaultdict(list)
    for trial in trials:
        for incident, culprit in zip(trial.incidents, trial.culprits, strict=False):
            for sign, words in signs.items():
                pids = [each.client.pid for each in incident.suspects if words in " ".join(each.evidence)]
                if pids:
                    hits[sign if len(pids) == 1 else f"{sign}, {len(pids)} alike"].append(culprit in pids)
            alive = culprit in incident.affected and len(incident.affected) > 1
            if alive and incident.clues.named is not None:
                hits[f"log names it, {trial.truth['facts'].get('load')}"].append(incident.clues.named == culprit)
                named = {xid.pid for xid in incident.xids} - {None}
                hits[f"Xid names it, {trial.truth['facts'].get('load')}"].append(culprit in named)
    _say("\n# signs")
    for sign, those in sorted(hits.items()):
        _say(f"  {sign}: {_rate(sum(those), len(those))}")


def _tell_times(trials: list[TrialFiles]) -> None:
    times: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for trial in trials:
        for block in trial.blocks:
            times["block to observed by a recorder"].append((block.read - block.written, trial.name))
        if trial.said is None or not len(trial.blocks) == len(trial.visible) == len(trial.live):
            continue
        for block, visible, live, culprit in zip(trial.blocks, trial.visible, trial.live, trial.culprits, strict=False):
            deed = trial.deed(culprit)
            assert live.first_told is not None
            times["block to metrics"].append((visible - block.written, trial.name))
            times["block to API"].append((live.first_told - block.written, trial.name))
            if deed is not None:
                times["fault to block"].append((block.written - deed, trial.name))
                times["fault to metrics"].append((visible - deed, trial.name))
                times["fault to API"].append((live.first_told - deed, trial.name))
    _say("\n# seconds: median, 95th percentile, worst, n")
    for name, those in sorted(times.items()):
        values = sorted(value for value, _ in those)
        ninety_fifth = values[min(len(values) - 1, int(0.95 * len(values)))]
        median = statistics.median(values)
        _say(f"  {name}: {median:.3f}, {ninety_fifth:.3f}, {values[-1]:.3f} ({max(those)[1]}), {len(values)}")


def _rate(hits: int, trials: int) -> str:
    """With the 95 % interval of Wilson."""
    if not trials:
        return "0 of 0"
    rate, squared = hits / trials, Z * Z / trials
    spread = Z * sqrt(rate * (1 - rate) / trials + squared / (4 * trials))
    low, high = ((rate + squared / 2 + sign * spread) / (1 + squared) for sign in (-1, 1))
    return f"{hits} of {trials} ({max(0, low):.2f} to {min(1, high):.2f})"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
