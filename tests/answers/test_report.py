"""The report's periods, tables, names and errors, with a stand-in for Prometheus."""

import csv
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from calendar import timegm
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from urllib.parse import parse_qs

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dashboards.answers import ANSWERS, COST_BY_JOB, COST_BY_USER, IDLE_BY_CLUSTER, LIMIT, SIZES, Answer
from dashboards.parameters import Parameters
from dashboards.prometheus_api import UsageError
from dashboards.recording import groups
from dashboards.report import Period, Table, accounts_of, as_markdown, cost_by_account, csv_rows, period, table
from exporter.web.pages import Answer as Page
from exporter.web.pages import Request
from tests.answers.conftest import Run, Serve, one_line
from tests.promql import problems, selectors

ROOT = Path(__file__).parents[2]
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
    with pytest.raises(UsageError, match="has not begun"):
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


NAMES = (
    r"https://x HTTPS://x ftp://x //x.example www.x WWW.1 x.com train.py a@b.example mailto:a@b.c <a@b.c> <img/src=x>"
    r" ![a](b) `a` \| \`a` _a_ ~~a~~ ==a== a^2^ &lt;"
)
FORMULAS = (
    '=1+1~+1~-1~@SUM(A1)~\t=1~\r=1~ =1~"=1~\'=1~\uff1d1+1~a;=1~a;"=1~a|@x~|=1~a,+1~;;=1~\ufeff=1~\xa0=1'
    '~a; =HYPERLINK("http://x")'
)


def of_a_user(name: str) -> Table:
    """Return a table with one name and known values."""
    return Table(COST_BY_USER, [((name,), [float(each) for each in range(1, 7)])])


@given(name=st.text() | st.sampled_from([HOSTILE, *NAMES.split()]))
def test_no_name_breaks_a_table_or_becomes_markup_or_a_link(name: str) -> None:
    lines = markdown(of_a_user(name))

    assert len(lines) == 3
    assert "\n" not in lines[2]
    unescaped = re.sub(r"\\[\W_]", ",", lines[2])
    assert unescaped.count("|") == 8
    assert not re.search(r"[\\`<>\[\]*&~!#$^=]|//|\.[a-z]|www\.|\b_|_\b", unescaped, re.IGNORECASE)
    assert "@" not in lines[2], "renderers make a link of an escaped address too"


@given(name=st.text(alphabet="=+-@;,|'\" \t\ra\uff1d") | st.text())
@example(name="a;'=1")
def test_no_name_is_a_formula(name: str) -> None:
    for each in (name, *FORMULAS.split("~")):
        text = io.StringIO()
        csv.writer(text).writerows(csv_rows([of_a_user(each)]))
        _, row = csv.reader(io.StringIO(text.getvalue(), newline=""))
        assert len(row) == 8
        assert row[0] == "cost_by_user"
        # A program that takes other separators, or removes blanks and quotes, finds none either.
        for cell in re.split("[;,|]", row[1]):
            assert not re.match('[\\s"]*[=+@\uff1d\uff0b\uff20\uff0d-]', cell)


def test_names_stay_readable() -> None:
    assert markdown(of_a_user("svc_ml-2"))[2].startswith("| svc_ml-2 | ")


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
    with pytest.raises(UsageError, match=r"several clusters \(a, b\); choose one with --selector"):
        cost_by_account(both, {})


def test_names_a_wrong_line_of_the_accounts() -> None:
    for text in ("1|a\nJobIDRaw|Account", "1 a"):
        with pytest.raises(UsageError, match=r"line \d: expected the output of `sacct"):
            accounts_of(text)


# The script


def result(*samples: tuple[Mapping[str, str], float | str], **more: object) -> Page:
    """Return an answer of Prometheus."""
    found = [{"metric": labels, "value": [1.5, str(value)]} for labels, value in samples]
    data = {"resultType": "vector", "result": found}
    return Page(HTTPStatus.OK, json.dumps({"status": "success", "data": data, **more}).encode())


def test_asks_below_the_path_of_the_url_at_the_end_of_the_month(run: Run, answers: Serve) -> None:
    asked = list[tuple[str, Mapping[str, list[str]]]]()

    def answer(request: Request) -> Page:
        asked.append((request.page, parse_qs(request.query)))
        return result(({"cluster": "a", "user": HOSTILE}, 1.0))

    url = answers(answer)
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


def test_prints_one_answer_as_csv_with_the_cost_by_account(run: Run, answers: Serve, tmp_path: Path) -> None:
    file = tmp_path / "accounts"
    file.write_text("7|physics\n")
    asked = list[str]()

    def answer(request: Request) -> Page:
        asked.extend(parse_qs(request.query)["query"])
        return result(({"cluster": "a", "user": "ann", "application": "7"}, 1.0))

    url = answers(answer)
    code, text, _ = run(
        *("--prometheus", url, "--days", "1", "--format", "csv", "--answer", "cost_by_user", "--accounts", str(file))
    )

    assert code == 0
    assert [*csv.reader(text.removesuffix("\r\n").split("\r\n"))] == [
        ["answer", "User", "SM time (h)", "Cost", *RESERVED, "Memory (GB h)", "Energy (kWh)"],
        ["cost_by_user", "ann", *6 * ["1"]],
        ["answer", "Account", "SM time (h)", "Cost", *RESERVED, "Memory (GB h)", "Energy (kWh)"],
        ["cost_by_account", "physics", *6 * ["1"]],
    ]
    assert not any("topk" in query for query in asked)


