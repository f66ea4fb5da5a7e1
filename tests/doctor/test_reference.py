"""Each check has texts, and a page that exists."""

from pathlib import Path

from exporter.doctor.checks import CHECKS

DOCS = Path(__file__).parents[2] / "docs"


def test_each_check_has_texts_and_an_existing_page() -> None:
    for check in CHECKS:
        assert check.meaning.endswith(".")
        assert check.fix.endswith(".")
        assert (DOCS.parent / check.doc).exists()


def test_checks_of_catalogued_problems_use_the_catalogue() -> None:
    known = [check for check in CHECKS if check.problem is not None]
    assert len(known) >= 4
    for check in known:
        assert check.problem is not None
        definition = check.problem.definition
        assert (check.meaning, check.fix) == (definition.meaning, definition.remedy)
