"""Values of the model become JSON and back. Unknown keys are ignored, and invalid values refused."""

import json

import pytest
from hypothesis import given, settings

from exporter.model.event import Event
from exporter.model.incident import Incident
from exporter.model.values import build, plain
from exporter.model.watchdog import WatchdogState
from tests.store.values import fault, rich, whole


@given(whole(Incident), whole(Event), whole(WatchdogState))
@settings(max_examples=100)
def test_any_value_round_trips(incident: Incident, event: Event, state: WatchdogState) -> None:
    for value in (incident, event, state):
        assert build(type(value), json.loads(json.dumps(plain(value)))) == value


def test_omits_unknown_values_which_have_defaults() -> None:
    assert "ended_at" not in plain(fault())
    assert plain(fault(ended=5.0))["ended_at"] == 5.0
    written = {key: plain(fault())[key] for key in ("id", "daemon", "server", "started_at", "detected_at")}
    assert build(Incident, written) == fault()


def test_ignores_unknown_keys_at_any_depth() -> None:
    written = plain(rich())
    written["mood"] = "good"
    written["suspects"][0]["alibi"] = ["none"]
    written["client_details"][600]["shoe_size"] = {"eu": 43}
    assert build(Incident, written) == rich()


def test_refuses_invalid_values_and_names_the_key(subtests: pytest.Subtests) -> None:
    for key, value, problem in [
        ("server", "513", "'server' is '513'"),
        ("server", True, "'server' is True"),
        ("server", 2**64, "'server' is 18446744073709551616"),
        ("started_at", float("nan"), "'started_at' is nan"),
        ("kind", "act_of_god", "'kind' is 'act_of_god'"),
        ("kind", 7, "'kind' is 7"),
        ("affected", {"600": 1}, "'affected' is {'600': 1}"),
        ("affected", ["x"], "'affected' is 'x'"),
        ("client_details", [], "'client_details' is []"),
        ("client_details", {"600": {"pid": 600}}, "'client' is missing"),
        ("client_details", {"six": {"pid": 600, "client": "c"}}, "six"),
        ("suspects", [{"confidence": 1.0, "evidence": []}], "'client' is missing"),
    ]:
        with subtests.test(key=key, value=value, problem=problem):
            with pytest.raises(ValueError, match=r".") as refused:
                build(Incident, {**plain(fault()), key: value})
            assert problem in str(refused.value)
