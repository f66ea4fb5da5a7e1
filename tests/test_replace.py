"""`replace` does what that of dataclasses does."""

import dataclasses
from dataclasses import FrozenInstanceError

import pytest

from exporter.model.daemon import Daemon, DaemonRuntime
from exporter.model.values import replace, updated

DAEMON = Daemon(name="node", pipe_directory="pipe", log_directory="log", runtime=DaemonRuntime(devices={0: "GPU-0"}))


def test_a_value_has_the_changes_and_is_otherwise_as_it_was() -> None:
    changed = replace(
        DAEMON, declared=replace(DAEMON.declared, expected=True), runtime=replace(DAEMON.runtime, version="13000")
    )

    assert changed == dataclasses.replace(
        DAEMON,
        declared=dataclasses.replace(DAEMON.declared, expected=True),
        runtime=dataclasses.replace(DAEMON.runtime, version="13000"),
    )
    assert (DAEMON.declared.expected, changed.declared.expected) == (False, True)


def test_what_it_makes_is_as_frozen_as_what_it_was_made_of() -> None:
    with pytest.raises(FrozenInstanceError):
        replace(DAEMON, declared=replace(DAEMON.declared, expected=True)).declared.expected = False  # type: ignore[misc]


def test_a_field_that_there_is_not_is_refused() -> None:
    with pytest.raises(KeyError):
        replace(DAEMON, colour="green")  # type: ignore[call-arg]


def test_what_has_its_changes_already_stays_itself() -> None:
    assert (
        updated(
            DAEMON,
            runtime=updated(DAEMON.runtime, devices={0: "GPU-0"}),
            declared=updated(DAEMON.declared, expected=False),
        )
        is DAEMON
    )
    assert updated(DAEMON, declared=updated(DAEMON.declared, expected=True)) == replace(
        DAEMON, declared=replace(DAEMON.declared, expected=True)
    )
