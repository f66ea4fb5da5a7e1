"""The kubelet's directory of a pod's logs, `NAMESPACE_NAME_UID` (Kubernetes, pkg/kubelet/kuberuntime/helpers.go)."""

import re
from dataclasses import dataclass

_LABEL = r"[a-z0-9](?:[a-z0-9-]{0,61}[a-z0-9])?"
_NAMESPACE = re.compile(_LABEL)
_NAME = re.compile(rf"{_LABEL}(?:\.{_LABEL})*")
"""RFC 1123, which has no `_`, so that the parts cannot be told apart in two ways."""

_LONGEST_NAME = 253
_UID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """A pod, by all its names."""

    uid: str
    name: str
    namespace: str


def pod(directory: str) -> Pod | None:
    """The pod whose logs a directory of this name holds; None where it is no pod's."""
    namespace, _, rest = directory.partition("_")
    name, _, uid = rest.partition("_")
    if len(name) > _LONGEST_NAME:
        return None
    well_formed = _NAMESPACE.fullmatch(namespace) and _NAME.fullmatch(name) and _UID.fullmatch(uid)
    return Pod(uid=uid, name=name, namespace=namespace) if well_formed else None
