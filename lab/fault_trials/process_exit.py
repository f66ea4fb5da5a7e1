"""What a process that is not the parent can learn of a process's exit: pidfd and /proc."""

import fcntl
import os
import select
import struct
import threading
import time
from typing import Any

from lab.gpu.child import Child

Observations = dict[str, Any]

ROUND_MS = 10
MOST_STATES = 200
LATE_REAPING_SECONDS = 0.05
# linux/pidfd.h: the first struct pidfd_info, 64 bytes, in the number of PIDFD_GET_INFO.
INFO_SIZE = 64
GET_INFO = 3 << 30 | INFO_SIZE << 16 | 0xFF << 8 | 11
INFO_EXIT = 1 << 3
EXIT_CODE_OFFSET = 60


class _Watched:
    def __init__(self, child: Child) -> None:
        self.child = child
        self.pidfd = os.pidfd_open(child.pid)
        self.ready_at: float | None = None
        self.observed: Observations = {"states": []}

    def sample(self, now: float) -> None:
        """Record state and flags if they have changed."""
        found = stat(self.child.pid)
        seen = None if found is None else {key: found[key] for key in ("state", "flags")}
        states = self.observed["states"]
        if len(states) < MOST_STATES and (not states or states[-1]["seen"] != seen):
            states.append({"at": round(now, 4), "seen": seen})

    def ended(self, now: float) -> None:
        self.ready_at = now
        self.observed.update(
            ended=round(now, 4), stat_at_end=stat(self.child.pid), info_at_end=exit_information(self.pidfd)
        )

    def query_status(self, now: float) -> None:
        """Query the exit status, which the kernel reports after the parent has reaped the process."""
        if "status" not in self.observed and isinstance(status := exit_information(self.pidfd), int):
            self.observed.update(status=status, status_learnt=round(now, 4))


class Watcher:
    """Observe processes in a thread. The parent reaps them at once or a little later."""

    def __init__(self, *, reaps_at_once: bool) -> None:
        self.reaps_at_once = reaps_at_once
        self._watched: list[_Watched] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, child: Child) -> None:
        """Observe a process until its end."""
        self._watched.append(_Watched(child))
        if self.reaps_at_once:
            threading.Thread(target=child.wait, args=(None,), daemon=True).start()

    def running(self) -> list[Child]:
        """Return the processes that have not ended."""
        return [each.child for each in self._watched if each.ready_at is None]

    def observations(self, pid: int) -> Observations:
        """Return all observations of a process."""
        (found,) = (each for each in self._watched if each.child.pid == pid)
        return {**found.observed, "reaped_at_once": self.reaps_at_once}

    def close(self) -> None:
        """Stop."""
        self._stop.set()
        self._thread.join()
        for each in self._watched:
            os.close(each.pidfd)

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wait()
            now = time.time()
            for each in list(self._watched):
                each.sample(now)
                if each.ready_at is not None:
                    each.query_status(now)
                    if not self.reaps_at_once and now - each.ready_at > LATE_REAPING_SECONDS:
                        each.child.exit_code  # noqa: B018  (this reaps it)

    def _wait(self) -> None:
        poll = select.poll()
        running = {each.pidfd: each for each in list(self._watched) if each.ready_at is None}
        for pidfd in running:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(ROUND_MS):
            running[pidfd].ended(time.time())


def stat(pid: int) -> Observations | None:
    """Return state, flags and, for a zombie, the wait status: fields 3, 9 and 52 of /proc/PID/stat (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return {"state": fields[0], "flags": f"{int(fields[6]):#x}", "exit_code": int(fields[49])}


def exit_information(pidfd: int) -> int | str | None:
    """Return the wait status by PIDFD_GET_INFO (Linux 6.15), None if it is not known yet, or the error."""
    buffer = bytearray(struct.pack("Q", INFO_EXIT).ljust(INFO_SIZE, b"\0"))
    try:
        fcntl.ioctl(pidfd, GET_INFO, buffer)
    except OSError as error:
        return str(error)
    (mask,) = struct.unpack_from("Q", buffer)
    (status,) = struct.unpack_from("i", buffer, EXIT_CODE_OFFSET)
    return int(status) if mask & INFO_EXIT else None
