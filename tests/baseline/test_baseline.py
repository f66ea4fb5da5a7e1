"""`replay` prints the same events, families and samples as at the baseline commit."""

import json
from pathlib import Path

import pytest

from tests.baseline import compare, replayed


def test_replay_prints_what_the_baseline_has(subtests: pytest.Subtests) -> None:
    for recording in replayed.RECORDINGS:
        with subtests.test(recording=recording):
            now, before = replayed.replay(recording), replayed.read(recording)
            for name in ("events", "metrics"):
                assert now[name] == before[name], name


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


def test_the_comparison_of_commits_reports_each_changed_added_and_missing_value(tmp_path: Path) -> None:
    before = {"same": 1, "changed": {"text": ["a", "b"]}, "missing": None}
    after = {"same": 1, "changed": {"text": ["a", "c"]}, "added": False}
    for name, value in {"old": before, "new": after}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "scene.json").write_text(json.dumps(value))
    found = compare.differences(tmp_path / "old", tmp_path / "new")
    assert list(found) == [
        ("scene/changed/text", ["a", "b"], ["a", "c"]),
        ("scene/missing", None, compare.MISSING),
        ("scene/added", compare.MISSING, False),
    ]
