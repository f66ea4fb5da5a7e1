"""A fake API server with TLS: it authenticates one token, and shows and deletes pods as far as its rules permit."""

import json
import ssl
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.web.certificates import Authority

TOKEN = "a-token-of-the-service-account"


@dataclass
class ApiServer:
    """Pods by namespace and name, with their UIDs. `deleted` has the deletions, `on_delete` is called for each."""

    directory: Path
    pods: dict[tuple[str, str], str] = field(default_factory=dict)
    permitted: frozenset[str] = frozenset()
    """Namespaces in which the service account may use pods."""
    labels: dict[str, dict[str, object]] = field(default_factory=dict)
    """Labels of pods by UID. A pod that is not here has no field `labels`, as of a real API server."""
    asked: list[str] = field(default_factory=list)
    """The names of the pods that were asked for."""
    deleted: list[tuple[str, str]] = field(default_factory=list)
    on_delete: Callable[[str], object] = lambda _: None
    answer: tuple[int, bytes] | None = None
    """Sent to every request, if set."""

    def __enter__(self) -> Self:
        self.account = self.directory / "account"
        self.account.mkdir(parents=True)
        authority = Authority(self.directory)
        certificate = authority.issue("api", "IP:127.0.0.1")
        (self.account / "ca.crt").write_text(authority.cert.read_text())
        (self.account / "token").write_text(TOKEN)
        self.context = context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate.cert, certificate.key)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def environment(self) -> Mapping[str, str]:
        """Return the variables by which a pod finds the API server."""
        return {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self._server.server_port)}

    def respond(self, path: str, token: str | None, request: Mapping[str, Any] | str) -> tuple[int, bytes]:
        """Return the answer to a DELETE with this body, or to a GET with this Accept header, as the real one does."""
        if self.answer is not None:
            return self.answer
        if token != f"Bearer {TOKEN}":
            return _status(401, "Unauthorized")
        _, _, _, _, namespace, _, name = path.split("/")
        if isinstance(request, str):
            self.asked.append(name)
        if namespace not in self.permitted:
            return _status(403, f'pods "{name}" is forbidden')
        uid = self.pods.get((namespace, name))
        if uid is None:
            return _status(404, f'pods "{name}" not found')
        if isinstance(request, str):
            return self._pod(namespace, name, request)
        if request["preconditions"]["uid"] != uid:
            return _status(409, "the UID in the precondition does not match")
        del self.pods[namespace, name]
        self.deleted.append((namespace, name))
        self.on_delete(uid)
        return 200, b"{}"

    def _pod(self, namespace: str, name: str, accept: str) -> tuple[int, bytes]:
        uid = self.pods[namespace, name]
        metadata: dict[str, object] = {"namespace": namespace, "name": name, "uid": uid}
        if uid in self.labels:
            metadata["labels"] = self.labels[uid]
        if accept == "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1":
            pod = {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata}
        else:
            pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata, "spec": {"containers": []}}
        return 200, json.dumps(pod).encode()

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            def do_DELETE(self) -> None:
                self._respond(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))

            def do_GET(self) -> None:
                self._respond(self.headers["Accept"])

            def _respond(self, request: Mapping[str, Any] | str) -> None:
                code, answer = api.respond(self.path, self.headers["Authorization"], request)
                self.send_response(code)
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                pass

        return Handler


def _status(code: int, message: str) -> tuple[int, bytes]:
    return code, json.dumps({"kind": "Status", "code": code, "message": message}).encode()
