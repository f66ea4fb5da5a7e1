"""The driver in this process: opened once, closed while paused."""

import _ctypes
import contextlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pynvml

from exporter.model.reason import Reason, ReasonCode

# ruff: noqa: SLF001 (nvidia-ml-py and ctypes have no public function to unload a library)


Value = TypeVar("Value")

OPEN_SECONDS = 1.0
"""How long a collection waits for a driver that other threads still use and that must be closed first."""

NOT_AVAILABLE = (
    pynvml.NVML_ERROR_NOT_SUPPORTED,
    pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    pynvml.NVML_ERROR_NO_PERMISSION,
    pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
)
"""The value is not available for this GPU, driver or user. The rest of the reading is valid."""

READY_FILE = Path("/run/nvidia/validations/.driver-ctr-ready")
"""The driver's container of NVIDIA's GPU operator makes this file, and removes it before the driver is unloaded.

No process may have the driver open then, so an exporter that remains would prevent an upgrade of the driver.
"""

MODULE_VERSION = Path("/sys/module/nvidia/version")  # in containers too, which have the node's /sys

DRIVER_LOST = (
    pynvml.NVML_ERROR_UNINITIALIZED,
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
)
"""The driver was unloaded or upgraded: NVML must be opened again."""

REPLACED = (pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
"""If NVML worked before, another driver was loaded or installed. A container keeps the old libraries, or loses them.

The same is true if another module is loaded than when this process started, or the driver's container has been ready
since: the container of this process was created too early.
"""

_MISSING = "libnvidia-ml.so.1: cannot open shared object file: No such file or directory"
_UNUSABLE = ("No such file or directory", "file too short", "invalid ELF header", "ELFCLASS32", "ELFCLASS64")
"""The message of dlopen(3) if the library is missing; and ends of its messages if the file is no library, is 32-bit, or
needs another that is missing. Other failures are of this process."""

_LOADING = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)

GPU_LOST = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)  # no reading of this GPU is valid any more

_CODES = {
    **dict.fromkeys(GPU_LOST, ReasonCode.GPU_LOST),
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: ReasonCode.DRIVER_NOT_LOADED,
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: ReasonCode.DRIVER_MISMATCH,
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: ReasonCode.LIBRARY_MISSING,
}


class DriverError(Exception):
    """The driver cannot be read."""

    def __init__(self, problem: Reason) -> None:
        super().__init__(problem)
        self.problem = problem


def nvml_problem(error: pynvml.NVMLError, gpu: str = "") -> Reason:
    """Return an error of NVML, of this GPU if one is given. The library has the error's text, so it must be mapped."""
    return Reason(_CODES.get(error.value, ReasonCode.DRIVER_ERROR), subject=gpu or None, detail=str(error))


class Values:
    """Reads single values. One that fails is None and a problem, and the others remain valid."""

    def __init__(self) -> None:
        self.problems: dict[str, Reason] = {}  # the problem of each value that failed, by its name
        self.not_supported: set[str] = set()  # the names of the values that this GPU does not have

    def read(self, name: str, function: Callable[..., Value], *arguments: Any) -> Value | None:
        """Return a value; None if it is not available or fails. Raise the error if the GPU or the driver is lost."""
        try:
            return function(*arguments)
        except pynvml.NVMLError as error:
            if error.value in (*DRIVER_LOST, *GPU_LOST):
                raise
            if error.value == pynvml.NVML_ERROR_NOT_SUPPORTED:
                self.not_supported.add(name)
            elif error.value not in NOT_AVAILABLE:
                self.problems[name] = nvml_problem(error, name)
            return None

    def text(self, name: str, function: Callable[..., str], *arguments: Any) -> str | None:
        """Return a text, as `read` does. What is not UTF-8 is replaced: a board's name can have any bytes."""
        try:
            return self.read(name, function, *arguments)
        except UnicodeDecodeError as error:
            return bytes(error.object).decode(errors="replace")


def optional(function: Callable[..., Value], *arguments: Any) -> Value | None:
    """Return a value, or None after any error. Raise the error if the GPU or the driver is lost."""
    return Values().read("", function, *arguments)