OTHER = "no API of Prometheus answers there; check host, port and path"


def test_a_wrong_answer_is_one_line_with_what_to_do(run: Run, answers: Serve, subtests: pytest.Subtests) -> None:
    def sample(text: str) -> Page:
        return Page(HTTPStatus.OK, f'{{"data": {{"result": [{text}]}}}}'.encode())

    metric = '{"metric": {"cluster": "a"}, "value": '
    refused = json.dumps({"status": "error", "error": "1:1: parse error\x1b\n"}).encode()
    pages = (
        (result(), "has no recorded series of this period; load cuda-mps.recording.yml there"),
        (result(warnings=["a store is down\x1b[2J"]), "the answer is incomplete: ['a store is down"),
        (result(isPartial=True), "the answer is incomplete"),
        (Page(HTTPStatus.OK, b'{"warnings": ' + b"[" * 500 + b"]" * 500 + b"}"), "the answer is incomplete: [[[["),
        (Page(HTTPStatus.NOT_FOUND, b"not found"), "no API of Prometheus answers there (HTTP 404); check host, port"),
        (Page(HTTPStatus.FOUND, b"", headers={"Location": "http://x/"}), "answers there (HTTP 302)"),
        (Page(HTTPStatus.INTERNAL_SERVER_ERROR, b"{"), "no API of Prometheus answers there (HTTP 500)"),
        (Page(HTTPStatus.BAD_REQUEST, refused), "1:1: parse error\N{REPLACEMENT CHARACTER}"),
        (Page(HTTPStatus.BAD_REQUEST, b'{"error": {"a": 1}}'), "no API of Prometheus answers there (HTTP 400)"),
        (Page(HTTPStatus.SERVICE_UNAVAILABLE, b'{"error": "timed out"}'), "timed out (HTTP 503); check --selector, or"),
        (Page(HTTPStatus.SERVICE_UNAVAILABLE, b""), "the server is busy (HTTP 503); try again"),
        *(
            (Page(HTTPStatus.OK, body), OTHER)
            for body in (
                *(
                    b"",
                    b"<html>",
                    b"null",
                    b"7",
                    b"[]",
                    b'"data"',
                    b"\xff\xfe",
                    b"\xff{}",
                    b"[" * 1_000_000,
                    b"9" * 5000,
                ),
                *(b'{"data": %s}' % data for data in (b"{}", b"7", b'[1, "2"]', b'{"result": null}', b'{"result": 7}')),
            )
        ),
        *(
            (sample(text), OTHER)
            for text in (
                *(
                    "7",
                    "null",
                    "[]",
                    '"metric"',
                    '{"metric": {}}',
                    '{"value": [1, "2"]}',
                    '{"metric": {}, "values": [[1, "2"]]}',
                ),
                *(
                    f'{{"metric": {labels}, "value": [1, "2"]}}'
                    for labels in ('"abc"', '[["a", "b"]]', '{"cluster": 5}', '{"team": null}', '{"user": ["x"]}')
                ),
                *(f"{metric}{value}}}" for value in ("null", "7", '"12"', "[1]", "[1, 2]", "[1, true]", '[1, "2", 3]')),
                *(f'{metric}[1, "{number}"]}}' for number in ("", "x", "1_0", " 1", "0x1", "\\u0661", "infinity")),
            )
        ),
    )
    for page, expected in pages:
        with subtests.test(body=page.body[:80], expected=expected):
            url = answers(page)
            code, text, problem = run("--prometheus", url)
            assert (code, text) == (1, "")
            assert expected in one_line(problem, f"report.py: {url}")


def test_a_value_that_no_fleet_has_is_unknown(run: Run, answers: Serve, subtests: pytest.Subtests) -> None:
    """A share of nothing is NaN, so it is no error."""
    for value in ("NaN", "+Inf", "-Inf", "1e+308", "9" * 5000):
        with subtests.test(value=value):
            url = answers(result(({"cluster": "a"}, value)))
            code, text, _ = run("--prometheus", url, "--format", "csv")
            assert code == 0
            rows = list(csv.reader(text.splitlines()))
            assert len(rows) == 2 * len(ANSWERS)
            assert {cell for row in rows[1::2] for cell in row[1:]} <= {"", "a"}
            code, text, _ = run("--prometheus", url)
            assert code == 0
            assert "- Total: unknown GPU hours; cost of use unknown, of idle time unknown" in text
    for risk in ("-1", "0.5", "3", "1e15"):
        with subtests.test(risk=risk):
            code, text, _ = run("--prometheus", answers(result(({}, risk))), "--answer", "sizes", "--format", "csv")
            assert code == 0
            assert text.splitlines()[1].endswith(",")


