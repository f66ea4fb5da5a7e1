"""Deletes the pod of a daemon through the API server of Kubernetes, as the exporter's service account.

The controller of the pod, a DaemonSet or Deployment, then creates another one. Only one request is needed, so the
standard library's HTTP client suffices. The official client takes 27 MiB more memory (measured, Python 3.11).
"""

import json
import os
import ssl
from collections.abc import Mapping
from http.client import HTTPException, HTTPSConnection
from pathlib import Path
from urllib.parse import quote

from exporter.model.action import DeletePod
from exporter.model.reason import Reason, ReasonCode
from exporter.parse.printable import printable

ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds the certificate authority and the token of its service account. The kubelet renews the token."""

REQUEST_SECONDS = 5.0
_MAX_ANSWER = 1 << 16
_GONE = (404, 409)
"""The pod has been deleted, or another pod with another UID has its name."""


def delete_pod(
    step: DeletePod, *, account: Path = ACCOUNT, environment: Mapping[str, str] = os.environ
) -> Reason | None:
    """Delete the pod if it still has its UID. Return why it was not deleted; None also if it is gone already."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    pod = f"{step.namespace}/{step.name}"
    if not host or not port.isdecimal():
        return Reason(ReasonCode.API_SERVER_UNKNOWN)
    path = f"/api/v1/namespaces/{quote(step.namespace, safe='')}/pods/{quote(step.name, safe='')}"
    body = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": step.uid}}
    try:
        token = (account / "token").read_text(encoding="ascii").strip()
        trusted = ssl.create_default_context(cafile=str(account / "ca.crt"))
        connection = HTTPSConnection(host, int(port), timeout=REQUEST_SECONDS, context=trusted)
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
            connection.request("DELETE", path, json.dumps(body), headers)
            with connection.getresponse() as answer:
                status, text = answer.status, answer.read(_MAX_ANSWER)
        finally:
            connection.close()
    except (OSError, HTTPException, ValueError) as error:
        return Reason(ReasonCode.API_SERVER_UNREACHABLE, text=printable(str(error) or type(error).__name__))
    if status in _GONE or 200 <= status < 300:
        return None
    if status in (401, 403):
        return Reason(ReasonCode.POD_DELETION_FORBIDDEN, pod=pod)
    return Reason(ReasonCode.POD_NOT_DELETED, pod=pod, state=f"HTTP {status}", text=_message(text))


def _message(answer: bytes) -> str | None:
    """Return the message of the API server's Status object."""
    try:
        message = json.loads(answer)["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        return None
    return printable(message) if isinstance(message, str) else None
