"""Each check has texts, and a page that exists."""

from pathlib import Path

from exporter.doctor.checks import CHECKS
from exporter.report.problems import PROBLEMS

DOCS = Path(__file__).parents[2] / "docs"


def test_each_check_has_texts_and_an_existing_page() -> None:
    for check in CHECKS:
        assert check.meaning.endswith(".")
        assert check.fix.endswith(".")
        assert (DOCS.parent / check.doc).exists()


def test_checks_of_catalogued_problems_use_the_catalogue() -> None:
    known = [check for check in CHECKS if check.code is not None]
    assert len(known) >= 4
    for check in known:
        problem = PROBLEMS[check.code]
        assert (check.meaning, check.fix) == (problem.meaning, problem.remedy)
