"""The report of a fleet: the rows of its answers, as Markdown for e-mail or as CSV.

Workloads choose names. So a name cannot break a table, become markup or a link, or be a formula of a spreadsheet.
"""

import calendar
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from exporter.errors import ConfigError
from exporter.fleet.answers import COST_BY_JOB, LIMIT, Answer, Unit
from exporter.parse.printable import printable
from exporter.report.text import utc_time

Vector = Sequence[tuple[Mapping[str, str], float]]
"""The labels and the value of each sample, in the order of the server."""

_RISKS = ("low", "little data", "suspected")
_FORMS: Mapping[Unit, tuple[str, float, str]] = {
    Unit.HOURS: (" (h)", 1, ",.1f"),
    Unit.COST: ("", 1, ",.2f"),
    Unit.COUNT: ("", 1, ",.0f"),
    Unit.RATIO: (" (%)", 100, ".5g"),
    Unit.BYTES: (" (MiB)", 2**-20, ",.0f"),
    Unit.GIGABYTE_HOURS: (" (GB h)", 1, ",.1f"),
    Unit.KILOWATT_HOURS: (" (kWh)", 1, ",.1f"),
}
"""How a value is shown: the unit after the heading, the factor, and the format in Markdown."""

_MARKUP = re.compile(r"[\\`*\[\]<>|&~@#!$]|:(?=//)|(?<![^\W_])_|_(?![^\W_])|(?<=www)\.", re.IGNORECASE)
"""Characters that could begin markup or a link; an underscore within a word does not."""


@dataclass(frozen=True, slots=True)
class Period:
    """A time range, in seconds since the epoch."""

    start: float
    end: float

    @property
    def duration(self) -> str:
        """Its length in PromQL."""
        return f"{self.end - self.start:.0f}s"


@dataclass(frozen=True, slots=True)
class Table:
    """The rows of an answer: the labels, and the value of each column, which is None if it is unknown."""

    answer: Answer
    rows: Sequence[tuple[Sequence[str], Sequence[float | None]]]

    def total(self, heading: str) -> str:
        """Return the sum of a column as text."""
        number = [column.heading for column in self.answer.columns].index(heading)
        known = _sum(values[number] for _, values in self.rows)
        return "unknown" if known is None else f"{known:,.2f}"


