"""The files with which Grafana finds dashboards and data source, and the documented queries with dcgm-exporter."""

import re
import subprocess
from pathlib import Path

import yaml

from tests.tools import needed

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


PAGE = Path(__file__).parents[2] / "docs" / "alerting.md"
FIRST, SECOND = "GPU-1efa3f60-b0ba-115c-7d58-bd5711d3de4b", "GPU-f3a2185e-464d-c671-4057-0d056df64b6e"

SERIES = {
    f'cuda_mps_gpu_info{{job="mps", instance="node1:10677", gpu="{FIRST}", index="0", name="NVIDIA H200"}}': 1,
    f'cuda_mps_gpu_info{{job="mps", instance="node1:10677", gpu="{SECOND}", index="1", name="NVIDIA H200"}}': 1,
    **{
        f'cuda_mps_client_memory_used_bytes{{job="mps", instance="node1:10677", client="{client}", gpu="{FIRST}"}}': 100
        for client in ("41-a", "42-b")
    },
    # As dcgm-exporter 4 exposes them; in Kubernetes, a GPU has a series for each of its pods.
    **{
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0", UUID="{FIRST}", pci_bus_id="00000000:06:00.0", device="nvidia0", '
        f'modelName="NVIDIA H200", Hostname="node1", pod="{pod}", job="dcgm", instance="node1:9400"}}': 300
        for pod in ("", "train-0")
    },
    f'DCGM_FI_DEV_POWER_USAGE{{gpu="1", UUID="{SECOND}", Hostname="node1", instance="node1:9400"}}': 90,
}


def test_documented_joins_give_the_index_and_the_power_of_a_gpu(tmp_path: Path) -> None:
    section = PAGE.read_text().partition("## With dcgm-exporter")[2].partition("\n## ")[0]
    by_index, by_power = re.findall(r"```promql\n(.*?)```", section, re.DOTALL)
    expected = (
        (by_index, f'{{instance="node1:10677", gpu="{FIRST}", index="0", name="NVIDIA H200"}}', 200),
        (by_power, f'{{gpu="{FIRST}"}}', 150),
    )
    checks = [
        {"expr": query, "eval_time": "1m", "exp_samples": [{"labels": labels, "value": value}]}
        for query, labels, value in expected
    ]
    series = [{"series": name, "values": f"{value}x4"} for name, value in SERIES.items()]
    document = {"tests": [{"interval": "30s", "input_series": series, "promql_expr_test": checks}]}
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    done = subprocess.run(
        [needed("promtool"), "test", "rules", "test.yml"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
