"""The report's periods, tables and errors, with a stand-in for Prometheus."""

import csv
import io
import json
import re
import socket
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.parameters import Parameters
from dashboards.recording import groups
from exporter.cli import main
from exporter.errors import ConfigError
from exporter.fleet.answers import ANSWERS, COST_BY_JOB, COST_BY_USER, IDLE_BY_CLUSTER, LIMIT, SIZES, Answer
from exporter.fleet.report import Period, Table, accounts_of, as_markdown, cost_by_account, csv_rows, period, table
from exporter.web.pages import Answer as Page
from exporter.web.pages import Request
from tests.ports import LOCALHOST
from tests.promql import problems, selectors
from tests.web.serving import Web, serving

Run = Callable[..., tuple[int, str, str]]

OCTOBER = Period(timegm((2026, 10, 1, 0, 0, 0)), timegm((2026, 11, 1, 0, 0, 0)))
HOSTILE = "=ml|x`<b>[a](http://x)_\n"
CLUSTERS = Table(IDLE_BY_CLUSTER, [(("a",), [1.0, 2.0, 3.0, 0.5, 4.0, 0.1, 1.0])])


def test_the_default_is_the_last_complete_month() -> None:
    assert period(None, None, OCTOBER.end + 1) == OCTOBER
    assert period(None, None, timegm((2027, 1, 31, 0, 0, 0))).end == timegm((2027, 1, 1, 0, 0, 0))
    assert OCTOBER.duration == "2678400s"


def test_the_current_month_ends_now() -> None:
    november = 12 * 2026 + 10
    assert period(november, None, OCTOBER.end + 7) == Period(OCTOBER.end, OCTOBER.end + 7)
    with pytest.raises(ConfigError, match="has not begun"):
        period(november, None, OCTOBER.end)


def test_days_end_now() -> None:
    assert period(None, 2, 200_000.0) == Period(27_200.0, 200_000.0)


def test_values_are_joined_by_labels_and_an_unknown_one_stays_unknown() -> None:
    asked = list[str]()

    def ask(query: str) -> Sequence[tuple[Mapping[str, str], float]]:
        asked.append(query)
        many = [({"user": "ann"}, 2.0), ({"user": "bob"}, 1.0), ({}, 0.5)]
        return many if len(asked) == 1 else [({"user": "bob"}, 7.0)] if len(asked) == 2 else []

    found = table(COST_BY_USER, ask, OCTOBER, 'cluster="a"')

    assert found.rows == [
        (("ann",), [2.0, None, None, None, None, None]),
        (("bob",), [1.0, 7.0, None, None, None, None]),
        (("",), [0.5, None, None, None, None, None]),
    ]
    assert all('{cluster="a"}[2678400s]' in query for query in asked)
    assert not any(re.search(r"\$(by|range|selector)", query) for query in asked)


def markdown(found: Table) -> list[str]:
    """Return the lines of a table."""
    lines = list(as_markdown(CLUSTERS, [found], OCTOBER))
    return lines[lines.index(f"## {found.answer.title}") + 4 :]


def test_shows_values_in_their_units() -> None:
    values = [24.0, 1.0, 0.13, 0.2, None, 10 * 2.0**30, 12 * 2.0**30, 5.0, 2.0]
    found = Table(SIZES, [(("", "web", "pod", "ranker"), values)])

    heading, rule, line = markdown(found)

    assert [cell.strip() for cell in heading.split("|")[1:4]] == ["Namespace", "Kind", "Application"]
    assert [cell.strip() for cell in line.split("|")[1:-1]] == [
        *("web", "pod", "ranker", "24.0", "100", "13", "20", "", "10,240", "12,288", "5", "suspected"),
    ]
    assert re.fullmatch(r"\| -+ \| -+ \| -+ (\| -+: ){9}\|", rule)
    assert [*csv_rows([found])][1][-3:] == ["12288", "5", "suspected"]


