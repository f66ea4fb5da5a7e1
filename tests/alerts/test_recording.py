"""The recording rules, and the alerts of the objective, which read them.

tests/dashboards/test_site.py compares the files with `python -m dashboards`.
"""

import re

import pytest

from dashboards.parameters import DEFAULTS
from dashboards.recording import groups
from tests.alerts.files import ALERTS, RECORDING, RUNBOOKS, SLO, checks, read, rules
from tests.alerts.test_rules import PARTS, is_quiet_around, severities
from tests.promql import LABELS, grouped_by, parts, problems
from tests.tools import promtool

RECORDED = [rule for group in groups(DEFAULTS) for rule in group.rules]
TESTED = [
    expected
    for group in read(ALERTS / "tests" / "recording.test.yml")["tests"]
    for check in group["promql_expr_test"]
    for expected in check["exp_samples"]
]


def test_files_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RECORDING, SLO)


def test_no_group_has_more_rules_than_managed_prometheus_takes() -> None:
    assert len(RECORDED) <= 25
    assert all(len(group.rules) <= 20 for group in groups(DEFAULTS))


def test_each_rule_is_tested_with_a_value(subtests: pytest.Subtests) -> None:
    for rule in RECORDED:
        with subtests.test(rule=rule.record):
            samples = [each for each in TESTED if f'__name__="{rule.record}"' in each["labels"]]
            assert any(float(each["value"]) > 0 for each in samples)


def test_expressions_name_existing_families_and_labels(subtests: pytest.Subtests) -> None:
    for rule in RECORDED:
        with subtests.test(rule=rule.record):
            assert problems(rule.expression) == []


def test_a_name_is_level_metric_and_operation(subtests: pytest.Subtests) -> None:
    """The samples have the labels of the level. An operation over time names the interval of its group."""
    for group in groups(DEFAULTS):
        for rule in group.rules:
            with subtests.test(rule=rule.record):
                operation = f"(increase|avg|max){group.interval}|sum|max|min|ratio|value"
                assert re.fullmatch(
                    f"(application|namespace|instance|cluster):cuda_mps_[a-z_]+:({operation})", rule.record
                )
                assert set(grouped_by(parts(rule.expression)[0])) <= LABELS[rule.record]


def test_the_alerts_of_the_objective_name_existing_series(subtests: pytest.Subtests) -> None:
    for rule in rules(SLO):
        with subtests.test(rule=rule.id):
            assert problems(rule.expr) == []


def test_the_alerts_of_the_objective_are_tested_before_during_and_after_firing() -> None:
    for rule in rules(SLO):
        mine = [each for each in checks() if each.alert == rule.alert]
        firing = [each for each in mine if rule.severity in severities(each)]
        assert any(is_quiet_around(each, mine, before=True) for each in firing)
        assert any(is_quiet_around(each, mine, before=False) for each in firing)
        assert [each.expected for each in mine if each.group.endswith(": nothing is there but an exporter")] == [[]]


def test_the_runbook_of_the_objective_has_all_parts() -> None:
    (name,) = {rule.alert for rule in rules(SLO)}
    text = (RUNBOOKS / f"{name}.md").read_text()
    assert text.startswith(f"# {name}\n")
    assert re.findall(r"^## .*", text, re.MULTILINE) == list(PARTS)
    assert all(rule.annotations["runbook_url"].endswith(f"/runbooks/{name}.md") for rule in rules(SLO))