class Driver:
    """The driver, which one collector opens and others join. It is closed after it was lost or paused.

    A driver call can hang for minutes and cannot be cancelled. So no lock is held during a call, and the driver is
    closed only when no thread is in a call.
    """

    def __init__(self, ready_file: Path = READY_FILE, module_version: Path = MODULE_VERSION) -> None:
        """While `ready_file` is missing after it existed, the driver is closed."""
        self._ready_file = ready_file
        self._module_version = module_version
        self._driver_at_start = self._present_driver()
        self._was_ready = False
        self._worked = False
        self.replaced = False
        """Whether the driver was replaced while this process ran, and NVML cannot be used since."""
        self._changed = threading.Condition()
        self._cleanups: list[Callable[[], None]] = []
        self._open = False
        self._in_transition = False
        """Whether a thread opens or closes the driver now."""
        self._users = 0
        self._lost = False
        self._paused = False

    def before_closing(self, cleanup: Callable[[], None]) -> None:
        """Call this function before the driver is closed, while no thread uses it."""
        self._cleanups.append(cleanup)

    def opened(self) -> contextlib.AbstractContextManager[None]:
        """Use the driver; open it if necessary. An NVML error that leaves the block closes it.

        Raises DriverError if the driver cannot be opened, is paused, or failed within the block.
        """
        return self._used(OPEN_SECONDS, join=False)

    def joined(self, within: float) -> contextlib.AbstractContextManager[None]:
        """Use the driver that another collector has opened, or opens within so many seconds. Raises DriverError."""
        return self._used(within, join=True)

    @contextlib.contextmanager
    def _used(self, within: float, *, join: bool) -> Iterator[None]:
        def ready() -> bool:
            closing = self._in_transition or self._lost
            return self._open and not (closing or self._paused) if join else self._paused or not closing

        self._close_if_due()
        with self._changed:
            self._changed.wait_for(ready, within)
            self.raise_if_paused()
            if self._in_transition or self._lost:
                raise DriverError(Reason(ReasonCode.DRIVER_HANGS))
            if join and not self._open:
                raise DriverError(Reason(ReasonCode.DRIVER_NOT_OPEN))
            opening = self._in_transition = not self._open
            self._users += 1
        try:
            if opening:
                self._init()
            with self._translated():
                yield
        finally:
            with self._changed:
                self._users -= 1
            self._close_if_due()

    def rest(self, seconds: float) -> None:
        """Wait for so many seconds, or until the driver is opened, closed or paused."""
        with self._changed:
            self._changed.wait(seconds)

    def raise_if_paused(self) -> None:
        """Raise DriverError if the driver is paused, or will be unloaded."""
        if self._paused:
            raise DriverError(Reason(ReasonCode.PAUSED))
        if self._is_withdrawn():
            raise DriverError(Reason(ReasonCode.DRIVER_WITHDRAWN, subject=str(self._ready_file)))

    def _is_withdrawn(self) -> bool:
        """Return whether the driver will be unloaded. What cannot be read changes nothing."""
        try:
            self._ready_file.lstat()
        except FileNotFoundError:
            return self._was_ready
        except OSError:
            return False
        self._was_ready = True
        return False

    def pause(self, timeout: float) -> bool:
        """Close the driver until `resume`, but after a call that hangs in it. Return whether in `timeout` seconds."""
        with self._changed:
            self._paused = True
            self._changed.notify_all()
        threading.Thread(target=self._close_if_due, name="nvml-close", daemon=True).start()
        with self._changed:
            return self._changed.wait_for(lambda: not self._open and not self._in_transition, timeout)

    def resume(self) -> None:
        """Allow the driver to be opened again."""
        with self._changed:
            self._paused = False
            self._changed.notify_all()

    def _init(self) -> None:
        opened = False
        try:
            if hasattr(pynvml, "__path__"):
                # This package has the same name. NVML is never unloaded through it, and never returns after a pause.
                raise DriverError(Reason(ReasonCode.PACKAGE_CONFLICT, subject="pynvml"))
            with self._translated():
                pynvml.nvmlInit()
                opened = self._worked = True
        finally:
            if not opened:
                unload_unused()
            with self._changed:
                self._open, self._in_transition, self._lost = opened, False, False
                self._changed.notify_all()

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        """Turn an NVML error into a DriverError while the library is mapped: it has the error's text."""
        try:
            yield
        except pynvml.NVMLError as error:
            # An OSError of the loader, or an AttributeError that names the missing function.
            problem, loading = nvml_problem(error), str(error.__context__ or "")
            if error.value == pynvml.NVML_ERROR_LIBRARY_NOT_FOUND and loading and not loading.endswith(_UNUSABLE):
                raise DriverError(Reason(ReasonCode.DRIVER_ERROR, detail=loading)) from error
            if error.value in _LOADING and loading not in ("", _MISSING):
                problem = Reason(ReasonCode.LIBRARY_UNUSABLE, detail=loading)
            self._lost = True
            self.replaced = self.replaced or (error.value in REPLACED and (self._worked or self._is_other_driver()))
            raise DriverError(problem) from error

    def _present_driver(self) -> tuple[str, int] | None:
        """Return the version of the loaded module, empty if there is none, and the time of `ready_file`, 0 if missing.

        None if they cannot be read.
        """
        version, ready_at = "", 0
        try:
            with contextlib.suppress(FileNotFoundError):
                version = self._module_version.read_text(encoding="ascii")
            with contextlib.suppress(FileNotFoundError):
                ready_at = self._ready_file.lstat().st_mtime_ns
        except (OSError, ValueError):
            return None
        return version, ready_at

    def _is_other_driver(self) -> bool:
        """Return whether a driver is loaded that is not the one at the start."""
        now = self._present_driver()
        return now is not None and now[0] != "" and self._driver_at_start not in (None, now)

    def _close_if_due(self) -> None:
        with self._changed:
            if self._users or self._in_transition or not self._open:
                return
            if not (self._lost or self._paused or self._is_withdrawn()):
                return
            self._in_transition = True
        try:
            for cleanup in self._cleanups:
                with contextlib.suppress(pynvml.NVMLError):
                    cleanup()
        finally:
            shut_down()
            with self._changed:
                self._open = self._in_transition = self._lost = False
                self._changed.notify_all()


def shut_down() -> None:
    """End one use of NVML, also if nvmlShutdown fails."""
    try:
        pynvml.nvmlShutdown()
    except pynvml.NVMLError:
        with pynvml.libLoadLock:
            pynvml._nvmlLib_refcount = max(0, pynvml._nvmlLib_refcount - 1)
    unload_unused()


def unload_unused() -> None:
    """Unmap the library, which no thread may use now, unless other code here has it open. nvmlInit maps it again."""
    with pynvml.libLoadLock:
        if pynvml.nvmlLib is None or pynvml._nvmlLib_refcount:
            return
        library, pynvml.nvmlLib = pynvml.nvmlLib, None
        pynvml._nvmlGetFunctionPointer_cache.clear()  # its functions are unmapped now
        with contextlib.suppress(OSError):
            _ctypes.dlclose(library._handle)
