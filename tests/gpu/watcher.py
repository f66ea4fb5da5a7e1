"""What can be learnt of a process' end from beside it, through a pidfd and /proc, by who is not its parent."""

import fcntl
import os
import select
import struct
import threading
import time
from typing import Any

from .child import Child

Told = dict[str, Any]

ROUND_MS = 10
MOST_STATES = 200
LATE_REAPING_SECONDS = 0.05
# linux/pidfd.h: struct pidfd_info as it first was, 64 bytes, in the word that PIDFD_GET_INFO is made of.
INFO_SIZE = 64
GET_INFO = 3 << 30 | INFO_SIZE << 16 | 0xFF << 8 | 11
INFO_EXIT = 1 << 3
EXIT_CODE_OFFSET = 60


class _Watched:
    def __init__(self, child: Child) -> None:
        self.child = child
        self.pidfd = os.pidfd_open(child.pid)
        self.ready_at: float | None = None
        self.told: Told = {"states": []}

    def sample(self, now: float) -> None:
        """Its state and flags, where they have changed."""
        found = stat(self.child.pid)
        seen = None if found is None else {key: found[key] for key in ("state", "flags")}
        states = self.told["states"]
        if len(states) < MOST_STATES and (not states or states[-1]["seen"] != seen):
            states.append({"at": round(now, 4), "seen": seen})

    def ended(self, now: float) -> None:
        self.ready_at = now
        self.told.update(
            ended=round(now, 4), stat_at_end=stat(self.child.pid), info_at_end=exit_information(self.pidfd)
        )

    def ask_again(self, now: float) -> None:
        """Until the kernel tells how it ended: it does so once the parent has taken note."""
        if "status" not in self.told and isinstance(status := exit_information(self.pidfd), int):
            self.told.update(status=status, status_learnt=round(now, 4))


class Watcher:
    """Watches in a thread of its own. It has the parent take note of an end at once, or a little later."""

    def __init__(self, *, reaps_at_once: bool) -> None:
        self.reaps_at_once = reaps_at_once
        self._watched: list[_Watched] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def watch(self, child: Child) -> None:
        """From now on, to its end."""
        self._watched.append(_Watched(child))
        if self.reaps_at_once:
            threading.Thread(target=child.wait, args=(None,), daemon=True).start()

    def running(self) -> list[Child]:
        """Those that have not ended."""
        return [each.child for each in self._watched if each.ready_at is None]

    def told(self, pid: int) -> Told:
        """All that was learnt of one."""
        (found,) = (each for each in self._watched if each.child.pid == pid)
        return {**found.told, "reaped_at_once": self.reaps_at_once}

    def close(self) -> None:
        """Watch no longer."""
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
                    each.ask_again(now)
                    if not self.reaps_at_once and now - each.ready_at > LATE_REAPING_SECONDS:
                        each.child.exit_code  # noqa: B018  (it is what reaps)

    def _wait(self) -> None:
        poll = select.poll()
        running = {each.pidfd: each for each in list(self._watched) if each.ready_at is None}
        for pidfd in running:
            poll.register(pidfd, select.POLLIN)
        for pidfd, _ in poll.poll(ROUND_MS):
            running[pidfd].ended(time.time())


def stat(pid: int) -> Told | None:
    """State, flags and, for a zombie, the wait status: fields 3, 9 and 52 of /proc/PID/stat (proc(5))."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    return {"state": fields[0], "flags": f"{int(fields[6]):#x}", "exit_code": int(fields[49])}


def exit_information(pidfd: int) -> int | str | None:
    """The wait status by PIDFD_GET_INFO (Linux 6.15); None where the kernel does not tell it yet, or the error."""
    buffer = bytearray(struct.pack("Q", INFO_EXIT).ljust(INFO_SIZE, b"\0"))
    try:
        fcntl.ioctl(pidfd, GET_INFO, buffer)
    except OSError as error:
        return str(error)
    (mask,) = struct.unpack_from("Q", buffer)
    (status,) = struct.unpack_from("i", buffer, EXIT_CODE_OFFSET)
    return int(status) if mask & INFO_EXIT else None
