"""Poll an exporter for a daemon's faults, and print each report with its time: one JSON object a line.

python3 -m lab.fault_trials.poll_exporter HOST:PORT DAEMON

It is a separate process, so that nothing delays its clock. It ends by a signal, or when the exporter does not answer.
"""

import http.client
import json
import re
import sys
import threading
import time
from typing import Any

SCRAPED_EVERY_SECONDS = 0.008
ASKED_EVERY_SECONDS = 0.2
PACE_TOLD_EVERY_SECONDS = 5.0


class Page:
    """A page, over a persistent connection."""

    def __init__(self, address: str, path: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=10)
        self._path = path

    def ask(self) -> tuple[str, dict[str, float]]:
        """Return its text, and the times right before and after."""
        asked = time.time()
        self._connection.request("GET", self._path)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        answered = time.time()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{self._path}: {answer.status} {text}")
        return text, {"asked": round(asked, 6), "answered": round(answered, 6)}


def report(event: str, **values: Any) -> None:
    """Print a line in one write, because two threads print."""
    sys.stdout.write(json.dumps({"event": event, **values}) + "\n")
    sys.stdout.flush()


def watch_count(address: str, daemon: str) -> None:
    """Scrape. Report each change of the daemon's count of faults, and how often it was polled."""
    page = Page(address, "/metrics")
    sample = re.compile(rf'^cuda_mps_faults_total{{daemon="{re.escape(daemon)}"}} (\S+)$', re.MULTILINE)
    count, scrapes, last, longest = -1.0, 0, time.time(), 0.0
    pace_due = last + PACE_TOLD_EVERY_SECONDS
    while True:
        text, times = page.ask()
        found = sample.search(text)
        now = 0.0 if found is None else float(found[1])
        if now != count:
            report("faults", count=now, before=count, **times)
            count = now
        scrapes, longest, last = scrapes + 1, max(longest, times["answered"] - last), times["answered"]
        if last > pace_due:
            report("pace", scrapes=scrapes, longest_gap=round(longest, 4), at=last)
            scrapes, longest, pace_due = 0, 0.0, last + PACE_TOLD_EVERY_SECONDS
        time.sleep(SCRAPED_EVERY_SECONDS)


def watch_incidents(address: str, daemon: str) -> None:
    """Report each new or changed incident of the daemon."""
    page = Page(address, "/api/v1/incidents")
    reported: dict[str, object] = {}
    while True:
        text, times = page.ask()
        for incident in json.loads(text)["data"]:
            if incident["daemon"] == daemon and reported.get(incident["id"]) != incident:
                reported[incident["id"]] = incident
                report("incident", incident=incident, **times)
        time.sleep(ASKED_EVERY_SECONDS)


def main(address: str, daemon: str) -> None:
    """Run until a signal ends it."""
    threading.Thread(target=watch_incidents, args=(address, daemon), daemon=True).start()
    watch_count(address, daemon)


if __name__ == "__main__":
    main(*sys.argv[1:])
