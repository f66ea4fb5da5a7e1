"""The status document: its schema is current, and documents of all scenes are valid and survive JSON."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from exporter.demo.failures import FAILURES, PlannedFailure
from exporter.demo.simulation import Simulation
from exporter.model.values import build, plain
from exporter.report.document import StatusDocument
from exporter.report.node_status import StatusInput, document_of, status_document
from exporter.report.schema import schema
from tests.clocks import HandClock
from tests.page.inputs import INPUTS
from tests.simulated import POLICY, minutes
from tests.status import as_json

SCHEMA = Path(__file__).parents[2] / "docs" / "status.schema.json"
VALIDATOR = Draft202012Validator(json.loads(schema()))
PRIVATE_WORDS = {"beside", "gone_ratio", "fit", "culprit", "finder", "sources"}


def test_the_schema_in_the_docs_is_current() -> None:
    """If not: python -m exporter.report.schema > docs/status.schema.json."""
    assert SCHEMA.read_text() == schema()
    Draft202012Validator.check_schema(json.loads(schema()))


def test_names_are_words_of_the_field() -> None:
    names = {name for each in json.loads(schema())["$defs"].values() for name in each["properties"]}
    assert names & VALIDATOR = Draft202012Validator(json.loads(schema()))
PRIVATE_WORDS == set()


def assert_valid(document: StatusDocument) -> None:
    shown = as_json(document)
    errors = [
        f"{each.json_path}: {each.message}" for each in Draft202012Validator(json.loads(schema())).iter_errors(shown)
    ]
    assert errors == []
    assert as_json(build(StatusDocument, shown)) == shown


@pytest.mark.parametrize("name", INPUTS)
def test_documents_of_the_page_are_valid(name: str) -> None:
    assert_valid(status_document(INPUTS[name]()))


def demo(failure: str) -> Iterator[StatusDocument]:
    """Yield the documents before, during and after a failure of the demo."""
    clock = HandClock(3600.0)
    simulation = Simulation(1, clock, calm=True, past=300.0)
    for minute, reduced in enumerate(minutes(clock, simulation)):
        yield document_of(reduced.node, POLICY)
        if minute == 0:
            simulation.plan([PlannedFailure(after=10, failure=failure, seconds=FAILURES[failure].lasts)])
        if minute == 3:
            break


@pytest.mark.parametrize("failure", FAILURES)
def test_documents_of_the_demo_are_valid(failure: str) -> None:
    documents = list(demo(failure))
    for each in documents:
        assert_valid(each)
    assert len({json.dumps(plain(each)) for each in documents}) > 1


def test_a_document_with_a_wrong_type_is_refused() -> None:
    shown = as_json(status_document(StatusInput(node=INPUTS["busy"]().node, at=0.0)))
    with pytest.raises(ValueError, match="'at' is 'now'"):
        build(StatusDocument, shown | {"at": "now"})
    assert not VALIDATOR.is_valid(shown | {"at": "now"})
