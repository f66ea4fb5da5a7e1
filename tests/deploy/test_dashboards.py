"""Each dashboard becomes a ConfigMap for the sidecar of Grafana."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.kustomize import built
from tests.deploy.schemas import schema_errors

DASHBOARDS = Path(__file__).parents[2] / "dashboards"

MOST_BYTES = 1 << 20
"""The size limit of a ConfigMap in Kubernetes."""


@pytest.fixture(scope="module")
def config_maps() -> list[dict[str, Any]]:
    return list(built(DASHBOARDS))


def test_each_config_map_has_one_unchanged_dashboard(config_maps: list[dict[str, Any]]) -> None:
    told = {name: text for each in config_maps for name, text in each["data"].items()}
    assert told
    assert told == {file.name: file.read_text() for file in DASHBOARDS.glob("*.json")}


def test_config_maps_are_valid_for_cluster_and_sidecar(config_maps: list[dict[str, Any]]) -> None:
    for each in config_maps:
        assert schema_errors(each) == []
        assert each["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert sum(len(text.encode()) for text in each["data"].values()) < MOST_BYTES
