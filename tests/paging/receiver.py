"""A webhook that stores each notification with its receiver."""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from tests.ports import LOCALHOST


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert of a notification."""

    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    status: str

    @property
    def name(self) -> str:
        """The name of the alert."""
        return self.labels["alertname"]


@dataclass(frozen=True, slots=True)
class Message:
    """A notification of Alertmanager to one receiver."""

    receiver: str
    alerts: Sequence[Alert]

    @property
    def firing(self) -> Sequence[Alert]:
        """The alerts that fire."""
        return [each for each in self.alerts if each.status == "firing"]

    def about(self, instance: str) -> bool:
        """Return whether it is about this target."""
        return any(each.labels.get("instance") == instance for each in self.alerts)


class Receiver:
    """A webhook server that runs while the context is open."""

    def __init__(self) -> None:
        self._messages: list[Message] = []
        pager = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                """Store a notification."""
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                pager._messages.append(_message(self.path.removeprefix("/"), body))
                self.send_response(200)
                self.end_headers()

            def log_request(self, *_: object) -> None:
                """Write no log."""

        self._server = ThreadingHTTPServer((LOCALHOST, 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def url(self, receiver: str) -> str:
        """Return the URL of a receiver."""
        return f"http://{LOCALHOST}:{self._server.server_port}/{receiver}"

    def about(self, instance: str) -> Sequence[Message]:
        """Return the notifications of an instance so far."""
        return [each for each in tuple(self._messages) if each.about(instance)]


def _message(receiver: str, body: Mapping[str, Any]) -> Message:
    alerts = [Alert(each["labels"], each["annotations"], each["status"]) for each in body["alerts"]]
    return Message(receiver, alerts)
