"""The catalogue of problems is complete, written alike, and the only place that defines what can be wrong."""

import ast
import re
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


def test_each_code_is_defined_once() -> None:
    assert PROBLEMS.keys() == set(FindingCode)


@pytest.mark.parametrize(
    ("states", "table"), [(Condition, CONDITION_CODES), (WatchdogPhase, PHASE_CODES), (BlockReason, BLOCK_CODES)]
)
def test_each_state_has_exactly_one_code(states: type[StrEnum], table: dict[StrEnum, FindingCode]) -> None:
    assert table.keys() == set(states)


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


def test_texts_are_sentences(subtests: pytest.Subtests) -> None:
    for code in FindingCode:
        with subtests.test(code=code):
            problem = PROBLEMS[code]
            assert re.fullmatch(r"[^.]+", re.sub(r"\d\.\d", "", problem.summary)), "one line, without a full stop"
            assert problem.meaning.endswith(".")
            assert problem.remedy.endswith(".") or code is FindingCode.WELL
            assert "{" not in problem.meaning + problem.remedy
            assert len(problem.label) <= 32


def test_sentences_are_short(subtests: pytest.Subtests) -> None:
    for code in FindingCode:
        with subtests.test(code=code):
            problem = PROBLEMS[code]
            for text in (problem.meaning, problem.remedy):
                longest = max((len(each.split()) for each in re.split(r"[.:;] ", text)), default=0)
                assert longest <= 30, text


def test_a_problem_that_has_a_runbook_names_one_that_exists(subtests: pytest.Subtests) -> None:
    for code in FindingCode:
        with subtests.test(code=code):
            page = PROBLEMS[code].page
            assert page is None or (ROOT / page).exists()


def test_a_finding_without_values_can_be_shown(subtests: pytest.Subtests) -> None:
    for code in FindingCode:
        with subtests.test(code=code):
            for since in (None, 0.0):
                finding = Finding(code=code, at=10.0, since=since)
                assert "{" not in finding.text + finding.remedy


def test_a_summary_names_the_node_where_an_alert_shows_it() -> None:
    for problem in PROBLEMS.values():
        names = {name for _, name, _, _ in Formatter().parse(problem.summary)}
        assert "node" in names or problem.alert is None, problem.summary


def test_values_that_contain_braces_are_shown_as_they_are() -> None:
    finding = Finding(code=FindingCode.DAEMON_DEAD, at=0.0, daemon="/run/{node}{0}")
    assert finding.text == "MPS daemon /run/{node}{0} is down"


def test_one_scale_orders_all_problems() -> None:
    assert [each.rank for each in Severity] == [0, 1, 2, 3]
