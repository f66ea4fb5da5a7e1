"""Print answers about a fleet for a period, from recorded series, as Markdown for e-mail or as CSV.

It is a script, and needs only Python's standard library. Workloads choose names, so each name is escaped: it
cannot break a table, become markup or a link, or be a formula of a spreadsheet.
"""

import argparse
import calendar
import csv
import gc
import io
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

if not __package__:
    # A script finds only the modules beside it.
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from dashboards.answers import ANSWERS, COST_BY_JOB, IDLE_BY_CLUSTER, LIMIT, Answer, Unit
from dashboards.prometheus_api import Prometheus, ReportError, UsageError, Vector, printable

QUERY_SECONDS = 130.0
"""Time for one query. Prometheus ends a query after two minutes."""
MOST_DAYS = 3650

_RISKS: Mapping[float | None, str] = {0: "low", 1: "little data", 2: "suspected"}
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

_MARKUP = re.compile(
    r"[\\`*\[\]<>|&~#!$^=]|:(?=//)|(?<=/)/|(?<![^\W_])_|_(?![^\W_])|\.(?=[^\W\d_])|(?<=www)\.", re.IGNORECASE
)
"""Characters that could begin markup or a link. Many renderers make links of addresses and domains in plain text."""

_FORMULA = re.compile("(?:^|(?<=[;,|]))(?=[\\s\"']*[=+@\uff1d\uff0b\uff20\uff0d-])")
"""Where a spreadsheet could read a formula, also if it ignores quotes or splits cells at another separator."""


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

    The current month ends now. UsageError if the month has not begun.
    """
    if days is not None:
        return Period(now - 86_400 * days, now)
    year, month = time.gmtime(now)[:2]
    if months is None:
        months = 12 * year + month - 2
    start, end = (calendar.timegm((each // 12, each % 12 + 1, 1, 0, 0, 0)) for each in (months, months + 1))
    if start >= now:
        raise UsageError("--month: this month has not begun")
    return Period(start, min(end, now))


def table(answer: Answer, ask: Callable[[str], Vector], of: Period, selector: str, limit: int | None = None) -> Table:
    """Ask the queries of an answer, and return its rows."""
    found, *others = (ask(query) for query in answer.queries(of.duration, selector, limit))

    def key(labels: Mapping[str, str]) -> tuple[str, ...]:
        return tuple(labels.get(label, "") for label in answer.labels)

    known = [{key(labels): value for labels, value in vector} for vector in others]
    return Table(
        answer, [(key(labels), [value, *(each.get(key(labels)) for each in known)]) for labels, value in found]
    )


def accounts_of(text: str) -> Mapping[str, str]:
    """Return the account of each Slurm job, by `sacct -X -n -P -o JobIDRaw,Account`. UsageError names a wrong line."""
    accounts = {}
    for number, line in enumerate(text.splitlines(), start=1):
        job, separator, account = line.strip().partition("|")
        if not separator or not job[:1].isdecimal():
            wanted = "the output of `sacct -X -n -P -o JobIDRaw,Account`"
            raise UsageError(f"--accounts: line {number}: expected {wanted}: JOB|ACCOUNT")
        accounts[job] = account
    return accounts


def cost_by_account(jobs: Table, accounts: Mapping[str, str]) -> Table:
    """Return the cost by account, from that of all jobs. UsageError if jobs of several clusters could be confused."""
    if len(clusters := {labels[0] for labels, _ in jobs.rows}) > 1:
        names = printable(", ".join(sorted(clusters)))
        raise UsageError(f"--accounts: there are jobs of several clusters ({names}); choose one with --selector")
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
    start, end = (time.strftime("%Y-%m-%d %H:%M", time.gmtime(at)) for at in (of.start, of.end))
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
            unit, texts = "", [_RISKS.get(row[number]) for _, row in of.rows]
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
    # cmark-gfm and GitHub make a link of an address with an escaped @ too.
    return _MARKUP.sub(r"\\\g<0>", name).replace("@", "\N{FULLWIDTH COMMERCIAL AT}")


def _no_formula(name: str) -> str:
    return _FORMULA.sub("'", name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the report and return the exit code. 1: failure. 2: wrong usage."""
    try:
        text = _report(parser().parse_args(arguments))
        encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
        print(text.encode(encoding, "replace").decode(encoding), end="", flush=True)
    except ReportError as error:
        print(f"report.py: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        if not isinstance(error, BrokenPipeError):
            print(f"report.py: the output cannot be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _report(options: argparse.Namespace) -> str:
    """Ask the answers of a period, and return them as text."""
    wanted = [each for each in ANSWERS if options.answer in (None, each.key)]
    accounts = None if options.accounts is None else accounts_of(_text(options.accounts))
    server = Prometheus(options.prometheus, options.cert, timeout=QUERY_SECONDS)
    of = period(options.month, options.days, time.time())

    def asked(answer: Answer, limit: int | None = None if options.format == "csv" else LIMIT) -> Table:
        return table(answer, lambda query: server.vector(query, of.end, limit), of, options.selector, limit)

    if sys.stderr and sys.stderr.isatty():
        print("Asking Prometheus ...", file=sys.stderr)
    clusters = asked(IDLE_BY_CLUSTER)
    if not clusters.rows:
        raise ReportError(
            f"{server.url} has no recorded series of this period; load cuda-mps.recording.yml there, wait"
            " 20 minutes, and check --selector and the period"
        )
    tables = [clusters if each is IDLE_BY_CLUSTER else asked(each) for each in wanted]
    if accounts is not None:
        tables.append(cost_by_account(asked(COST_BY_JOB, None), accounts))
    if options.format == "markdown":
        return "".join(f"{line}\n" for line in as_markdown(clusters, tables, of))
    text = io.StringIO(newline="")
    csv.writer(text).writerows(csv_rows(tables))
    return text.getvalue()


def _text(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError(f"--accounts {file}: cannot be read: {getattr(error, 'strerror', error)}") from error


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(
        prog="report.py",
        description="Print cost, faults and service level of many nodes. It needs the series of"
        " cuda-mps.recording.yml. Times are in UTC.",
        epilog="Example: python3 dashboards/report.py --prometheus http://prometheus:9090 --month 2026-10",
        allow_abbrev=False,
    )
    add = made.add_argument
    meaning = "Ask Prometheus, or a store with its HTTP API, at this address. User and password are in ~/.netrc."
    meaning += " SSL_CERT_FILE names the file of its CA."
    add("--prometheus", metavar="URL", required=True, help=meaning)
    add("--cert", metavar="FILE", help="Client certificate and its key (PEM) for --prometheus.")
    since = made.add_mutually_exclusive_group()
    meaning = "Month of the report. (default: the last complete month)"
    since.add_argument("--month", type=_month, metavar="YYYY-MM", help=meaning)
    since.add_argument("--days", type=_days, metavar="N", help="Report the last N days.")
    add("--selector", default="", metavar="MATCHERS", help="Use only series with labels: 'cluster=\"eu\"'.")
    meaning = "Print only this answer, by its key in CSV, such as cost_by_namespace."
    add("--answer", metavar="KEY", choices=[each.key for each in ANSWERS], help=meaning)
    add("--format", choices=("markdown", "csv"), default="markdown", help="Format. (default: markdown)")
    meaning = "Add the cost by Slurm account, from the output of `sacct -X -n -P -o JobIDRaw,Account`."
    add("--accounts", metavar="FILE", help=meaning)
    return made


def _days(text: str) -> int:
    if not re.fullmatch(r"[1-9]\d{,3}", text, re.ASCII) or int(text) > MOST_DAYS:
        raise argparse.ArgumentTypeError(f"expected an integer from 1 to {MOST_DAYS}")
    return int(text)


def _month(text: str) -> int:
    """Return the number of a month since the year 0."""
    found = re.fullmatch(r"((?:19[7-9]|20\d)\d)-(0[1-9]|1[0-2])", text, re.ASCII)
    if found is None:
        raise argparse.ArgumentTypeError("expected a month such as 2026-10")
    return 12 * int(found[1]) + int(found[2]) - 1


if __name__ == "__main__":
    gc.disable()  # the rows have no cycles, and it would take half of the time
    sys.exit(main())