def test_the_head_has_period_clusters_and_total() -> None:
    assert list(as_markdown(CLUSTERS, [], OCTOBER))[2:] == [
        "- Period: 2026-10-01 00:00 to 2026-11-01 00:00 UTC",
        "- Clusters: a",
        "- Total: 3.00 GPU hours; cost of use 4.00, of idle time 2.00",
    ]
    unknown = Table(IDLE_BY_CLUSTER, [(("",), [1.0, None, 3.0, None, None, None, None])])
    assert list(as_markdown(unknown, [], OCTOBER))[3:] == [
        "- Total: 3.00 GPU hours; cost of use unknown, of idle time unknown",
    ]


def test_an_answer_without_rows_is_stated() -> None:
    assert markdown(Table(COST_BY_USER, [])) == ["None."]
    assert [*csv_rows([Table(COST_BY_USER, [])])] == [
        ["answer", "User", "SM time (h)", "Cost", *RESERVED, "Memory (GB h)", "Energy (kWh)"],
    ]


def test_says_that_rows_can_be_missing() -> None:
    rows = [((f"user{number}",), 6 * [1.0]) for number in range(LIMIT)]
    note = "At most 50 rows are shown. `--format csv` prints all."
    assert markdown(Table(COST_BY_USER, rows))[-2:] == ["", note]
    assert note not in markdown(Table(COST_BY_USER, rows[1:]))


@given(name=st.text() | st.sampled_from([HOSTILE, "https://x", "www.x", "WWW.x", "\\|", "_a_", "-1", "@SUM(A1)"]))
def test_no_name_breaks_a_table_or_becomes_markup_or_a_formula(name: str) -> None:
    found = Table(COST_BY_USER, [((name,), [float(each) for each in range(1, 7)])])

    lines = markdown(found)

    assert len(lines) == 3
    assert "\n" not in lines[2]
    unescaped = re.sub(r"\\[\W_]", "", lines[2])
    assert unescaped.count("|") == 8
    assert not re.search(r"[\\`<>\[\]*&@~]|://|www\.|\b_|_\b", unescaped, re.IGNORECASE)
    text = io.StringIO()
    csv.writer(text).writerows(csv_rows([found]))
    _, row = csv.reader(io.StringIO(text.getvalue(), newline=""))
    assert len(row) == 8
    assert row[0] == "cost_by_user"
    assert not row[1].startswith(("=", "+", "-", "@", "\t", "\r"))


def test_names_stay_readable() -> None:
    assert [line.split("|")[1].strip() for line in markdown(Table(COST_BY_USER, [(("svc_ml-2",), [1.0] * 6)]))] == [
        *("User", "--------", "svc_ml-2"),
    ]


RESERVED = ("Reserved (h)", "Cost of reservation")

JOBS = Table(
    COST_BY_JOB,
    [
        (("a", "1", "ann"), [1.0, 10.0, None, None, None, None]),
        (("a", "2", "ann"), [2.0, 20.0, None, None, 5.0, None]),
        (("a", "3", "bob"), [4.0, None, None, None, None, None]),
    ],
)


def test_adds_the_cost_of_jobs_by_account() -> None:
    accounts = accounts_of("1|physics\n2|physics\n7|other\n")

    found = cost_by_account(JOBS, accounts)

    assert found.rows == [(("",), [4.0, *5 * [None]]), (("physics",), [3.0, 30.0, None, None, 5.0, None])]
    assert [row[0] for row in csv_rows([found])] == ["answer", "cost_by_account", "cost_by_account"]


def test_does_not_confuse_jobs_of_two_clusters() -> None:
    both = Table(COST_BY_JOB, [*JOBS.rows, (("b", "1", "eve"), [1.0] * 6)])
    with pytest.raises(ConfigError, match=r"several clusters \(a, b\); choose one with --selector"):
        cost_by_account(both, {})