def period(months: int | None, days: int | None, now: float) -> Period:
    """Return the last `days`, or a month in UTC as its number since the year 0, or by default the last complete month.

    The current month ends now. ConfigError if the month has not begun.
    """
    if days is not None:
        return Period(now - 86_400 * days, now)
    year, month = map(int, utc_time(now)[:7].split("-"))
    if months is None:
        months = 12 * year + month - 2
    start, end = (calendar.timegm((each // 12, each % 12 + 1, 1, 0, 0, 0)) for each in (months, months + 1))
    if start >= now:
        raise ConfigError("--month: this month has not begun")
    return Period(start, min(end, now))


def table(answer: Answer, ask: Callable[[str], Vector], of: Period, selector: str, limit: int | None = None) -> Table:
    """Ask the queries of an answer, and return its rows."""
    first, *others = (ask(query) for query in answer.queries(of.duration, selector, limit))

    def key(labels: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(labels.get(label, "") for label in answer.labels)

    known = [{key(labels): value for labels, value in vector} for vector in others]
    return Table(
        answer, [(key(labels), [value, *(each.get(key(labels)) for each in known)]) for labels, value in first]
    )


def accounts_of(text: str) -> Mapping[str, str]:
    """Return the account of each Slurm job, by `sacct -X -n -P -o JobIDRaw,Account`. ConfigError names a wrong line."""
    accounts = {}
    for number, line in enumerate(text.splitlines(), start=1):
        job, separator, account = line.strip().partition("|")
        if not separator or not job[:1].isdecimal():
            wanted = "the output of `sacct -X -n -P -o JobIDRaw,Account`"
            raise ConfigError(f"--accounts: line {number}: expected {wanted}: JOB|ACCOUNT")
        accounts[job] = account
    return accounts


def cost_by_account(jobs: Table, accounts: Mapping[str, str]) -> Table:
    """Return the cost by account, from that of all jobs. ConfigError if jobs of several clusters could be confused."""
    if len(clusters := {labels[0] for labels, _ in jobs.rows}) > 1:
        names = ", ".join(map(printable, sorted(clusters)))
        raise ConfigError(f"--accounts: there are jobs of several clusters ({names}); choose one with --selector")
    of_account: dict[str, list[Sequence[float | None]]] = {}
    for (_, job, _), values in jobs.rows:
        of_account.setdefault(accounts.get(job, ""), []).append(values)
    sums = {account: [_sum(column) for column in zip(*rows, strict=True)] for account, rows in of_account.items()}
    answer = replace(
        COST_BY_JOB,
        key="cost_by_account",
        title="Cost by Slurm account",
        meaning=f"{COST_BY_JOB.meaning} Without account: jobs that the file of --accounts does not have.",
        labels={"account": "Account"},
    )
    rows = sorted(sums.items(), key=lambda each: each[1][0] or 0, reverse=True)
    return Table(answer, [((account,), values) for account, values in rows])


def as_markdown(clusters: Table, tables: Sequence[Table], of: Period) -> Iterator[str]:
    """Yield the lines of the report: the period and the total of the clusters, then the tables."""
    start, end = (utc_time(at)[:16].replace("T", " ") for at in (of.start, of.end))
    yield "# GPU use and faults of CUDA MPS"
    yield ""
    yield f"- Period: {start} to {end} UTC"
    if names := ", ".join(_markdown(printable(name)) for (name,), _ in clusters.rows if name):
        yield f"- Clusters: {names}"
    yield (
        f"- Total: {clusters.total('GPU time')} GPU hours; cost of use {clusters.total('Cost of use')},"
        f" of idle time {clusters.total('Cost of idle time')}"
    )
    for each in tables:
        yield from ["", f"## {each.answer.title}", "", each.answer.meaning, ""]
        yield from _markdown_table(each) if each.rows else ["None."]
        if len(each.rows) == LIMIT:
            yield from ["", f"At most {LIMIT} rows are shown. `--format csv` prints all."]


def _markdown_table(of: Table) -> Iterator[str]:
    """Yield the lines of a table, with padding, so that it can be read as plain text too."""
    padded = []
    for heading, pad, cells in _columns(of, _markdown):
        width = max(3, *map(len, (heading, *cells)))
        rule = "-" * width if pad is str.ljust else f"{'-' * (width - 1)}:"
        padded.append([pad(heading, width), rule, *(pad(cell, width) for cell in cells)])
    yield from (f"| {' | '.join(line)} |" for line in zip(*padded, strict=True))


def csv_rows(tables: Sequence[Table]) -> Iterator[Sequence[str]]:
    """Yield the rows of the tables: the headings of each, then its rows, which begin with the key of the answer."""
    for each in tables:
        columns = list(_columns(each, _no_formula, exact=True))
        yield ["answer", *(heading for heading, _, _ in columns)]
        yield from ([each.answer.key, *row] for row in zip(*(cells for _, _, cells in columns), strict=True))


def _columns(
    of: Table, name: Callable[[str], str], *, exact: bool = False
) -> Iterator[tuple[str, Callable[[str, int], str], Sequence[str]]]:
    """Yield the heading, the alignment and the cells of each column that is shown."""
    for number, (label, heading) in enumerate(of.answer.labels.items()):
        cells = [labels[number] for labels, _ in of.rows]
        if heading and (exact or label != "cluster" or any(cells)):
            yield heading, str.ljust, [name(printable(cell)) or ("" if exact else "(none)") for cell in cells]
    for number, column in enumerate(of.answer.columns):
        if column.unit is Unit.RISK:
            unit, texts = "", [None if (risk := row[number]) is None else _RISKS[int(risk)] for _, row in of.rows]
        else:
            unit, factor, form = _FORMS[column.unit]
            form = ".10g" if exact else form
            texts = [None if (value := row[number]) is None else f"{value * factor:{form}}" for _, row in of.rows]
        yield f"{column.heading}{unit}", str.rjust, [text or "" for text in texts]


def _sum(values: Iterable[float | None]) -> float | None:
    """Return the sum of the known values, or None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) if known else None


def _markdown(name: str) -> str:
    return _MARKUP.sub(r"\\\g<0>", name)


def _no_formula(name: str) -> str:
    return f"'{name}" if name.startswith(("=", "+", "-", "@")) else name
