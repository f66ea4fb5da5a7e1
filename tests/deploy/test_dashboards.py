"""Each dashboard becomes a ConfigMap that Grafana's sidecar takes up."""

from pathlib import Path
from typing import Any

import pytest

from tests.deploy.kustomize import built
from tests.deploy.schemas import complaints

DASHBOARDS = Path(__file__).parents[2] / "dashboards"

MOST_BYTES = 1 << 20
"""Of a ConfigMap (Kubernetes' limit)."""


@pytest.fixture(scope="module")
def maps() -> list[dict[str, Any]]:
    return list(built(DASHBOARDS))


def test_each_is_in_one_as_it_is(maps: list[dict[str, Any]]) -> None:
    told = {name: text for each in maps for name, text in each["data"].items()}
    assert told
    assert told == {file.name: file.read_text() for file in DASHBOARDS.glob("*.json")}


def test_grafanas_sidecar_and_a_cluster_take_them(maps: list[dict[str, Any]]) -> None:
    for each in maps:
        assert complaints(each) == []
        assert each["metadata"]["labels"] == {"grafana_dashboard": "1"}
        assert sum(len(text.encode()) for text in each["data"].values()) < MOST_BYTES