def test_names_a_wrong_line_of_the_accounts() -> None:
    for text in ("1|a\nJobIDRaw|Account", "1 a"):
        with pytest.raises(ConfigError, match=r"line \d: expected the output of `sacct"):
            accounts_of(text)


# The command


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Return a function that runs `report`, and returns its exit code, stdout and stderr."""

    def ran(*arguments: str) -> tuple[int, str, str]:
        code = main(["report", *arguments])
        output = capsys.readouterr()
        return code, output.out, output.err

    return ran


@pytest.fixture
def server() -> Iterator[Web]:
    """A web server, which answers as a test sets it."""
    with serving() as web:
        yield web


def result(*samples: tuple[Mapping[str, str], float], **more: object) -> Page:
    """Return an answer of Prometheus."""
    found = [{"metric": labels, "value": [1.5, str(value)]} for labels, value in samples]
    data = {"resultType": "vector", "result": found}
    return Page(HTTPStatus.OK, json.dumps({"status": "success", "data": data, **more}).encode())


def answers(web: Web, page: Page | Callable[[Request], Page]) -> str:
    """Let the server answer so, and return its URL."""
    web.replaceable.answer = page if callable(page) else lambda _: page  # type: ignore[method-assign]
    return f"http://{LOCALHOST}:{web.server.port}"


def test_asks_below_the_path_of_the_url_at_the_end_of_the_month(run: Run, server: Web) -> None:
    asked = list[tuple[str, Mapping[str, list[str]]]]()

    def answer(request: Request) -> Page:
        asked.append((request.page, parse_qs(request.query)))
        return result(({"cluster": "a", "user": HOSTILE}, 1.0))

    url = answers(server, answer)
    code, text, problem = run("--prometheus", f"{url}/prometheus/", "--month", "2026-10", "--selector", 'cluster="a"')

    assert (code, problem) == (0, "")
    assert {page for page, _ in asked} == {"/prometheus/api/v1/query"}
    assert {query["time"][0] for _, query in asked} == {f"{OCTOBER.end:.0f}"}
    assert sorted(query["query"][0] for _, query in asked) == sorted(
        query for each in ANSWERS for query in each.queries("2678400s", 'cluster="a"')
    )
    assert [line.removeprefix("## ") for line in text.splitlines() if line.startswith("## ")] == [
        each.title for each in ANSWERS
    ]
    assert "<b>" not in text


def test_prints_one_answer_as_csv_with_the_cost_by_account(run: Run, server: Web, tmp_path: Path) -> None:
    file = tmp_path / "accounts"
    file.write_text("7|physics\n")
    asked = list[str]()

    def answer(request: Request) -> Page:
        asked.extend(parse_qs(request.query)["query"])
        return result(({"cluster": "a", "user": "ann", "application": "7"}, 1.0))

    url = answers(server, answer)
    code, text, _ = run(
        *("--prometheus", url, "--days", "1", "--format", "csv", "--answer", "cost_by_user", "--accounts", str(file))
    )

    assert code == 0
    assert [*csv.reader(text.splitlines())] == [
        ["answer", "User", "SM time (h)", "Cost", *RESERVED, "Memory (GB h)", "Energy (kWh)"],
        ["cost_by_user", "ann", *6 * ["1"]],
        ["answer", "Account", "SM time (h)", "Cost", *RESERVED, "Memory (GB h)", "Energy (kWh)"],
        ["cost_by_account", "physics", *6 * ["1"]],
    ]
    assert not any("topk" in query for query in asked)


def test_reports_what_is_wrong_with_the_server_and_what_to_do(run: Run, server: Web, subtests: pytest.Subtests) -> None:
    refused = json.dumps({"status": "error", "error": "1:1: parse error\x1b"}).encode()
    for page, expected in (
        (result(), "has no recorded series of this period; load cuda-mps.recording.yml there"),
        (result(warnings=["a store is down"]), "the answer is incomplete: ['a store is down']; try again"),
        (result(isPartial=True), "the answer is incomplete"),
        (Page(HTTPStatus.OK, b'{"data": {}}'), "no API of Prometheus answers there; check host, port and path"),
        (Page(HTTPStatus.OK, b'{"data": {"result": [{"metric": {}}]}}'), "no API of Prometheus answers there"),
        (Page(HTTPStatus.NOT_FOUND, b"not found"), "no API of Prometheus answers there (HTTP 404); check host, port"),
        (Page(HTTPStatus.BAD_REQUEST, refused), "1:1: parse error\N{REPLACEMENT CHARACTER} (HTTP 400); check --sel"),
        (Page(HTTPStatus.SERVICE_UNAVAILABLE, b'{"error": "timed out"}'), "timed out (HTTP 503); check --selector, or"),
        (Page(HTTPStatus.SERVICE_UNAVAILABLE, b""), "the server is busy (HTTP 503); try again"),
    ):
        with subtests.test(expected=expected):
            url = answers(server, page)
            code, text, problem = run("--prometheus", url)
            assert (code, text) == (1, "")
            assert problem.startswith(f"cuda-mps-exporter: {url}")
            assert expected in problem


def test_reports_that_nothing_listens(run: Run) -> None:
    with socket.socket() as bound:
        bound.bind((LOCALHOST, 0))
        code, _, problem = run("--prometheus", f"http://{LOCALHOST}:{bound.getsockname()[1]}")

    assert code == 1
    assert "cannot connect: Connection refused; check that Prometheus runs there" in problem


def test_rejects_invalid_arguments(run: Run, tmp_path: Path, subtests: pytest.Subtests) -> None:
    url = ("--prometheus", "http://prometheus:9090")
    for arguments, expected in {
        ("--prometheus", "prometheus:9090"): "--prometheus: expected an address such as http://prometheus:9090",
        ("--prometheus", "http://x/api/v1"): "--prometheus: expected the address without a page",
        ("--prometheus", "http://a:secret@x"): "--prometheus: other users can see a password",
        (*url, "--answer", "all"): "--answer: expected one of idle_by_cluster, cost_by_namespace, ",
        (*url, "--month", "2099-12"): "--month: this month has not begun",
        (*url, "--accounts", str(tmp_path)): f"--accounts {tmp_path}: cannot be read: Is a directory",
    }.items():
        with subtests.test(arguments=arguments):
            code, _, problem = run(*arguments)
            assert code == 2
            assert expected in problem
            assert "secret" not in problem
    for month in ("2026-13", "2026-00", "2026", "26-10", "2026-1", "0000-01"):
        with subtests.test(month=month), pytest.raises(SystemExit, match="2"):
            run(*url, "--month", month)


def test_answers_have_different_keys_and_titles() -> None:
    for names in ([each.key for each in ANSWERS], [each.title for each in ANSWERS]):
        assert len({*names}) == len(names) > 10


def test_queries_use_existing_recorded_series_and_labels(subtests: pytest.Subtests) -> None:
    recorded = {rule.record for group in groups(Parameters()) for rule in group.rules}
    for answer in ANSWERS:
        for query in answer.queries("1h", 'cluster="a"'):
            with subtests.test(query=query):
                assert problems(query) == []
                assert {each.name for each in selectors(query)} <= recorded


def test_a_column_asks_for_the_rows_of_the_first() -> None:
    answer = Answer("k", "t", "m", {"a": "A", "b": ""}, COST_BY_USER.columns[:2])
    first, second = answer.queries("1h", "", limit=3)
    used, reserved = (
        f"sum by (a, b) (sum_over_time(application:cuda_mps_{name}:increase10m{{}}[1h]))"
        for name in ("sm_seconds", "requested_sm_seconds")
    )
    rows = f"topk(3, ({used} or 0 * {reserved}) / 3600)"
    assert first == f"sort_desc({rows})"
    assert second.endswith(f" and on (a, b) {rows}")
