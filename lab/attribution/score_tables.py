"""Scores as Markdown. Errors are in percentage points."""

from collections.abc import Iterator, Sequence
from statistics import fmean

from .verdict import Score, Stretch, errors, within

ENOUGH = 0.9
MIXES_HEAD = """| mix | clients | SM | 10 s: mean, worst | 1 min | got | equal | nvitop | within 1, 2 doubts |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"""
CLIENTS_HEAD = """| mix | client | true | got | error | stated ± | equal | nvitop |
| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |"""
SUMMARY_HEAD = """| mixes, coverage 90 % or more | 1 min: mean | worst | 10 s: mean | worst | within 1, 2 doubts |
| ---: | ---: | ---: | ---: | ---: | ---: |"""


def mix_row(score: Score) -> str:
    """Return the row of a mix."""
    long = score.long or score.short
    cells = (
        score.mix,
        str(score.clients),
        f"{100 * fmean(stretch.sm for stretch in long):.1f} %" if long else "-",
        _mean_worst(errors(score.short)),
        _mean_worst(errors(score.long)),
        f"{100 * fmean(stretch.coverage for stretch in long):.0f} %" if long else "-",
        _mean_worst(errors(long, "equal")),
        _mean_worst(errors(long, "nvitop")),
        _calibration(score.short),
    )
    return f"| {' | '.join(cells)} |"


def client_rows(score: Score) -> Iterator[str]:
    """Yield the rows of clients, over the last minute."""
    for verdict in (score.long or score.short)[-1].verdicts if score.long or score.short else ():
        shares = (verdict.true, verdict.flight)
        cells = (
            score.mix,
            verdict.name,
            *(f"{100 * share:.1f} %" for share in shares),
            f"{verdict.error():+.2f}",
            f"{100 * verdict.doubt:.2f}",
            f"{100 * verdict.equal:.1f} %",
            f"{100 * verdict.nvitop:.1f} %",
        )
        yield f"| {' | '.join(cells)} |"


def summary_row(scores: Sequence[Score]) -> str:
    """Return the row of the mixes with enough attributed time."""
    long = [stretch for score in scores for stretch in score.long if stretch.coverage >= ENOUGH]
    short = [stretch for score in scores for stretch in score.short if stretch.coverage >= ENOUGH]
    mixes = sum(any(stretch.coverage >= ENOUGH for stretch in score.long) for score in scores)
    cells = (
        f"{mixes} of {len(scores)}",
        *_mean_worst(errors(long)).split(" / "),
        *_mean_worst(errors(short)).split(" / "),
        _calibration(short),
    )
    return f"| {' | '.join(cells)} |"


def report(scores: Sequence[Score], *, clients: bool) -> str:
    """Return the tables."""
    lines = [MIXES_HEAD, *map(mix_row, scores), "", SUMMARY_HEAD, summary_row(scores)]
    if clients:
        lines += ["", CLIENTS_HEAD, *(row for score in scores for row in client_rows(score))]
    return "\n".join(lines) + "\n"


def _mean_worst(each: Sequence[float]) -> str:
    return f"{fmean(each):.2f} / {max(each):.2f}" if each else "- / -"


def _calibration(short: Sequence[Stretch]) -> str:
    parts = [within(short, times) for times in (1, 2)]
    return " / ".join("-" if part is None else f"{100 * part:.0f} %" for part in parts)
