"""Every expression that is shipped speaks of families that there are, and of labels that these have."""

import re
from collections.abc import Iterator
from pathlib import Path

import promql_parser
import pytest
import yaml
from prometheus_client.core import HistogramMetricFamily

from exporter.metrics.catalogue import CATALOGUE
from exporter.metrics.reference import reference

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")))
RULES = sorted(ROOT.glob("alerts/*.yml"))

FENCED = re.compile(r"^```promql\n(.*?)^```", re.MULTILINE | re.DOTALL)

OF_PROMETHEUS = {"job", "instance"}
LABELS = {family.name: OF_PROMETHEUS | set(family.labels) for family in CATALOGUE} | {"up": OF_PROMETHEUS}
LABELS |= {
    "kube_pod_info": {"uid", "namespace", "pod", "node"},
    "kube_node_labels": {
        "node",
        "label_cloud_google_com_gke_gpu_sharing_strategy",
        "label_nvidia_com_mps_capable",
        "label_scheduling_cast_ai_spot",
    },
}
"""Of kube-state-metrics, as its documentation has them."""

for histogram in (family for family in CATALOGUE if family.kind is HistogramMetricFamily):
    LABELS |= {histogram.name + suffix: LABELS[histogram.name] for suffix in ("_count", "_sum")}
    LABELS[f"{histogram.name}_bucket"] = LABELS[histogram.name] | {"le"}


def expressions() -> Iterator[tuple[str, str]]:
    """Each with where it stands."""
    for path in RULES:
        for group in yaml.safe_load(path.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{path.name}: {rule.get('alert') or rule['record']}", rule["expr"]
    for path in PAGES:
        for number, text in enumerate(
            re.findall(r"^```promql\n(.*?)^```", path.read_text(), re.MULTILINE | re.DOTALL), start=1
        ):
            yield f"{path.name}: {number}", text


def parts(expression: str) -> list[object]:
    """The nodes of the expression's tree."""
    found: list[object] = []
    promql_parser.walk(promql_parser.parse(expression), lambda part: found.append(part))
    return found


def grouped_by(part: object) -> list[str]:
    """The labels that an aggregation, or the matching of two vectors, names."""
    modifier = getattr(part, "modifier", None)
    if isinstance(part, promql_parser.AggregateExpr):
        return [] if modifier is None else list(modifier.labels)
    if isinstance(part, promql_parser.BinaryExpr) and modifier is not None:
        matching = [] if modifier.matching is None else modifier.matching.labels
        return [*matching, *(modifier.group_labels or [])]
    return []


def problems(expression: str) -> list[str]:
    """What the expression speaks of that there is not."""
    selectors = [part for part in parts(expression) if isinstance(part, promql_parser.VectorSelector)]
    known = set().union(*(LABELS.get(each.name, set()) for each in selectors))
    unknown = [f"there is no family {each.name}" for each in selectors if each.name not in LABELS]
    for each in selectors:
        matched = {matcher.name for matcher in each.matchers.matchers}
        unknown += [f"{each.name} has no {label}" for label in matched - LABELS.get(each.name, matched)]
    for part in parts(expression):
        unknown += [f"nothing in it has {label}" for label in set(grouped_by(part)) - known]
    return unknown


EXPRESSIONS = dict(expressions())


@pytest.mark.parametrize("where", EXPRESSIONS)
def test_an_expression_speaks_of_what_there_is(where: str) -> None:
    assert problems(EXPRESSIONS[where]) == []


def test_there_are_expressions_in_rules_and_on_pages() -> None:
    assert {where.partition(":")[0] for where in EXPRESSIONS} >= {"cuda-mps.rules.yml", "README.md"}


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("cuda_mps_demon_up == 0", "there is no family cuda_mps_demon_up"),
        ('cuda_mps_daemon_up{server="1"}', "cuda_mps_daemon_up has no server"),
        ("sum by (user) (rate(cuda_mps_faults_total[5m]))", "nothing in it has user"),
        ("up * on (node) up", "nothing in it has node"),
        ("up * on (job) group_left (user) cuda_mps_daemon_up", "nothing in it has user"),
    ],
)
def test_what_there_is_not_is_found(expression: str, problem: str) -> None:
    assert problem in problems(expression)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_a_page_names_no_family_that_there_is_not(page: Path) -> None:
    assert set(re.findall(r"\bcuda_mps_\w+[a-z]\b", page.read_text())) <= set(LABELS)


def test_a_sample_on_the_first_page_has_the_labels_of_its_family() -> None:
    samples = re.findall(r"^(cuda_mps_\w+)\{(.*)\} \S+$", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert samples
    for name, labels in samples:
        assert set(re.findall(r'(\w+)="', labels)) <= LABELS[name], name


def test_the_page_of_metrics_is_as_the_catalogue_has_it() -> None:
    """If not: python -m exporter.metrics.reference > docs/METRICS.md."""
    assert (ROOT / "docs" / "METRICS.md").read_text() == reference()


def test_the_page_of_metrics_has_every_family() -> None:
    listed = re.findall(r"^\| `(\w+)` \|", reference(), re.MULTILINE)
    assert listed == [family.name for family in CATALOGUE]
