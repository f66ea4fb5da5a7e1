"""What the service is told by signals (systemd.service(5), ExecReload=)."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Wishes:
    """To end (SIGTERM, SIGINT), and to read the configuration anew (SIGHUP)."""

    stop: threading.Event = field(default_factory=threading.Event)
    reload: threading.Event = field(default_factory=threading.Event)


@contextlib.contextmanager
def wishes(*, reloads: bool = False, heard: Callable[[], object] = lambda: None) -> Iterator[Wishes]:
    """Hear signals, until they mean again what they meant before. Who does not reload ends with its terminal.

    `heard` is called after each signal, in the main thread, so that what waits there need not wait on.
    """
    told = Wishes()
    meant = {signal.SIGTERM: told.stop, signal.SIGINT: told.stop}
    meant[signal.SIGHUP] = told.reload if reloads else told.stop

    def hear(number: int, _frame: object) -> None:
        meant[signal.Signals(number)].set()
        heard()

    before = {each: signal.signal(each, hear) for each in meant}
    try:
        yield told
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
