"""Each check has texts, and a page that exists."""

import re
from pathlib import Path

from exporter.doctor.checks import CHECKS
from exporter.report.problems import PROBLEMS

ROOT = Path(__file__).parents[2]


def test_each_check_has_texts_and_an_existing_page() -> None:
    for check in CHECKS:
        definition = check.definition
        assert re.fullmatch(r"[^.{}]+", re.sub(r"\.\d", "", definition.summary)) or definition in CATALOGUED
        assert definition.meaning.endswith(".")
        assert definition.remedy.endswith(".")
        assert definition.page is None or (ROOT / definition.page).exists()


CATALOGUED = [problem.definition for problem in PROBLEMS]


def test_no_check_defines_a_problem_of_the_catalogue_again() -> None:
    """One code names one problem."""
    codes = {problem.code: problem.definition for problem in PROBLEMS}
    assert all(codes.get(check.code, check.definition) is check.definition for check in CHECKS)
    assert sum(check.code in codes for check in CHECKS) >= 5
