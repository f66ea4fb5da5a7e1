"""The examples for collectors of logs read the exporter's unit and pods, and their components fit together."""

import re
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.manifests import CHART, NAMESPACE, container, the

COLLECTORS = CHART.parents[1] / "collectors"
UNIT = CHART.parents[2] / "systemd" / "cuda-mps-exporter.service"


def in_kubernetes(text: str) -> Iterator[str]:
    """Yield the lines of a file with those that are comments below `In Kubernetes`."""
    inside = False
    for line in text.splitlines():
        comment = re.fullmatch(r"(\s*)(?:#|//) ?(.*)", line)
        if comment is not None and inside:
            yield comment[1] + comment[2]
        else:
            inside = comment is not None and "In Kubernetes" in line
            yield line


def example(name: str, *, kubernetes: bool = False) -> Any:
    text = (COLLECTORS / name).read_text()
    return yaml.safe_load("\n".join(in_kubernetes(text)) if kubernetes else text)


def labels_of_pods() -> dict[str, str]:
    found: dict[str, str] = the("DaemonSet", "device-plugin")["spec"]["template"]["metadata"]["labels"]
    return found


@pytest.mark.parametrize("file", sorted(COLLECTORS.iterdir()), ids=lambda file: file.name)
def test_reads_the_exporters_unit(file: Path) -> None:
    assert UNIT.exists()
    assert UNIT.name in file.read_text()


@pytest.mark.parametrize("name", ["config.alloy", "vector.yaml"])
def test_selects_the_pods_of_the_chart(name: str) -> None:
    (label,) = re.findall(r"(app\.kubernetes\.io/name)=([\w-]+)", (COLLECTORS / name).read_text())
    assert label in labels_of_pods().items()


def test_vector_connects_its_components() -> None:
    for kubernetes, kind in ((False, "journald"), (True, "kubernetes_logs")):
        found = example("vector.yaml", kubernetes=kubernetes)
        assert found["sources"]["exporter"]["type"] == kind
        inputs = [name for part in ("transforms", "sinks") for each in found[part].values() for name in each["inputs"]]
        assert set(inputs) == {*found["sources"], *found["transforms"]}


def test_fluent_bit_connects_its_plugins() -> None:
    found = example("fluent-bit.yaml", kubernetes=True)
    host, tail = found["pipeline"]["inputs"]
    (parser,) = found["parsers"]
    plugins = [*found["pipeline"]["filters"], *found["pipeline"]["outputs"]]

    assert {each["match"] for each in plugins} == {host["tag"]} == {tail["tag"]}
    assert [each["parser"] for each in plugins if "parser" in each] == [parser["name"]]
    name = f"cuda-mps-exporter-x2x7k_{NAMESPACE}_{container('device-plugin')['name']}-0123.log"
    assert fnmatch(f"/var/log/containers/{name}", tail["path"])
    assert "${NODE_NAME}" in str(plugins)


def test_alloy_connects_its_components() -> None:
    text = (COLLECTORS / "config.alloy").read_text()
    for variant in (text, "\n".join(in_kubernetes(text))):
        code = re.sub(r"(?m)//.*$", "", variant.replace("://", ":"))
        defined = {".".join(each) for each in re.findall(r'(?m)^([\w.]+) "(\w+)" \{$', code)}
        used = set(
            re.findall(r"\b((?:loki|otelcol|discovery)(?:\.\w+)+)\.(?:receiver|rules|input|targets|output)\b", code)
        )
        assert used <= defined
        assert defined - used <= {"loki.source.journal.exporter", "loki.source.kubernetes.exporter"}
        assert code.count("{") == code.count("}")
