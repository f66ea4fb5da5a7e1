"""`python -m dashboards --output` writes alerts, rules and dashboards for another site."""

import json
import re
import shlex
from pathlib import Path

import pytest
import yaml

from dashboards import site
from dashboards.__main__ import ALERTS, PROVISIONING, RECORDING, ROOT, customised, generated, main
from dashboards.parameters import DEFAULTS, Parameters
from dashboards.problems import SHOWN_PROBLEMS
from tests.dashboards.queries import Model, fill_variables, queries_of, variables
from tests.promql import selectors
from tests.tools import promtool

SELECTOR = 'cluster=~"a{2}|b%c", env="x"'
CHANGED = Parameters(
    job="gpu-nodes",
    selector=SELECTOR,
    runbook_url="https://wiki.example.com/mps/",
    grafana_url="https://grafana.example.com",
    thresholds=dict.fromkeys(site.THRESHOLDS, 7.5),
)


def alerting(text: str) -> list[Model]:
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def test_with_the_defaults_nothing_changes() -> None:
    files = customised(DEFAULTS)
    assert files.keys() == {*generated(DEFAULTS), ALERTS, PROVISIONING}
    for name, text in files.items():
        committed = (ROOT / name).read_text()
        if name == ALERTS:
            assert yaml.safe_load(text) == yaml.safe_load(committed)
        else:
            assert text == committed, f"{name}: python -m dashboards"


def test_all_selectors_of_rules_have_job_and_selector() -> None:
    files = customised(CHANGED)
    for name in (ALERTS, RECORDING):
        for rule in alerting(files[name]):
            for selector in selectors(rule["expr"]):
                matchers = {each.name: each.value for each in selector.matchers.matchers}
                if selector.name.startswith(("application:", "instance:", "cluster:", "namespace:")):
                    continue  # A recorded series, which has no other labels than its rule names.
                if selector.name.startswith("kube_"):
                    matchers["job"] = "gpu-nodes"  # Another exporter has a job of its own.
                assert matchers.items() >= {"job": "gpu-nodes", "cluster": "a{2}|b%c", "env": "x"}.items(), rule


def test_queries_of_annotations_have_the_selector_too() -> None:
    """They are formats of printf."""
    found = 0
    for rule in alerting(customised(CHANGED)[ALERTS]):
        for text in rule.get("annotations", {}).values():
            for query in re.findall(r"(?:cuda_mps_\w+|\bup)\{([^`]*)", text):
                found += 1
                written = SELECTOR.replace("%", "%%") if "%q" in query else SELECTOR
                assert query.startswith(("job=%q, " + written, 'job="gpu-nodes", ' + written)), query
    assert found


def test_all_selectors_of_dashboards_have_the_selector() -> None:
    for name, text in generated(CHANGED).items():
        if name.endswith(".json"):
            model = json.loads(text)
            for query in queries_of(model):
                for selector in selectors(fill_variables(query.parseable, {})):
                    matchers = {each.name for each in selector.matchers.matchers}
                    assert "env" in matchers or ":" in (selector.name or ""), query
            for variable in variables(model):
                assert variable["query"]["query"] == variable["definition"]
                assert SELECTOR in variable["definition"] or ":" in variable["definition"]


@pytest.mark.parametrize("name", site.THRESHOLDS)
def test_a_threshold_changes_its_alert_and_its_words(name: str) -> None:
    threshold = site.THRESHOLDS[name]
    before = alerting((ROOT / ALERTS).read_text())
    after = alerting(site.alerts((ROOT / ALERTS).read_text(), Parameters(thresholds={name: 7.5})))
    changed = [(old, new) for old, new in zip(before, after, strict=True) if old != new]
    assert {new["alert"] for _, new in changed} == {threshold.alert}
    for old, new in changed:
        assert re.search(r">=? 7\.5\b", new["expr"])
        texts = " ".join(new["annotations"].values())
        for words, of_value in threshold.texts.items():
            assert words in " ".join(old["annotations"].values())
            assert words not in texts
            assert of_value(7.5) in texts


def test_dashboards_and_recording_rules_have_the_thresholds_of_the_alerts() -> None:
    """A problem on a dashboard and its alert compare one family with one number."""
    files = generated(Parameters(thresholds={"log_bytes": 5e9, "client_slots_ratio": 0.8, "stalled_seconds": 60.0}))
    for problem in SHOWN_PROBLEMS:
        for name in ("log_bytes", "client_slots_ratio", "stalled_seconds"):
            threshold = site.THRESHOLDS[name]
            if re.search(rf"\b{threshold.family}\b.*>", problem.expression):
                assert threshold.set_in(problem.expression, 7.5) != problem.expression
    for text in (files[RECORDING], files["dashboards/cuda-mps-fleet.json"]):
        for number in ("> 5000000000.0", ">= 0.8", "> 60.0"):
            assert number in text


def test_the_reliability_dashboard_has_the_objective() -> None:
    text = generated(Parameters(objective=0.95))["dashboards/cuda-mps-reliability.json"]
    assert "The objective is 95 %." in text
    assert {float(each) for each in re.findall(r"\) / (0\.\d+)", text)} == {0.05}


