"""Pages: their links lead somewhere, README lists all commands, and expressions have existing families and labels."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from docs.metrics_page import metrics_page
from exporter.cli import COMMANDS
from exporter.metrics.catalogue import CATALOGUE
from tests.promql import LABELS, problems

ROOT = Path(__file__).parents[1]
LINKED_PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("[abdt]*/**/*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def test_every_link_has_a_target(subtests: pytest.Subtests) -> None:
    for page in LINKED_PAGES:
        with subtests.test(page=page):
            for link in LINK.findall(page.read_text()):
                if "://" not in link:
                    path, _, anchor = link.partition("#")
                    there = page.parent / path if path else page
                    assert there.exists(), link
                    assert not anchor or anchor in anchors(there), link


def test_the_front_page_has_an_image() -> None:
    """And there are links at all."""
    assert re.findall(r"^!\[.*\]\((.*)\)", README, re.MULTILINE)[0] == "docs/images/page-fault.png"


README = (ROOT / "README.md").read_text()


def test_readme_lists_all_commands() -> None:
    section = README.partition("\n## Commands\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", section, re.MULTILINE)
    assert set(re.findall(r"`([a-z]+)", " ".join(rows))) == set(COMMANDS)


def test_readme_is_short() -> None:
    assert len([word for word in README.split() if any(map(str.isalnum, word))]) <= 910


PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")))
RULES = sorted(ROOT.glob("alerts/*.rules.yml"))


def expressions() -> Iterator[tuple[str, str]]:
    """Each with where it stands."""
    for path in RULES:
        for group in yaml.load(path.read_text(), yaml.CSafeLoader)["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule.get('alert', rule.get('record'))} {rule.get('labels')}", rule["expr"]
    for path in PAGES:
        found = re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL)
        for number, text in enumerate(found, start=1):
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
            assert set(re.findall(r"(?:\w+:)?\bcuda_mps_\w+[a-z](?::\w+)?\b", page.read_text())) <= set(LABELS)


def test_samples_on_the_front_page_have_the_labels_of_their_families() -> None:
    samples = re.findall(r"^(cuda_mps_\w+)\{(.*)\} \S+$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert samples
    for name, labels in samples:
        assert set(re.findall(r'(\w+)="', labels)) <= LABELS[name], name


def test_the_metrics_page_agrees_with_the_catalogue() -> None:
    """If not: python -m docs."""
    assert (ROOT / "docs" / "METRICS.md").read_text() == metrics_page()


def test_the_metrics_page_has_every_family() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", metrics_page(), re.MULTILINE)
    assert listed == [family.name for family in CATALOGUE]
