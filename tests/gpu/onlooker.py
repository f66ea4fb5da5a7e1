"""What one exporter says of a daemon's faults, and when: one JSON object a line on stdout.

python3 -m tests.gpu.onlooker HOST:PORT DAEMON

A process of its own, so that nothing else delays its clock. It ends when it is asked to, or nobody answers any more.
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
    """One page, over a connection that is kept."""

    def __init__(self, address: str, path: str) -> None:
        self._connection = http.client.HTTPConnection(address, timeout=10)
        self._path = path

    def ask(self) -> tuple[str, dict[str, float]]:
        """Its text, and the times right before and after."""
        asked = time.time()
        self._connection.request("GET", self._path)
        answer = self._connection.getresponse()
        text = answer.read().decode()
        answered = time.time()
        if answer.status != http.client.OK:
            raise RuntimeError(f"{self._path}: {answer.status} {text}")
        return text, {"asked": round(asked, 6), "answered": round(answered, 6)}


def say(event: str, **told: Any) -> None:
    """In one write, since two threads say something."""
    sys.stdout.write(json.dumps({"event": event, **told}) + "\n")
    sys.stdout.flush()


def watch_count(address: str, daemon: str) -> None:
    """Scrape, and say when the daemon's count of faults has changed, and how closely that was looked at."""
    page = Page(address, "/metrics")
    sample = re.compile(rf'^cuda_mps_faults_total{{daemon="{re.escape(daemon)}"}} (\S+)$', re.MULTILINE)
    count, scrapes, last, longest = -1.0, 0, time.time(), 0.0
    pace_due = last + PACE_TOLD_EVERY_SECONDS
    while True:
        text, times = page.ask()
        found = sample.search(text)
        now = 0.0 if found is None else float(found[1])
        if now != count:
            say("faults", count=now, before=count, **times)
            count = now
        scrapes, longest, last = scrapes + 1, max(longest, times["answered"] - last), times["answered"]
        if last > pace_due:
            say("pace", scrapes=scrapes, longest_gap=round(longest, 4), at=last)
            scrapes, longest, pace_due = 0, 0.0, last + PACE_TOLD_EVERY_SECONDS
        time.sleep(SCRAPED_EVERY_SECONDS)


def watch_incidents(address: str, daemon: str) -> None:
    """Say each incident of the daemon when it is new or has changed."""
    page = Page(address, "/api/v1/incidents")
    said: dict[str, object] = {}
    while True:
        text, times = page.ask()
        for incident in json.loads(text)["data"]:
            if incident["daemon"] == daemon and said.get(incident["id"]) != incident:
                said[incident["id"]] = incident
                say("incident", incident=incident, **times)
        time.sleep(ASKED_EVERY_SECONDS)


def main(address: str, daemon: str) -> None:
    """Until it is ended."""
    threading.Thread(target=watch_incidents, args=(address, daemon), daemon=True).start()
    watch_count(address, daemon)


if __name__ == "__main__":
    main(*sys.argv[1:])
