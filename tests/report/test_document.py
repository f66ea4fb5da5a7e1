"""The status document: its schema is current, and documents of all scenes are valid and survive JSON."""

import json
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from docs.status_schema import status_schema
from exporter.model.values import build
from exporter.report.document import StatusDocument
from exporter.report.node_status import status_document
from exporter.view import StatusInput
from tests.page.inputs import INPUTS
from tests.status import as_json

SCHEMA = Path(__file__).parents[2] / "docs" / "status.schema.json"
VALIDATOR = Draft202012Validator(json.loads(status_schema()))
PRIVATE_WORDS = {"beside", "gone_ratio", "fit", "culprit", "finder", "sources"}


def test_the_schema_in_the_docs_is_current() -> None:
    """If not: python -m docs."""
    assert SCHEMA.read_text() == status_schema()
    Draft202012Validator.check_schema(json.loads(status_schema()))


def test_names_are_words_of_the_field() -> None:
    names = {name for each in json.loads(status_schema())["$defs"].values() for name in each["properties"]}
    assert names & PRIVATE_WORDS == set()


def assert_valid(document: StatusDocument) -> None:
    """Assert that the document has the types of the schema, and is the same after JSON."""
    shown = as_json(document)
    assert [f"{each.json_path}: {each.message}" for each in VALIDATOR.iter_errors(shown)] == []
    assert as_json(build(StatusDocument, shown)) == shown


@pytest.mark.parametrize("name", INPUTS)
def test_documents_of_the_page_are_valid(name: str) -> None:
    assert_valid(status_document(INPUTS[name]()))


def test_a_document_with_a_wrong_type_is_refused() -> None:
    shown = as_json(status_document(StatusInput(node=INPUTS["busy"]().node, at=0.0)))
    with pytest.raises(ValueError, match="'at' is 'now'"):
        build(StatusDocument, shown | {"at": "now"})
    assert not VALIDATOR.is_valid(shown | {"at": "now"})
