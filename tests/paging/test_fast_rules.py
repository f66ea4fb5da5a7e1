"""The night of these tests is the installed one, but for its times."""

import re
from typing import Any

import yaml

from tests.paging import fast_rules


def by_name(texts: Any) -> dict[tuple[str, str], Any]:
    rules = [each for group in texts["groups"] for each in group["rules"]]
    return {(each.get("alert", each.get("record")), each.get("labels", {}).get("severity")): each for each in rules}


INSTALLED = by_name(yaml.load((fast_rules.ALERTS / "cuda-mps.rules.yml").read_text(), yaml.CSafeLoader))
SHORT = by_name(fast_rules.rules())
TIMES = re.compile(
    r"(?<=[\[:])[0-9]+m?[smhd](?=[\]:])|(?<=offset )[0-9]+m?[smhd]\b|(?<=[<>] )[0-9.]+(?= <|$)", re.MULTILINE
)


def timeless(text: str) -> str:
    return TIMES.sub("", text).replace("https://", "http://")


def test_a_minute_is_three_seconds() -> None:
    dead, refused = SHORT["CudaMpsDaemonDown", "critical"], SHORT["CudaMpsClientsRefused", "warning"]
    died = SHORT["CudaMpsDaemonDied", "warning"]
    assert SHORT["CudaMpsServerFault", "critical"]["for"] == "3000ms"
    assert "offset 3000ms" in dead["expr"]
    assert "[45000ms]" in refused["expr"]
    assert "offset 2250ms" in refused["expr"]
    assert "> 1.5 < 5.25\n" in died["expr"]
    assert "[9000ms:750ms]" in died["expr"]


def test_shortens_every_duration() -> None:
    """But for the exporter's own pace."""
    for key, rule in SHORT.items():
        if key[0] in fast_rules.OWN_PACE:
            continue
        assert rule.get("for", "0ms").endswith("ms")
        for text in (rule["expr"], *rule.get("annotations", {}).values()):
            assert not re.search(r"(\[|:|offset )[0-9]+[smhd]\b", text), key


def test_changes_nothing_else() -> None:
    """Nor is a rule left out."""
    assert SHORT.keys() == INSTALLED.keys()
    for key, rule in SHORT.items():
        assert timeless(rule["expr"]) == timeless(INSTALLED[key]["expr"])
        assert rule.get("labels") == INSTALLED[key].get("labels")


def test_alertmanager_differs_from_the_example_in_receivers_and_intervals() -> None:
    """What inhibits what, and how messages are put together, above all."""
    installed = yaml.safe_load((fast_rules.ALERTS / "alertmanager.example.yml").read_text())
    short = fast_rules.alertmanager({"pager": "http://pager", "tickets": "http://tickets"})
    assert short["inhibit_rules"] == installed["inhibit_rules"]
    assert short["route"]["group_by"] == installed["route"]["group_by"]
    assert (short["route"]["group_wait"], short["route"]["group_interval"]) == ("1000ms", "1000ms")
    assert [each["matchers"] for each in short["route"]["routes"]] == [
        each["matchers"] for each in installed["route"]["routes"]
    ]
