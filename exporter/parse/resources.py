"""Names of Kubernetes' device plugins and DRA drivers: shared devices and resource claims."""

import re

_UUID = r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"

_CLAIM_DIRECTORY = re.compile(rf"(?:/[^/]+)*/mps/({_UUID})-[0-9a-f]{{5}}/pipe")
"""`<plugin directory>/mps/<claim UID>-<hash of the devices>/pipe` (cmd/gpu-kubelet-plugin/sharing.go, 25.x)."""


def claim_uid(pipe_directory: str) -> str | None:
    """Return the UID of the resource claim that a directory of NVIDIA's DRA driver belongs to; None for another one."""
    found = _CLAIM_DIRECTORY.fullmatch(pipe_directory)
    return None if found is None else found[1]
