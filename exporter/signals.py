"""What the service is told by signals (systemd.service(5), ExecReload=)."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wishes:
    """To end (SIGTERM, SIGINT), and to read the configuration anew (SIGHUP)."""

    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def wishes(*, reloads: bool = False) -> Iterator[Wishes]:
    """Hear signals, until they mean again what they meant before. Who does not reload ends with its terminal."""
    told = Wishes()
    heard = {signal.SIGTERM: told.stop, signal.SIGINT: told.stop}
    heard[signal.SIGHUP] = told.reload if reloads else told.stop
    before = {each: signal.signal(each, lambda number, _frame: heard[signal.Signals(number)].set()) for each in heard}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
