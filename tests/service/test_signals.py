"""Signals are heard at once."""

import os
import signal

from exporter.service import handle_signals


def test_a_signal_is_heard_after_its_wish_is_known() -> None:
    stopped: list[bool] = []

    with handle_signals(lambda: stopped.append(told.stop.is_set())) as told:
        os.kill(os.getpid(), signal.SIGTERM)

    assert stopped == [True]


def test_a_hangup_means_a_reload_where_that_is_wanted() -> None:
    with handle_signals(lambda: None, reloads=True) as told:
        os.kill(os.getpid(), signal.SIGHUP)

    assert told.reload.is_set()
    assert not told.stop.is_set()
