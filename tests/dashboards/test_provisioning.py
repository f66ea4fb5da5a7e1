"""The files with which Grafana finds dashboards and data source."""

import re
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[2]
PROVISIONING = ROOT / "dashboards" / "provisioning"
GUIDE = (ROOT / "docs" / "alerting.md").read_text()


def test_the_provider_uses_the_path_of_the_guide_read_only() -> None:
    file = yaml.safe_load((PROVISIONING / "dashboards" / "cuda-mps.yml").read_text())
    [provider] = file["providers"]
    assert (file["apiVersion"], provider["type"], provider["allowUiUpdates"]) == (1, "file", False)
    assert f"install -Dm 644 -t {provider['options']['path']} dashboards/*.json" in GUIDE


def test_the_data_source_has_the_scrape_interval() -> None:
    file = yaml.safe_load((PROVISIONING / "datasources" / "prometheus.yml").read_text())
    [source] = file["datasources"]
    assert (file["apiVersion"], source["type"], source["access"]) == (1, "prometheus", "proxy")
    assert source["jsonData"]["timeInterval"] == "15s"


def test_files_of_the_guide_exist() -> None:
    for path in re.findall(r"\]\(\.\./([^)]+)\)", GUIDE):
        assert (ROOT / path).exists(), path
