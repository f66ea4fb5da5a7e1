"""Each dashboard becomes a ConfigMap for the sidecar of Grafana."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.manifests import objects

DASHBOARDS = Path(__file__).parents[2] / "dashboards"

MOST_BYTES = 1 << 20
"""The size limit of a ConfigMap in Kubernetes."""


@pytest.fixture(scope="module")
def config_maps() -> list[dict[str, Any]]:
    label = "grafana_dashboard"
    return [each for each in objects("monitoring") if each["metadata"]["labels"].get(label) == "1"]


def test_each_config_map_has_one_unchanged_dashboard(config_maps: list[dict[str, Any]]) -> None:
    found = {name: text for each in config_maps for name, text in each["data"].items()}
    assert found
    assert found == {file.name: file.read_text() for file in DASHBOARDS.glob("*.json")}
    assert all(len(each["data"]) == 1 for each in config_maps)


def test_config_maps_fit_the_cluster(config_maps: list[dict[str, Any]]) -> None:
    for each in config_maps:
        assert sum(len(text.encode()) for text in each["data"].values()) < MOST_BYTES
