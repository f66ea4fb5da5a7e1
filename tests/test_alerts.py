"""The alerts are valid, fire when they should, and speak of metrics that there are."""

import re
import subprocess
from pathlib import Path

from exporter.metrics.catalogue import CATALOGUE
from tests.tools import needed

ALERTS = Path(__file__).parents[1] / "alerts"
RULES = ALERTS / "cuda-mps.rules.yml"
TESTS = ALERTS / "tests" / "cuda-mps.test.yml"
NAMES = re.compile(r"\bcuda_mps_[a-z_]+")


def promtool(*arguments: str | Path) -> str:
    done = subprocess.run([needed("promtool"), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_rules_are_valid() -> None:
    promtool("check", "rules", "--lint=all", "--lint-fatal", RULES)


def test_rules_fire_and_rest_as_their_tests_say() -> None:
    promtool("test", "rules", TESTS)


def test_every_alert_has_tests() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    tested = set(re.findall(r"alertname: (\w+)", TESTS.read_text()))

    assert alerts
    assert set(alerts) == tested


def test_every_metric_in_a_rule_or_its_test_is_in_the_catalogue_with_those_labels() -> None:
    labels_of = {family.name: set(family.labels) for family in CATALOGUE}
    for name, matchers in re.findall(r"\b(cuda_mps_[a-z_]+)\{([^}]*)\}", RULES.read_text() + TESTS.read_text()):
        assert name in labels_of
        used = set(re.findall(r"(\w+)\s*=", matchers)) - {"job", "instance"}
        assert used <= labels_of[name], f"{name} has no {used - labels_of[name]}"
