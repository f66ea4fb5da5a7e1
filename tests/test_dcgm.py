"""The queries of docs/dcgm.md join series of both exporters, as promtool evaluates them."""

import re
from pathlib import Path

import pytest
import yaml

from exporter.metrics.catalogue import CATALOGUE
from tests.tools import promtool

PAGE = Path(__file__).parents[1] / "docs" / "dcgm.md"

ALICE = 'client="7-1",daemon="d",instance="n1:10677"'
BOB = 'client="8-1",daemon="d",instance="n1:10677"'
OF_DCGM = 'hostname="n1",instance="n1:9400"'

SERIES = {
    f'cuda_mps_client_info{{{ALICE},client_pod="a",client_namespace="x"}}': "1+0x10",
    f'cuda_mps_client_info{{{BOB},client_pod="b",client_namespace="x"}}': "1+0x10",
    f'cuda_mps_client_memory_used_bytes{{{ALICE},gpu="GPU-1"}}': f"{1 << 30}+0x10",
    f'cuda_mps_client_memory_used_bytes{{{BOB},gpu="GPU-1"}}': f"{3 << 30}+0x10",
    'cuda_mps_workload_sm_seconds_total{gpu="GPU-1",workload="a",workload_kind="pod",method="flight"}': "0+60x10",
    'cuda_mps_workload_sm_seconds_total{gpu="GPU-1",workload="a",workload_kind="pod",method="alone"}': "0+120x10",
    'cuda_mps_workload_sm_seconds_total{gpu="GPU-1",workload="b",workload_kind="pod",method="flight"}': "0+60x10",
    # With virtual GPUs, dcgm-exporter has a series for each pod, and another GPU has no client.
    f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-1",{OF_DCGM},exported_pod="a"}}': "400+0x10",
    f'DCGM_FI_DEV_POWER_USAGE{{gpu="0",UUID="GPU-1",{OF_DCGM},exported_pod="b"}}': "400+0x10",
    f'DCGM_FI_DEV_POWER_USAGE{{gpu="1",UUID="GPU-2",{OF_DCGM}}}': "100+0x10",
    f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",{OF_DCGM}}}': "8192+0x10",
    f'DCGM_FI_DEV_FB_USED{{gpu="0",UUID="GPU-1",{OF_DCGM},exported_pod="a"}}': "1024+0x10",
    f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-1",{OF_DCGM}}}': "61+0x10",
    f'DCGM_FI_DEV_GPU_TEMP{{gpu="1",UUID="GPU-2",{OF_DCGM}}}': "35+0x10",
}

SINCE_4_9 = {
    "DCGM_FI_DEV_POWER_USAGE": ("DCGM_FI_DEV_BOARD_POWER_WATTS", 1),
    "DCGM_FI_DEV_FB_USED": ("DCGM_FI_DEV_FB_USED_BYTES", 1 << 20),
    "DCGM_FI_DEV_GPU_TEMP": ("DCGM_FI_DEV_GPU_TEMP_CELSIUS", 1),
}
"""The names of families since dcgm-exporter 4.9, and the factors between their values and the earlier ones."""

EXPECTED = {
    "Power by workload": {
        '{gpu="GPU-1", workload="a", workload_kind="pod"}': 300,
        '{gpu="GPU-1", workload="b", workload_kind="pod"}': 100,
    },
    "Each pod's part": {
        '{client_namespace="x", client_pod="a", gpu="GPU-1"}': 0.125,
        '{client_namespace="x", client_pod="b", gpu="GPU-1"}': 0.375,
    },
    "Temperature": {'{gpu="GPU-1"}': 61},
}
"""The result of each query, by the beginning of the text before it."""


def queries() -> list[tuple[str, str]]:
    """Return each query of the page after the text before it."""
    return re.findall(r"^([^\n]+)\n\n```promql\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def test_all_queries_have_an_expected_result() -> None:
    assert len(queries()) == len(EXPECTED)


def since_4_9(series: str, values: str) -> tuple[str, str]:
    """Return a series with the name and the unit that dcgm-exporter 4.9 gives it."""
    family, brace, labels = series.partition("{")
    name, factor = SINCE_4_9.get(family, (family, 1))
    start, plus, rest = values.partition("+")
    return f"{name}{brace}{labels}", f"{int(start) * factor}{plus}{rest}"


@pytest.mark.parametrize("renamed", [False, True], ids=["before 4.9", "since 4.9"])
@pytest.mark.parametrize(("text", "expression"), queries())
def test_the_query_joins_the_series_of_both_exporters(
    text: str, expression: str, renamed: bool, tmp_path: Path
) -> None:
    (expected,) = [result for start, result in EXPECTED.items() if text.startswith(start)]
    series = dict(since_4_9(*each) for each in SERIES.items()) if renamed else SERIES
    test = {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {
                "expr": expression,
                "eval_time": "10m",
                "exp_samples": [{"labels": labels, "value": value} for labels, value in expected.items()],
            }
        ],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump({"evaluation_interval": "1m", "tests": [test]}))
    promtool("test", "rules", tmp_path / "test.yml")


def test_the_page_names_only_labels_of_our_families() -> None:
    labels = {label for family in CATALOGUE for label in family.labels}
    rows = re.findall(r"^\| (?!object|value|-)\S.*? \| (.*?) \|", PAGE.read_text(), re.MULTILINE)
    named = set(re.findall(r"`(\w+)`", " ".join(rows)))
    assert named
    assert {name for name in named if not name.startswith("cuda_mps_")} <= labels