def test_shows_no_more_rows_than_it_asked_for(run: Run, answers: Serve) -> None:
    many = [({"cluster": "a", "user": f"user{number}"}, 1.0) for number in range(2 * LIMIT)]
    _, text, _ = run("--prometheus", answers(result(*many)), "--answer", "cost_by_user")
    assert f"user{LIMIT - 1} " in text
    assert f"user{LIMIT} " not in text


def test_rejects_invalid_arguments(run: Run, tmp_path: Path, subtests: pytest.Subtests) -> None:
    url = ("--prometheus", "http://prometheus:9090")
    (tmp_path / "binary").write_bytes(b"1|\xff")
    for arguments, expected in {
        ("--prometheus", "prometheus:9090"): "--prometheus: expected an address such as http://prometheus:9090",
        ("--prometheus", "http://node1:x"): "expected an address",
        ("--prometheus", "http://node1/?a=b"): "expected an address",
        ("--prometheus", "http://node1/\u00e4"): "expected an address",
        ("--prometheus", "http://node1\N{RIGHT-TO-LEFT OVERRIDE}"): "expected an address",
        ("--prometheus", "http://x:9090/metrics"): "--prometheus: expected the address without a page: http://x:9090\n",
        ("--prometheus", "http://x/api/v1"): "--prometheus: expected the address without a page",
        ("--prometheus", "http://a:secret@x"): "--prometheus: other users can see a password",
        (*url, "--cert", "/x"): "needs --prometheus https://",
        ("--prometheus", "https://node1", "--cert", "/nowhere"): "expected PEM",
        (*url, "--answer", "all"): "invalid choice: 'all' (choose from",
        (*url, "--month", "2099-12"): "--month: this month has not begun",
        (*url, "--accounts", str(tmp_path)): f"--accounts {tmp_path}: cannot be read: Is a directory",
        (*url, "--accounts", str(tmp_path / "binary")): "binary: cannot be read: 'utf-8' codec",
        **{
            (*url, "--month", month): "expected a month such as 2026-10"
            for month in ("2026-13", "2026-00", "2026", "26-10", "2026-1", "0000-01")
        },
        **{
            (*url, "--days", days): "expected an integer from 1 to 3650"
            for days in ("0", "-1", "x", "3651", "9" * 5000)
        },
    }.items():
        with subtests.test(arguments=arguments):
            code, _, problem = run(*arguments)
            assert code == 2
            assert expected in problem
            assert "secret" not in problem


# As a program of its own


def printed(path: Path, *arguments: str, cwd: str | Path) -> str:
    """Run the script without the packages of this environment, and return what it prints."""
    command = [sys.executable, "-I", "-S", str(path), *arguments]
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_needs_only_its_folder_and_python(answers: Serve, tmp_path: Path) -> None:
    """As in the folder that a package installs, from any other directory."""
    installed = tmp_path / "share" / "cuda-mps-exporter"
    shutil.copytree(ROOT / "dashboards", installed / "dashboards", ignore=shutil.ignore_patterns("__pycache__"))
    url = answers(result(({"cluster": "a"}, 1.0)))
    text = printed(installed / "dashboards" / "report.py", "--prometheus", url, cwd="/")
    assert text.startswith("# GPU use and faults of CUDA MPS\n")


def test_output_that_cannot_be_written_is_no_traceback(answers: Serve) -> None:
    url = answers(result(({"cluster": "a", "user": "\u00e4"}, 1.0)))
    script = shlex.join(
        (sys.executable, str(ROOT / "dashboards/report.py"), "--prometheus", url, "--answer=cost_by_user")
    )
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    for redirection, expected in (
        ("| true", (0, "")),
        (">/dev/full", (1, "report.py: the output cannot be written: No space left on device\n")),
        (">&-", (0, "")),
    ):
        shell = ["sh", "-c", f"{script} {redirection}"]
        done = subprocess.run(shell, capture_output=True, text=True, env=ascii_only, check=False)
        assert (done.returncode, done.stderr) == expected, redirection


def test_the_documented_commands_print_the_report(answers: Serve, tmp_path: Path) -> None:
    (tmp_path / "accounts").write_text("7|physics\n")
    url = answers(result(({"cluster": "a", "user": "ann", "application": "7"}, 1.0)))
    page = (ROOT / "docs" / "fleet.md").read_text()
    commands = re.findall(r"^    (python3 dashboards/report\.py .*)$", page, re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        words = shlex.split(command.replace("http://localhost:9090", url).replace("/tmp/", f"{tmp_path}/"))
        assert ("physics" in printed(Path(words[1]), *words[2:], cwd=ROOT)) is ("--accounts" in words)


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
