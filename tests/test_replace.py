"""`frozen` and `replace` do what those of dataclasses do, and `updated` keeps a value that has its changes already."""

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, field
from typing import Any

import pytest

from exporter.model.daemon import Daemon, DaemonRuntime, Declaration
from exporter.model.values import frozen, frozen_positional, replace, updated, with_latest
from exporter.parse.log_message import ClientDisconnected

DAEMON = Daemon(name="node", pipe_directory="pipe", log_directory="log", runtime=DaemonRuntime(devices={0: "GPU-0"}))
EXPECTED = Declaration(expected=True)


@pytest.mark.parametrize(
    ("ours", "theirs", "arguments"),
    [
        (frozen, dataclass(frozen=True, slots=True, kw_only=True), ()),
        (frozen_positional, dataclass(frozen=True, slots=True), ("a",)),
    ],
)
def test_a_frozen_class_is_like_a_frozen_dataclass(
    ours: Callable[[type], Any], theirs: Callable[[type], Any], arguments: tuple[str, ...]
) -> None:
    def definition() -> type:
        class Value:
            name: str
            _: KW_ONLY
            count: int = 1
            parts: list[int] = field(default_factory=list, compare=False)

        return Value

    for kind in (ours(definition()), theirs(definition())):
        named = {} if arguments else {"name": "a"}
        value, other = kind(*arguments, **named), kind(*arguments, **named, parts=[1])
        assert (value, hash(value)) == (other, hash(other))
        assert value.parts == []
        assert value.parts is not kind(*arguments, **named).parts
        assert value not in (kind(*arguments, **named, count=2), ("a", 1))
        assert repr(other).endswith("Value(name='a', count=1, parts=[1])")
        for wrong in ((), ("a", 1)):
            with pytest.raises(TypeError, match=r"Value\.__init__"):
                kind(*wrong)
        with pytest.raises(FrozenInstanceError):
            value.name = "b"
        with pytest.raises(FrozenInstanceError):
            del value.name
        with pytest.raises(AttributeError):
            _ = value.__dict__


def test_a_value_has_the_changes_is_otherwise_as_it_was_and_frozen() -> None:
    runtime = replace(DAEMON.runtime, version="13000")
    changed = replace(DAEMON, declared=EXPECTED, runtime=runtime)

    assert runtime == dataclasses.replace(DAEMON.runtime, version="13000")
    assert changed == dataclasses.replace(DAEMON, declared=EXPECTED, runtime=runtime)
    assert (DAEMON.declared.expected, changed.declared.expected) == (False, True)
    with pytest.raises(FrozenInstanceError):
        changed.declared.expected = False  # type: ignore[misc]
    with pytest.raises(KeyError):
        replace(DAEMON, colour="green")  # type: ignore[call-arg]


def test_a_value_can_be_copied_and_pickled() -> None:
    for value in (DAEMON, ClientDisconnected(pid=1)):
        for copied in (copy.copy(value), copy.deepcopy(value), pickle.loads(pickle.dumps(value))):
            assert copied == value
            assert copied is not value


def test_what_has_its_changes_already_stays_itself() -> None:
    runtime = updated(DAEMON.runtime, devices={0: "GPU-0"})
    declared = updated(DAEMON.declared, expected=False)
    assert updated(DAEMON, runtime=runtime, declared=declared) is DAEMON
    assert updated(DAEMON, declared=updated(DAEMON.declared, expected=True)) == replace(DAEMON, declared=EXPECTED)


def test_the_entry_that_was_changed_longest_ago_is_removed_first() -> None:
    known = with_latest({"a": 1, "b": 2}, "a", 3, most=2)
    assert with_latest(known, "c", 4, most=2) == {"a": 3, "c": 4}
