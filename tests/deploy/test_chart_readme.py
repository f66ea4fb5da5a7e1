"""The chart's README, its description for catalogues, and its comparison with other charts."""

import tomllib

import pytest
import yaml

from exporter import __version__
from tests.deploy.chart_readme import CHART, peers, readme, values, without_equal

PROJECT = tomllib.loads((CHART.parents[2] / "pyproject.toml").read_text())["project"]
DESCRIPTION = yaml.safe_load((CHART / "Chart.yaml").read_text())


def test_the_readme_is_up_to_date() -> None:
    """`python -m tests.deploy.chart_readme > deploy/helm/cuda-mps-exporter/README.md` writes it."""
    assert (CHART / "README.md").read_text() == readme()


def test_the_readme_has_each_value_with_its_default_and_comment() -> None:
    rows = {each.name: each for each in values()}
    assert rows["image.digest"].default == '`""`'
    assert "used instead of the tag" in rows["image.digest"].description
    assert "<br>none:" in rows["gpuAccess"].description
    assert rows["podMonitor.interval"].default == '`"15s"`'
    assert rows["podMonitor"].default == ""
    assert rows["affinity"].default == "see values.yaml"


def test_each_value_or_its_group_has_a_description() -> None:
    top = [each.name.partition(".")[0] for each in values()]
    described = {each.name.partition(".")[0] for each in values() if each.description}
    assert [name for name in top if name not in described] == []


@pytest.mark.parametrize("chart", sorted(peers()))
def test_each_value_of_another_chart_has_an_equal_or_a_reason(chart: str) -> None:
    own = yaml.safe_load((CHART / "values.yaml").read_text())
    for name, equals in peers()[chart].items():
        assert equals, name
        for equal in equals if isinstance(equals, list) else ():
            found = own
            for part in equal.split("."):
                assert part in found, f"{name} of {chart}: {equal}"
                found = found[part]


def test_values_of_other_charts_without_an_equal_have_few_reasons() -> None:
    assert len(without_equal()) <= 10


def test_catalogues_show_what_the_package_says() -> None:
    assert DESCRIPTION["version"] == DESCRIPTION["appVersion"] == __version__
    assert [each["name"] for each in DESCRIPTION["maintainers"]] == [each["name"] for each in PROJECT["authors"]]
    assert {*PROJECT["keywords"]} <= {*DESCRIPTION["keywords"]}
    assert DESCRIPTION["annotations"]["artifacthub.io/license"] in PROJECT["license"].split()
    alpha = any("Alpha" in each for each in PROJECT["classifiers"])
    assert DESCRIPTION["annotations"]["artifacthub.io/prerelease"] == str(alpha).lower()