@pytest.mark.parametrize(
    ("start", "link"),
    [
        ("https://wiki.example.com/mps/", "https://wiki.example.com/mps/CudaMpsFault.md"),
        ("https://{instance}/runbooks/", "https://{{ $labels.instance }}/runbooks/CudaMpsFault.md"),
    ],
)
def test_links_have_another_start(start: str, link: str) -> None:
    rules = alerting(customised(Parameters(runbook_url=start, grafana_url="https://example.com/grafana"))[ALERTS])
    found = {rule["alert"]: rule["annotations"] for rule in rules if "alert" in rule}
    assert found["CudaMpsFault"]["runbook_url"] == link
    for annotations in found.values():
        assert annotations["runbook_url"].startswith(start.partition("{")[0])
        assert annotations["dashboard_url"].startswith("https://example.com/grafana/d/cuda-mps-")


def test_prometheus_evaluates_the_rules_of_a_site_as_the_tests_expect(tmp_path: Path) -> None:
    """Only the job and the start of the links differ."""
    parameters = Parameters(job="gpu-nodes", selector='cluster="eu"', grafana_url="https://grafana.example.com")
    for name, text in customised(parameters).items():
        if name.endswith(".yml") and name != PROVISIONING:
            (tmp_path / Path(name).name).write_text(text)
            promtool("check", "rules", tmp_path / Path(name).name)
    (tmp_path / "tests").mkdir()
    test = (ROOT / "alerts" / "tests" / "clients.test.yml").read_text()
    test = re.sub(r'(\bjob="|\bjob: |var-job=)cuda-mps-exporter', r"\1gpu-nodes", test)
    (tmp_path / "tests" / "test.yml").write_text(test.replace("http://localhost:3000", parameters.grafana_url))
    promtool("test", "rules", tmp_path / "tests" / "test.yml")


@pytest.mark.parametrize(
    "selector",
    ['a = "b" , c!="d",', r'a=~"gpu-\\d+\\.(?:x|y){2,3}?", b!~"(?i)[^\\w]*$"', 'a="é\\"\\\\{}%#"', 'a=~""'],
)
def test_promtool_accepts_the_rules_with_each_accepted_selector(selector: str, tmp_path: Path) -> None:
    assert main(["--output", str(tmp_path), "--selector", selector]) == 0
    promtool("check", "rules", *(tmp_path / "alerts").iterdir())


def test_links_to_pages_have_another_start() -> None:
    files = customised(Parameters(page_url="https://mps.example.com/{instance}/"))
    for name in ("page_url", "incident_url"):
        found = [each[name] for rule in alerting(files[ALERTS]) if name in (each := rule["annotations"])]
        links = [each for each in found if "https://mps.example.com/{{ $labels.instance }}/" in each]
        assert links == found != []
    boards = [text for name, text in files.items() if name.endswith(".json")]
    assert all("https://mps.example.com/${__data.fields.Node}/" in text for text in boards)
    assert all("http://${__data" not in text for text in boards)


GUIDE = (ROOT / "docs" / "alerting.md").read_text()


def test_the_documented_command_writes_valid_files(tmp_path: Path) -> None:
    (command,) = re.findall(r"^    \S+python3 -m dashboards (--output (?:.*\\\n)*.*)$", GUIDE, re.MULTILINE)
    arguments = shlex.split(command.replace("\\\n", " "))
    arguments[1] = str(tmp_path)
    assert main(arguments) == 0
    assert {str(each.relative_to(tmp_path)) for each in tmp_path.rglob("*") if each.is_file()} == {
        *customised(DEFAULTS)
    }
    for rules in (tmp_path / "alerts").iterdir():
        promtool("check", "rules", rules)
        assert "cuda-mps-exporter" not in re.findall(r'job="([^"]+)"', rules.read_text())


def test_the_page_lists_all_thresholds() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| `(CudaMps\w+)`", GUIDE, re.MULTILINE)
    assert {(name, float(number), alert) for name, number, alert in rows} == {
        (name, float(each.default), each.alert) for name, each in site.THRESHOLDS.items()
    }


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["--job=x"], "--output is needed"),
        (["--output=x", '--job=a"b'], "without quotes"),
        (["--output=x", '--selector={a="b"}'], "without braces around them"),
        (["--output=x", '--selector=a="`"'], "without braces around them"),
        (["--output=x", "--selector=a=b"], "without braces around them"),
        (["--output=x", '--selector=a="b"} or up{c="d"'], "without braces around them"),
        (["--output=x", '--selector=a="b" c="d"'], "without braces around them"),
        (["--output=x", '--selector=a=="b"'], "without braces around them"),
        (["--output=x", '--selector=,a="b"'], "without braces around them"),
        (["--output=x", '--selector=1a="b"'], "without braces around them"),
        (["--output=x", '--selector=a="\\d"'], "without braces around them"),
        (["--output=x", '--selector=a="\udc80"'], "without braces around them"),
        (["--output=x", '--selector=a="{{"'], "without braces around them"),
        (["--output=x", '--selector=__name__="b"'], "cannot have another"),
        *[
            (["--output=x", f'--selector=a=~"{pattern}"'], "is not a regular expression")
            for pattern in ("(", "a++", "(?=a)", "(?P=a)", r"(a)\\1", r"\\Z", "a{2000}", "[z-a]", "*")
        ],
        (["--output=x", "--threshold=logs=1"], "unknown name 'logs'"),
        (["--output=x", "--threshold=log_bytes"], "invalid"),
        (["--output=x", "--objective=many"], "invalid"),
        (["--output=x", "--objective=1"], "between 0 and 1"),
    ],
)
def test_refuses_wrong_parameters(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(arguments)
    assert error in capsys.readouterr().err
