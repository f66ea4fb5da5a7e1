"""Who may have done it, in words that are no surer than the evidence."""

import pytest

from exporter.model.incident import FaultKind
from exporter.report.incident_text import leading, likelihood, verdict
from tests.incidents.values import incident, suspect


def test_a_confidence_has_a_word(subtests: pytest.Subtests) -> None:
    for confidence, word in [
        (1.0, "very likely"),
        (0.8, "very likely"),
        (0.79, "likely"),
        (0.5, "likely"),
        (0.2, "possibly"),
        (0.1, "unlikely"),
    ]:
        with subtests.test(confidence=confidence, word=word):
            assert likelihood(confidence) == word


def test_names_the_leading_suspect() -> None:
    suspects = (suspect(600, 0.7), suspect(601, 0.15), suspect(602, 0.15))

    assert verdict(incident(suspects=suspects)) == "likely PID 600 (train.py of alice)"


def test_names_a_few_equal_leaders() -> None:
    suspects = (suspect(600, 0.4), suspect(601, 0.4), suspect(602, 0.2))

    assert verdict(incident(suspects=suspects)).startswith("very likely one of PID 600 (")
    assert [each.client.pid for each in leading(incident(suspects=suspects))] == [600, 601]


@pytest.mark.parametrize(
    "suspects",
    [
        (),
        (suspect(600, 0.1),),
        (suspect(600, 0.5), suspect(601, 0.5)),
        (*(suspect(pid, 0.24) for pid in range(600, 604)), suspect(700, 0.04)),
    ],
    ids=("no suspects", "hardly", "either", "too many alike"),
)
def test_unknown_if_no_suspect_leads(suspects: tuple[object, ...]) -> None:
    assert verdict(incident(suspects=suspects)).startswith("unknown: ")


def test_hardware_fault_has_no_suspect() -> None:
    suspects = (suspect(600, 0.9),)

    assert verdict(incident(kind=FaultKind.HARDWARE, suspects=suspects)) == "none: the hardware failed"
    assert not leading(incident(kind=FaultKind.HARDWARE, suspects=suspects))
