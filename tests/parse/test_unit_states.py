"""How units are, as systemctl shows it (systemd 252)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.model.witnesses import UnitState
from exporter.parse.systemd import parse_unit_states

AT = 1000.0


def shown(name: str = "mps.service", *, names: str | None = None, **values: str) -> str:
    """A unit as `systemctl show` tells of it."""
    lines = {"Id": name, "Names": name if names is None else names, **values}
    return "".join(f"{key}={value}\n" for key, value in lines.items())


RUNS = {
    "LoadState": "loaded",
    "ActiveState": "active",
    "SubState": "running",
    "Result": "success",
    "Restart": "on-failure",
    "NRestarts": "2",
    "MainPID": "441",
}


def test_a_unit_that_runs() -> None:
    (state,) = parse_unit_states(shown(**RUNS), ["mps.service"], AT)
    assert state == UnitState(
        at=AT,
        unit="mps.service",
        load="loaded",
        active="active",
        sub="running",
        result="success",
        restart="on-failure",
        restarts=2,
        main_pid=441,
    )


def test_several_are_told_apart_in_the_order_in_which_they_were_asked_for() -> None:
    text = "\n".join([shown("a.service", ActiveState="failed"), shown("b.service", ActiveState="active")])
    told = [
        (state.unit, state.active) for state in parse_unit_states(text, ["b.service", "a.service", "c.service"], AT)
    ]
    assert told == [("b.service", "active"), ("a.service", "failed")]


def test_a_unit_is_known_by_each_of_its_names() -> None:
    text = shown("nvidia-cuda-mps.service", names="nvidia-cuda-mps.service mps.service", **RUNS)
    (state,) = parse_unit_states(text, ["mps.service"], AT)
    assert (state.unit, state.active) == ("mps.service", "active")


def test_what_is_missing_is_not_known() -> None:
    """NRestarts= came with systemd 235."""
    (state,) = parse_unit_states(shown(), ["mps.service"], AT)
    assert state == UnitState(at=AT, unit="mps.service")


@pytest.mark.parametrize("number", ["", "[not set]", "-1", "9" * 30, "٣"])
def test_a_number_that_is_none_is_0(number: str) -> None:
    (state,) = parse_unit_states(shown(NRestarts=number, MainPID=number), ["mps.service"], AT)
    assert (state.restarts, state.main_pid) == (0, 0)


@given(st.text(), st.lists(st.text(), max_size=3))
def test_any_text_is_read(text: str, units: list[str]) -> None:
    assert {state.unit for state in parse_unit_states(text, units, AT)} <= set(units)
