"""`report`: the answers about a fleet, from Prometheus or a store with its HTTP API."""

import csv
import sys
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path

from exporter.clock import SystemClock
from exporter.config.settings import Config
from exporter.errors import ConfigError, ServiceError
from exporter.fleet.answers import ANSWERS, COST_BY_JOB, IDLE_BY_CLUSTER, LIMIT, Answer
from exporter.fleet.report import Table, accounts_of, as_markdown, cost_by_account, csv_rows, period, table
from exporter.remote_client import Prometheus
from exporter.terminal import progress

QUERY_SECONDS = 130.0
"""Time for one query. Prometheus ends a query after two minutes."""


def report(arguments: Namespace, _: Config) -> int:
    """Print the answers of a period."""
    wanted = [each for each in ANSWERS if arguments.answer in (None, each.key)]
    if not wanted:
        raise ConfigError(f"--answer: expected one of {', '.join(each.key for each in ANSWERS)}")
    accounts = None if arguments.accounts is None else accounts_of(_text(arguments.accounts))
    server = Prometheus(arguments.prometheus, arguments.cert, timeout=QUERY_SECONDS)
    of = period(arguments.month, arguments.days, SystemClock().now())
    limit = None if arguments.format == "csv" else LIMIT

    def ask(query: str) -> list[tuple[Mapping[str, str], float]]:
        return server.vector(query, of.end)

    def asked(answer: Answer, limit: int | None = limit) -> Table:
        return table(answer, ask, of, arguments.selector, limit)

    with progress(sys.stderr, "Asking Prometheus ..."):
        clusters = asked(IDLE_BY_CLUSTER)
        if not clusters.rows:
            raise ServiceError(
                f"{server.url} has no recorded series of this period; load cuda-mps.recording.yml there, wait"
                " 20 minutes, and check --selector and the period"
            )
        tables = [clusters if each is IDLE_BY_CLUSTER else asked(each) for each in wanted]
        if accounts is not None:
            tables.append(cost_by_account(asked(COST_BY_JOB, None), accounts))
    if arguments.format == "csv":
        csv.writer(sys.stdout).writerows(csv_rows(tables))
    else:
        print("\n".join(as_markdown(clusters, tables, of)))
    return 0


def _text(file: str) -> str:
    try:
        return Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"--accounts {file}: cannot be read: {getattr(error, 'strerror', error)}") from error
