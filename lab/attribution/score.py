"""Errors of the exporter's shares, and of those of other methods.

    python3 -m lab.attribution.score [--clients] mixes.tar.gz...

Replays each mix' recording, and compares each client's share of what all clients used, over 10 s and over 1 min.
"""

import argparse
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from exporter.model.usage import Split
from exporter.recording import Recording, open_recording
from exporter.reducer import reduce

from .mix_truth import MixTruth, read_truth
from .nvitop import Nvitop, read_rows
from .score_tables import report
from .verdict import Score, Stretch, Verdict

SHORT, LONG = 10.0, 60.0
# A window across the edge of the measured time is omitted, so a minute may be slightly shorter.
SLACK_SECONDS = 0.6
SMS = 132


def replayed(recording: Path) -> tuple[list[Split], int]:
    """Return every window of the GPU in a replay, and the GPU's number of SMs."""
    windows: dict[float, Split] = {}
    sms = 0
    with open_recording(str(recording), "r") as file:
        read = Recording(file)
        node = read.header.node()
        for seen in read.observations():
            node, _ = reduce(node, seen)
            for splitting in node.attribution.values():
                windows.update((window.at, window) for window in splitting.windows[-1:])
            sms = sms if node.work is None else node.work.sms
    return [windows[at] for at in sorted(windows)], sms or SMS


def stretches(windows: Sequence[Split], truth: MixTruth, nvitop: Nvitop, seconds: float) -> Iterator[Stretch]:
    """Yield consecutive stretches of the measured time. An incomplete one at the end is omitted."""
    gathered: list[Split] = []
    for window in windows:
        until = truth.boot_ns(window.at)
        if until - window.seconds * 1e9 < truth.begin or until > truth.end:
            continue
        gathered.append(window)
        if sum(each.seconds for each in gathered) >= seconds - SLACK_SECONDS:
            yield _stretch(gathered, truth, nvitop)
            gathered = []


def scored(directory: Path) -> Score:
    """Return the score of a mix."""
    windows, sms = replayed(directory / "recording.jsonl.gz")
    nvitop = read_rows(directory / "rows.jsonl.gz")
    truth = read_truth(directory, sms)
    return Score(
        mix=truth.mix,
        clients=len(truth.clients),
        short=tuple(stretches(windows, truth, nvitop, SHORT)),
        long=tuple(stretches(windows, truth, nvitop, LONG)),
    )


def _stretch(windows: Sequence[Split], truth: MixTruth, nvitop: Nvitop) -> Stretch:
    first, last = windows[0], windows[-1]
    begin, end = truth.boot_ns(first.at) - first.seconds * 1e9, truth.boot_ns(last.at)
    device = sum(window.sm * window.seconds for window in windows)
    there = [client for client in truth.clients if client.present(begin, end) > 0]
    pids = [client.pid for client in there]
    used = _shares([client.used.between(begin, end) for client in there])
    estimated = [_attributed(windows, pid) for pid in pids]
    doubts = [_doubt(windows, pid) for pid in pids]
    split = sum(estimated)
    equal = _shares([client.present(begin, end) for client in there])
    rows = _shares([nvitop.mean(pid, first.at - first.seconds, last.at) for pid in pids])
    flight = _shares(estimated)
    return Stretch(
        seconds=sum(window.seconds for window in windows),
        sm=device / sum(window.seconds for window in windows),
        coverage=split / device if device else 0.0,
        verdicts=tuple(
            Verdict(client.name, used[at], flight[at], doubts[at] / split if split else 0.0, equal[at], rows[at])
            for at, client in enumerate(there)
        ),
    )


def _attributed(windows: Sequence[Split], pid: int) -> float:
    return sum(window.shares[pid].sm * window.seconds for window in windows if pid in window.shares)


def _doubt(windows: Sequence[Split], pid: int) -> float:
    return sum(window.shares[pid].error * window.seconds for window in windows if pid in window.shares)


def _shares(amounts: Sequence[float]) -> list[float]:
    """Return each amount as a share of all. Without any, all shares are 0."""
    whole = sum(amounts)
    return [amount / whole if whole else 0.0 for amount in amounts]


def main() -> int:
    """Score the mixes of all archives. A mix that cannot be scored is reported."""
    parser = argparse.ArgumentParser()
    parser.add_argument("archives", nargs="+", type=Path)
    parser.add_argument("--clients", action="store_true", help="each client too")
    options = parser.parse_args()
    scores: list[Score] = []
    failed = 0
    for archive in options.archives:
        with tempfile.TemporaryDirectory() as directory:
            with tarfile.open(archive) as tar:
                tar.extractall(directory, filter="data")
            for truth in sorted(Path(directory).glob("mixes/*/truth.json.gz")):
                try:
                    scores.append(scored(truth.parent))
                except Exception as problem:
                    failed += 1
                    print(f"{truth.parent.name}: {problem!r}", file=sys.stderr)
    print(report(scores, clients=options.clients), end="")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
