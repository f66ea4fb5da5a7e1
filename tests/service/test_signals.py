"""Signals that stop or reload the service."""

import os
import signal

from exporter.service import handle_signals


def test_wakes_the_main_thread_after_the_event_is_set() -> None:
    stopped: list[bool] = []

    with handle_signals(lambda: stopped.append(signals.stop)) as signals:
        os.kill(os.getpid(), signal.SIGTERM)

    assert stopped == [True]


def test_sighup_requests_a_reload() -> None:
    with handle_signals(lambda: None, reloads=True) as signals:
        os.kill(os.getpid(), signal.SIGHUP)

    assert signals.reload
    assert not signals.stop
