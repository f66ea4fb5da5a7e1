"""`replay` prints the same events, families and samples as at the baseline commit, apart from renamed values."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from exporter.parse.old_sentences import reason_of
from tests.baseline import replayed

RENAMED: dict[str, dict[str, str]] = tomllib.loads((replayed.HERE / "renamed.toml").read_text())


def renamed(kind: str, text: str) -> str:
    return RENAMED[kind].get(text, text)


def in_new_values(value: Any) -> Any:
    """An event's value in today's names."""
    if isinstance(value, dict):
        return {renamed("key", key): in_new_values(item) for key, item in value.items()}
    if isinstance(value, list):
        return [in_new_values(item) for item in value]
    return renamed("value", value) if isinstance(value, str) else value


def in_code(sentence: str | dict[str, Any]) -> dict[str, Any]:
    """A sentence of the baseline as the code and the parameters that say the same. A later baseline has these."""
    if not isinstance(sentence, str):
        return sentence
    reason = reason_of(sentence)
    assert reason is not None, sentence
    return reason.as_json()


def in_codes(event: dict[str, Any]) -> dict[str, Any]:
    """A baseline's event with codes where it has sentences. A reason that is one word is a code already."""
    event = dict(event)
    if " " in event.get("reason", ""):
        event["reason_detail"] = in_code(event["reason"])
        event["reason"] = event["reason_detail"].pop("code")
        event = {key: value for key, value in event.items() if value != {}}
    if "problem" in event:
        event["problem"] = in_code(event["problem"])
    if "witnesses" in event:
        event["indications"] = list(map(in_code, event.pop("witnesses")))
    if "suspects" in event:
        event["suspects"] = list(map(suspect_in_codes, event["suspects"]))
    return event


def suspect_in_codes(suspect: dict[str, Any]) -> dict[str, Any]:
    if "evidence" not in suspect:
        return suspect
    others = {key: value for key, value in suspect.items() if key != "evidence"}
    return {**others, "indications": list(map(in_code, suspect["evidence"]))}


def in_new_event(event: dict[str, Any]) -> dict[str, Any]:
    return {**in_new_values(in_codes(event)), "event": renamed("event", event["event"])}


def in_new_labels(sample: str) -> str:
    """A sample's key, a JSON list of its name and its labels, in today's names."""
    name, labels = json.loads(sample)
    new = sorted([renamed("label", label), renamed("label_value", value)] for label, value in labels)
    return json.dumps([name, new])


def in_new_families(families: dict[str, Any]) -> dict[str, Any]:
    return {
        name: {**family, "samples": {in_new_labels(key): value for key, value in family["samples"].items()}}
        for name, family in families.items()
    }


@pytest.mark.parametrize("recording", replayed.RECORDINGS, ids=replayed.name_of)
def test_replay_prints_what_the_baseline_has(recording: Path) -> None:
    now, before = replayed.replay(recording), replayed.read(recording)
    for name in replayed.RUNS:
        if name == "events":
            assert now[name] == [in_new_event(event) for event in before[name]], name
        else:
            assert now[name] == in_new_families(before[name]), name


def test_every_recording_has_a_baseline_and_no_baseline_lacks_its_recording() -> None:
    stored = {path.name for path in (replayed.HERE / "expected").iterdir()}
    assert stored == {replayed.stored(recording).name for recording in replayed.RECORDINGS}


def test_the_comparison_sees_a_missing_event_and_another_sample() -> None:
    """Otherwise it could pass without comparing anything."""
    recording = next(path for path in replayed.RECORDINGS if path.name == "control_killed.jsonl.gz")
    before = replayed.read(recording)
    assert len(before["events"]) > 5
    assert sum(len(family["samples"]) for family in before["metrics"].values()) > 50
    assert any(event["event"] == "watchdog_acts" for event in before["events"])
