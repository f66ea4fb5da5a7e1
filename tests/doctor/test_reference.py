"""The page of all findings is the registry's."""

from pathlib import Path

from exporter.doctor.reference import reference
from exporter.doctor.registry import CHECKS
from exporter.report.problems import PROBLEMS

DOCS = Path(__file__).parents[2] / "docs"


def test_the_page_is_as_the_registry_has_it() -> None:
    """If not: python -m exporter.doctor.reference > docs/doctor.md."""
    assert (DOCS / "doctor.md").read_text() == reference()


def test_each_check_says_what_it_is_and_where_to_read_on() -> None:
    for check in CHECKS:
        assert check.meaning.endswith(".")
        assert check.fix.endswith(".")
        assert (DOCS.parent / check.doc).exists()


def test_a_check_of_a_problem_of_the_catalogue_has_its_texts() -> None:
    known = [check for check in CHECKS if check.code is not None]
    assert len(known) >= 9
    for check in known:
        problem = PROBLEMS[check.code]
        assert (check.meaning, check.fix) == (problem.meaning, problem.remedy)
