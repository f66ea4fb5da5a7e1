"""The driver as this process holds it: opened once for all who read it, and closed when none of them does.

Closing it leaves no descriptor on a device and no library in memory, so that the driver can be unloaded and upgraded.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator

import pynvml

from exporter.model.gpu import PAUSED
from exporter.sources.nvml.library import shut_down, unload_unused

PATIENCE_SECONDS = 1.0
"""How long a look waits for others to be done with a driver that is to be closed first."""


class DriverError(Exception):
    """The driver cannot be read, and why, in words for a person."""


class Driver:
    """Opens for who may open it, lets others join, and closes when it was lost or paused and nobody is in a call.

    A driver call can hang for minutes and cannot be cancelled: no lock is held during one, and nothing is closed under
    the feet of who is in one.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._before_closing: list[Callable[[], None]] = []
        self._open = False
        self._moving = False
        self._users = 0
        self._lost = False
        self._paused = False

    def before_closing(self, give_back: Callable[[], None]) -> None:
        """Have this called, while nobody uses the driver, before it is closed."""
        self._before_closing.append(give_back)

    @contextlib.contextmanager
    def opened(self) -> Iterator[None]:
        """Use the driver, opening it if need be. An NVML error that leaves the block closes it.

        Raises DriverError where it cannot be opened, is paused, or failed within the block.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._paused or not (self._moving or self._lost), PATIENCE_SECONDS)
            self._check()
            opening = self._moving = not self._open
            self._users += 1
        try:
            if opening:
                self._init()
            with self._told_in_words():
                yield
        finally:
            self._leave()

    @contextlib.contextmanager
    def joined(self, within: float) -> Iterator[None]:
        """Use the driver that another has opened, or opens within so many seconds."""
        with self._changed:
            self._changed.wait_for(self._usable, within)
            self._check()
            if not self._open:
                raise DriverError("the driver is not open")
            self._users += 1
        try:
            with self._told_in_words():
                yield
        finally:
            self._leave()

    def rest(self, seconds: float) -> None:
        """Wait so long, or until the driver is opened, closed or paused."""
        with self._changed:
            self._changed.wait(seconds)

    def go_on(self) -> None:
        """Raise DriverError where a pause was asked for meanwhile."""
        if self._paused:
            raise DriverError(PAUSED)

    def pause(self, timeout: float) -> bool:
        """Close it and keep it closed; whether that was done within `timeout` seconds. Else it is done when it can be.

        False where a call hangs in the driver.
        """
        with self._changed:
            self._paused = True
            self._changed.notify_all()
        threading.Thread(target=self._close_if_due, name="nvml-close", daemon=True).start()
        with self._changed:
            return self._changed.wait_for(lambda: not self._open and not self._moving, timeout)

    def resume(self) -> None:
        """Let it be opened again."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def _usable(self) -> bool:
        return self._open and not (self._moving or self._lost or self._paused)

    def _check(self) -> None:
        self.go_on()
        if self._moving or self._lost:
            raise DriverError("a call that has not come back keeps the driver from being opened anew")

    def _init(self) -> None:
        opened = False
        try:
            with self._told_in_words():
                pynvml.nvmlInit()
                opened = True
        finally:
            if not opened:
                unload_unused()
            with self._changed:
                self._open, self._moving, self._lost = opened, False, False
                self._changed.notify_all()

    @contextlib.contextmanager
    def _told_in_words(self) -> Iterator[None]:
        """In words while the library is still there, which has the words."""
        try:
            yield
        except pynvml.NVMLError as error:
            self._lost = True
            raise DriverError(str(error)) from error

    def _leave(self) -> None:
        with self._changed:
            self._users -= 1
        self._close_if_due()

    def _close_if_due(self) -> None:
        with self._changed:
            if self._users or self._moving or not self._open or not (self._lost or self._paused):
                return
            self._moving = True
        try:
            for give_back in self._before_closing:
                with contextlib.suppress(pynvml.NVMLError):
                    give_back()
        finally:
            shut_down()
            with self._changed:
                self._open = self._moving = self._lost = False
                self._changed.notify_all()
