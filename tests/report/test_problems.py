"""The catalogue of problems is complete, written alike, and the only place that defines what can be wrong."""

import ast
import re
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from string import Formatter

import pytest

from exporter.model.watchdog import BlockReason, Condition, WatchdogPhase
from exporter.report.finding import Finding
from exporter.report.problem import FindingCode, Severity
from exporter.report.problems import BLOCK_CODES, CONDITION_CODES, PHASE_CODES, PROBLEMS

ROOT = Path(__file__).parents[2]
EXPORTER = ROOT / "exporter"


def test_each_code_and_each_state_has_one_entry() -> None:
    tables: tuple[tuple[type[StrEnum], Mapping[StrEnum, object]], ...] = (
        (FindingCode, PROBLEMS),
        (Condition, CONDITION_CODES),
        (WatchdogPhase, PHASE_CODES),
        (BlockReason, BLOCK_CODES),
    )
    for codes, table in tables:
        assert table.keys() == set(codes)


def test_no_other_table_has_texts_for_conditions_or_states() -> None:
    """A table that gives them texts would be a second definition."""
    found = {
        (path.relative_to(EXPORTER).as_posix(), ast.unparse(key))
        for path in EXPORTER.rglob("*.py")
        if "core" not in path.relative_to(EXPORTER).parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Dict)
        for key, value in zip(node.keys, node.values, strict=True)
        if isinstance(key, ast.Attribute) and ast.unparse(key).startswith(("Condition.", "WatchState.", "Block."))
        if any(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in ast.walk(value))
    }
    assert found == set()


def test_texts_are_short_sentences(subtests: pytest.Subtests) -> None:
    for code, problem in PROBLEMS.items():
        with subtests.test(code=code):
            assert re.fullmatch(r"[^.]+", re.sub(r"\d\.\d", "", problem.summary)), "one line, without a full stop"
            assert problem.meaning.endswith(".")
            assert problem.remedy.endswith(".") or code is FindingCode.WELL
            assert "{" not in problem.meaning + problem.remedy
            assert len(problem.label) <= 32
            for text in (problem.meaning, problem.remedy):
                longest = max((len(each.split()) for each in re.split(r"[.:;] ", text)), default=0)
                assert longest <= 30, text
            assert problem.page is None or (ROOT / problem.page).exists(), "the runbook exists"
            names = {name for _, name, _, _ in Formatter().parse(problem.summary)}
            assert "node" in names or problem.alert is None, "an alert shows the summary"
            for since in (None, 0.0):
                finding = Finding(code=code, at=10.0, since=since)
                assert "{" not in finding.text + finding.remedy, "it can be shown without values"


def test_values_that_contain_braces_are_shown_as_they_are() -> None:
    finding = Finding(code=FindingCode.DAEMON_DEAD, at=0.0, daemon="/run/{node}{0}")
    assert finding.text == "MPS daemon /run/{node}{0} is down"


def test_one_scale_orders_all_problems() -> None:
    assert [each.rank for each in Severity] == [0, 1, 2, 3]
