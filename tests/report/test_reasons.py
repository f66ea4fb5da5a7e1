"""Every code has a text, which is safe to show."""

from dataclasses import fields
from typing import Any, get_type_hints

import pytest
from hypothesis import given

from exporter.model.reason import PARAMETERS, Reason, ReasonCode
from exporter.parse.printable import LONGEST_PROBLEM
from exporter.report import reasons
from exporter.report.reasons import reason_object, text_of, texts_of
from tests.store.values import HOSTILE, whole

OF_TYPES: dict[Any, Any] = {str: "x", int: 7, float: 1.5, tuple[int, ...]: (7, 8)}


def full(code: ReasonCode) -> Reason:
    """A reason with a value for each parameter."""
    hints = get_type_hints(Reason)
    known = {name: next(OF_TYPES[kind] for kind in OF_TYPES if kind in hints[name].__args__) for name in PARAMETERS}
    return Reason(code, **known)


def test_every_code_has_one_text(subtests: pytest.Subtests) -> None:
    for code in ReasonCode:
        with subtests.test(code=code):
            assert (code in reasons._FIXED) != (code in reasons._SPECIAL)


def test_a_text_is_a_part_of_a_sentence(subtests: pytest.Subtests) -> None:
    for code in ReasonCode:
        with subtests.test(code=code):
            text = text_of(full(code))
            assert text
            assert "{" not in text
            assert not text.endswith(".")
            assert "None" not in text


def test_a_code_without_its_parameters_has_a_text_too(subtests: pytest.Subtests) -> None:
    """A file that another version wrote may lack some."""
    for code in ReasonCode:
        with subtests.test(code=code):
            assert "{" not in text_of(Reason(code))


@given(whole(Reason))
def test_no_text_breaks_its_line(reason: Reason) -> None:
    assert text_of(reason).isprintable()
    assert len(text_of(reason)) <= LONGEST_PROBLEM
    assert all(each.isprintable() for each in reason_object(reason).values() if isinstance(each, str))


def test_a_text_from_outside_is_shown_as_printable_text() -> None:
    reason = Reason(ReasonCode.UNIT_NOT_RESTARTED, unit="a.service", text=HOSTILE)
    assert text_of(reason).startswith("systemctl could not restart a.service: ")
    assert "\n" not in text_of(reason)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        ({"exit_code": 3, "text": "no GPU"}, "start failed (exit code 3): no GPU"),
        ({"exit_code": 3}, "start failed (exit code 3)"),
        ({"text": "no GPU"}, "start failed: no GPU"),
    ],
)
def test_shows_how_a_program_ended_as_far_as_known(known: dict[str, Any], text: str) -> None:
    assert text_of(Reason(ReasonCode.PROGRAM_FAILED, command="start", **known)) == text


def test_several_reasons_are_separated_by_semicolons() -> None:
    known = (Reason(ReasonCode.PROCESS_GONE, pid=441), Reason(ReasonCode.NO_DAEMON_FOUND))
    assert texts_of(known) == "process 441 has exited; nvidia-cuda-mps-control finds no daemon"


def test_an_object_has_the_code_and_the_parameters_that_apply() -> None:
    reason = Reason(ReasonCode.FAULT_WAITS_FOR_CLIENTS, server=513, pids=(600, 601))
    assert reason_object(reason) == {"code": "fault_waits_for_clients", "server": 513, "pids": [600, 601]}


def test_every_parameter_is_named_in_the_object() -> None:
    assert set(PARAMETERS) == {each.name for each in fields(Reason)} - {"code"}
