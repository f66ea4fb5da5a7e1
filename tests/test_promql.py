"""Every expression that is shipped speaks of families that there are, and of labels that these have."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from exporter.metrics.catalogue import CATALOGUE
from exporter.metrics.reference import reference
from tests.promql import LABELS, problems

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
RULES = sorted(ROOT.glob("alerts/*.rules.yml"))

FENCED = re.compile(r"^```promql\n(.*?)^```", re.MULTILINE | re.DOTALL)


def expressions() -> Iterator[tuple[str, str]]:
    """Each with where it stands."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule['alert']} {rule['labels']['severity']}", rule["expr"]
    for path in PAGES:
        for number, text in enumerate(
            re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL), start=1
        ):
            yield f"{path.name}: {number}", text


EXPRESSIONS = dict(expressions())


def test_expressions_use_existing_families_and_labels(subtests: pytest.Subtests) -> None:
    for where in EXPRESSIONS:
        with subtests.test(where=where):
            assert problems(EXPRESSIONS[where]) == []


def test_finds_expressions_in_rules_and_pages() -> None:
    assert {where.partition(":")[0] for where in EXPRESSIONS} >= {"cuda-mps.rules.yml", "start.md"}


def test_reports_unknown_families_and_labels(subtests: pytest.Subtests) -> None:
    for expression, problem in [
        ("cuda_mps_demon_up == 0", "there is no family cuda_mps_demon_up"),
        ('cuda_mps_daemon_up{server="1"}', "cuda_mps_daemon_up has no server"),
        ("sum by (user) (rate(cuda_mps_faults_total[5m]))", "nothing in it has user"),
        ("up * on (node) up", "nothing in it has node"),
        ("up * on (job) group_left (user) cuda_mps_daemon_up", "nothing in it has user"),
    ]:
        with subtests.test(expression=expression, problem=problem):
            assert problem in problems(expression)


def test_pages_name_only_existing_families(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page):
            assert set(re.findall(r"\bcuda_mps_\w+[a-z]\b", page.read_text())) <= set(LABELS)


def test_samples_on_the_front_page_have_the_labels_of_their_families() -> None:
    samples = re.findall(r"^(cuda_mps_\w+)\{(.*)\} \S+$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert samples
    for name, labels in samples:
        assert set(re.findall(r'(\w+)="', labels)) <= LABELS[name], name


def test_the_metrics_page_agrees_with_the_catalogue() -> None:
    """If not: python -m exporter.metrics.reference > docs/METRICS.md."""
    assert (ROOT / "docs" / "METRICS.md").read_text() == reference()


def test_the_metrics_page_has_every_family() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", reference(), re.MULTILINE)
    assert listed == [family.name for family in CATALOGUE]
