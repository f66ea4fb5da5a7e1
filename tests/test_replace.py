"""`replace` does what that of dataclasses does, and `updated` keeps a value that has its changes already."""

import dataclasses
from dataclasses import FrozenInstanceError

import pytest

from exporter.model.daemon import Daemon, DaemonRuntime, Declaration
from exporter.model.values import replace, updated

DAEMON = Daemon(name="node", pipe_directory="pipe", log_directory="log", runtime=DaemonRuntime(devices={0: "GPU-0"}))
EXPECTED = Declaration(expected=True)


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


def test_what_has_its_changes_already_stays_itself() -> None:
    runtime = updated(DAEMON.runtime, devices={0: "GPU-0"})
    declared = updated(DAEMON.declared, expected=False)
    assert updated(DAEMON, runtime=runtime, declared=declared) is DAEMON
    assert updated(DAEMON, declared=updated(DAEMON.declared, expected=True)) == replace(DAEMON, declared=EXPECTED)
