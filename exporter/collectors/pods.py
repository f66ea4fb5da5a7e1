"""Pods: their names from the directory of their logs, their labels from the API server, and the requests of actions.

Kubernetes' official client takes 27 MiB more memory (measured, Python 3.11).
"""

import contextlib
import errno
import json
import os
from collections.abc import Callable, Mapping, Sequence
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any
from urllib.parse import quote

from exporter.clock import Clock, SystemClock
from exporter.collectors.thread import Reading
from exporter.collectors.workload_processes import MAX_DIRECTORIES
from exporter.model.observation import Observation, PodFound
from exporter.model.reason import Reason, ReasonCode, of_error
from exporter.model.values import replace
from exporter.parse.cgroup import parse_pod_directory
from exporter.parse.printable import printable


class Pods:
    """The pods of this node that have logs."""

    def __init__(self, directory: Path, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._wanted: frozenset[str] = frozenset()

    def watch(self, uids: frozenset[str]) -> None:
        """Set the pods whose names are wanted."""
        self._wanted = uids

    def collect(self) -> Reading:
        """Return the known names of the wanted pods. If none is wanted, the directory is not read."""
        wanted = self._wanted
        if not wanted:
            return Reading()
        try:
            with os.scandir(self._directory) as entries:
                names = [entry.name for entry in islice(entries, MAX_DIRECTORIES)]
        except (FileNotFoundError, NotADirectoryError):
            return Reading()
        except OSError as error:
            return Reading(problem=of_error(self._directory, error))
        return Reading(
            tuple(
                PodFound(at=self._clock.now(), uid=pod.uid, name=pod.name, namespace=pod.namespace)
                for pod in map(parse_pod_directory, sorted(names))
                if pod is not None and pod.uid in wanted
            )
        )


ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the certificate authority and the token of its service account. The kubelet renews the token."""

REQUEST_SECONDS = 5.0  # for a whole request, however slowly its answer comes
MAX_ANSWER = 4 << 20  # etcd refuses an object of more than 1.5 MiB.

FORBIDDEN = (401, 403)
GONE = (404, 409)  # The pod has been deleted, or another pod with another UID has its name.

_ONLY_METADATA = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
"""The answer has no spec: environment variables of containers do not get into the exporter."""

Answer = tuple[int, Any] | Reason


def ask_pod(
    method: str,
    namespace: str,
    name: str,
    body: Mapping[str, Any] | None = None,
    *,
    account: Path = ACCOUNT,
    environment: Mapping[str, str] = os.environ,
) -> Answer:
    """Return the HTTP status and the JSON of a request about a pod; None if it is unusable. Return why none came."""
    # TLS takes time and memory, and most nodes never ask.
    import ssl
    from http.client import HTTPException, HTTPSConnection

    now = SystemClock().monotonic
    ends = now() + REQUEST_SECONDS

    def left() -> float:
        seconds = ends - now()
        if seconds <= 0:
            raise TimeoutError(errno.ETIMEDOUT, "timed out")
        return seconds

    class Socket(ssl.SSLSocket):
        """Reads until the request's end. A timeout of the connection would begin again with each byte."""

        def do_handshake(self, block: bool = False) -> None:
            self.settimeout(left())
            super().do_handshake(block)

        def read(self, *arguments: Any) -> Any:
            self.settimeout(left())
            return super().read(*arguments)

    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host or not port.isdecimal():
        return Reason(ReasonCode.API_SERVER_UNKNOWN)
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
    try:
        token = (account / "token").read_text(encoding="ascii").strip()
        trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
        trusted.sslsocket_class = Socket
        connection = HTTPSConnection(host, int(port), timeout=REQUEST_SECONDS, context=trusted)
        try:
            accept = _ONLY_METADATA if method == "GET" else "application/json"
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json", "Accept": accept}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            with connection.getresponse() as answer:
                status, text = answer.status, answer.read(MAX_ANSWER)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        return Reason(ReasonCode.API_SERVER_UNREACHABLE, text=printable(str(error) or type(error).__name__))
    content = None
    with contextlib.suppress(ValueError, RecursionError):
        content = json.loads(text)
    return status, content


def message_of(content: Any) -> str | None:
    """Return the message of a Status object, with which the API server refuses a request."""
    message = content.get("message") if isinstance(content, dict) else None
    return printable(message) if isinstance(message, str) else None


LONGEST_LABEL = 63  # Characters of a label's value (Kubernetes, "Labels and Selectors").
PAUSE_SECONDS = 60.0  # How long the collector asks nothing after a problem.
COLLECTION_SECONDS = 3.0  # After this time, it begins no further request.


class PodLabels:
    """Reads the labels of clients' pods, once for each pod, and takes only those with these `names`.

    One request for each pod, not one for all pods of the node: it needs no permission to list pods, and a pod with
    large annotations makes no other answer larger.
    """

    def __init__(self, names: Sequence[str], clock: Clock, ask: Callable[[str, str, str], Answer] = ask_pod) -> None:
        self._names = names
        self._clock = clock
        self._ask = ask
        self._wanted: Sequence[PodFound] = ()
        self._asked: dict[str, float] = {}
        """When each wanted pod was last asked for; infinite if it was deleted."""
        self._problem: Reason | None = None
        self._problem_at = 0.0

    def watch(self, pods: Sequence[PodFound]) -> None:
        """Set the pods whose labels are wanted."""
        self._wanted = pods

    def collect(self) -> Reading:
        """Return the pods with their labels. A pod that was deleted has none, which is no problem."""
        began, found = self._clock.monotonic(), list[Observation]()
        if self._problem is not None and began - self._problem_at < PAUSE_SECONDS:
            return Reading(problem=self._problem)
        self._problem, self._problem_at, wanted = None, began, self._wanted
        self._asked = {pod.uid: self._asked.get(pod.uid, 0.0) for pod in wanted}
        # Pods that may not be read remain wanted, so those that were not asked for are first.
        for pod in sorted(wanted, key=lambda pod: self._asked[pod.uid]):
            if self._asked[pod.uid] == inf or self._clock.monotonic() - began >= COLLECTION_SECONDS:
                break
            self._asked[pod.uid] = began
            labels = self._labels(pod)
            if isinstance(labels, Reason):
                self._problem = labels
            elif labels is None:
                self._asked[pod.uid] = inf
            else:
                found.append(replace(pod, at=self._clock.now(), labels=labels))
        return Reading(tuple(found), self._problem)

    def _labels(self, pod: PodFound) -> Mapping[str, str] | Reason | None:
        """Return the labels; None if the pod was deleted; or why they are unknown."""
        answer, subject = self._ask("GET", pod.namespace, pod.name), f"pod {pod.namespace}/{pod.name}"
        if isinstance(answer, Reason):
            return answer
        status, content = answer
        if status in GONE and message_of(content) is not None:  # Another server than the API server can answer 404.
            return None
        if status in FORBIDDEN:
            return Reason(ReasonCode.PERMISSION_DENIED, subject=subject, detail=message_of(content) or "")
        with contextlib.suppress(LookupError, TypeError, AttributeError):
            metadata = content["metadata"] if status == 200 else {}
            labels = metadata.get("labels") or {}
            listed = {name: str(labels[name])[:LONGEST_LABEL] for name in self._names if name in labels}
            return listed if metadata["uid"] == pod.uid else None
        return Reason(ReasonCode.CALL_FAILED, subject=subject, detail=message_of(content) or f"HTTP {status}")
