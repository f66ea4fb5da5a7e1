"""`status --watch`: shows the node again and again, until it is interrupted."""

import contextlib
import json
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace

from exporter.clock import Clock
from exporter.errors import ServiceError
from exporter.inquiry import Report
from exporter.telling.line import Line, Sheet, bad, faint, said
from exporter.telling.moment import local, when
from exporter.terminal.fitting import fitted, whole
from exporter.terminal.terminal import Terminal, heeding_signals


def resized_within(seconds: float) -> bool:
    """Wait so long, or until the terminal has another size: whether it has."""
    return signal.sigtimedwait({signal.SIGWINCH}, seconds) is not None


class Watching:
    """Shows what is reported: in place on a terminal that can, else one below the other."""

    def __init__(
        self,
        report: Callable[[int | None], Report],
        terminal: Terminal,
        clock: Clock,
        *,
        seconds: float,
        as_json: bool = False,
        brief: bool = False,
        wait: Callable[[float], object] = resized_within,
    ) -> None:
        """`brief`: the head of each sheet alone."""
        self._report = report
        self._terminal = terminal
        self._clock = clock
        self._seconds = seconds
        self._as_json = as_json
        self._brief = brief
        self._wait = wait
        self._last: tuple[float, Report] | None = None
        self._exit_code = 1

    def run(self) -> int:
        """Until interrupted: the exit code of what was shown last. ServiceError where nothing is told at first."""
        in_place = not self._as_json and self._terminal.can_redraw
        own_screen = self._terminal.screen_of_its_own() if in_place else contextlib.nullcontext()
        with contextlib.suppress(KeyboardInterrupt), heeding_signals(), own_screen:
            if in_place:
                self._terminal.redraw([said(faint("looking …"))])
            while True:
                self._turn()
                self._wait(self._seconds)
        return self._exit_code

    def _turn(self) -> None:
        problem = None
        try:
            report = self._report(self._terminal.width)
            self._last = self._clock.now(), report
            self._exit_code = report.exit_code
        except ServiceError as error:
            if self._last is None:
                raise
            problem, self._exit_code = str(error), 1
        since, report = self._last
        if report.sheet is None:
            self._show_object({"at": self._clock.now(), "problem": problem} if problem else report.node)
        else:
            self._show_sheet(self._title(report.by, since, problem), report.sheet)

    def _show_object(self, told: object) -> None:
        """One a line, as JSON Lines have it."""
        self._terminal.show_text(json.dumps(told) + "\n")

    def _show_sheet(self, title: Sequence[Line], sheet: Sheet) -> None:
        if self._brief:
            sheet = replace(sheet, table=(), sharing=(), troubles=(), past=())
        if self._terminal.can_redraw:
            self._terminal.redraw(fitted(title, sheet, *self._terminal.size))
        else:
            self._terminal.show((*title, *whole(sheet), said()))

    def _title(self, by: str, since: float, problem: str | None) -> Sequence[Line]:
        now = self._clock.now()
        if problem is not None:
            return [said(faint(local(now)), "  ", bad(f"{problem}: what follows is as of {when(since, now)}"))]
        return [said(faint(f"{local(now)}, by {by}"))]
