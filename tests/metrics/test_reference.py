"""docs/METRICS.md lists all values of all labels with a closed set of values, and a valid example for each group."""

import re
from pathlib import Path

import pytest

from exporter.metrics.catalogue import CATALOGUE, GROUPS
from exporter.metrics.family import Group
from tests.builders import NODE_MAKERS
from tests.metrics.test_families import families
from tests.promql import problems, selectors, unrated

PAGE = (Path(__file__).parents[2] / "docs" / "METRICS.md").read_text()
BY_NAME = {family.name: family for family in CATALOGUE}

FREE = {
    "client", "client_container", "client_namespace", "client_pod", "client_pod_uid", "command", "compute_instance",
    "confidence", "cuda", "daemon", "daemon_namespace", "daemon_pod", "driver", "file", "gpu", "gpu_instance",
    "incident", "index", "job_id", "job_slot", "name", "neighbour", "parent", "pci_bus_id", "pid", "pipe_directory",
    "profile", "protocol", "python", "server", "source", "suspect_workload", "task", "uid", "unit", "user", "version",
    "workload", "xid",
}  # fmt: skip
"""Labels that can have any value."""


def section(group: Group) -> str:
    """Return a group's section of the page."""
    return PAGE.partition(f"## {group.title}\n")[2].partition("\n## ")[0]


def listed(group: Group, family: str, label: str) -> list[str]:
    """Return the values that the page lists for a family's label."""
    lines = re.findall(rf"^- `{label}`(?: of (.*))?: (.*)$", section(group), re.MULTILINE)
    (values,) = (values for families, values in lines if not families or f"`{family}`" in families)
    return [value.strip("`") for value in values.replace("empty", "").split(", ")]


def test_every_label_is_free_or_has_its_values_listed() -> None:
    for family in CATALOGUE:
        assert set(family.labels) - FREE == set(family.choices) - FREE, family.name


def test_the_page_lists_every_value_of_each_label_with_a_closed_set() -> None:
    for each in GROUPS:
        for family in each.families:
            for label, values in family.choices.items():
                assert listed(each, family.name, label) == list(values), (family.name, label)


def test_samples_have_listed_values_only(subtests: pytest.Subtests) -> None:
    for make_node in NODE_MAKERS.values():
        with subtests.test(node=make_node.__name__):
            for name, family in families(make_node()).items():
                for sample in family.samples:
                    for label, values in BY_NAME[name].choices.items():
                        assert sample.labels[label] in values, (name, label)


def test_each_group_has_a_valid_example_about_its_families(subtests: pytest.Subtests) -> None:
    for each in GROUPS:
        with subtests.test(each=each):
            assert f"```promql\n{each.query}\n```" in section(each)
            assert problems(each.query) == []
            assert unrated(each.query) == []
            assert {selector.name for selector in selectors(each.query)} & {family.name for family in each.families}
