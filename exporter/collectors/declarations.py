"""Daemons that the node's MPS installation declares: NVIDIA's device plugin and DRA driver for Kubernetes, and GKE.

A declared daemon must run: if it is down, an alert fires. No access to the Kubernetes API is needed.
"""

import contextlib
import itertools
import json
import os
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from exporter.collectors.pipe_dir import DaemonLocation, on_host
from exporter.model.daemon import NamedBy
from exporter.model.settings import DEFAULT_LOG_DIRECTORY, DEFAULT_PIPE_DIRECTORY
from exporter.parse.proc import boot_time
from exporter.parse.resources import claim_uid

MOST_DECLARED = 64

STARTED = ".started"
"""NVIDIA's device plugin creates this file beside the pipe directory after it started the daemon, and removes it after
it stopped the daemon (cmd/mps-control-daemon/mps of k8s-device-plugin, 0.15 to 0.20). If the daemon had died before,
the plugin cannot stop it and leaves the file."""

READY = ".ready"
"""The plugin creates this file in its root directory after it started all daemons, and removes it before it stops them.
So the daemons are withdrawn, or restarting, if it is missing (stopDaemons in main.go)."""

STARTUP_LOG = Path("log") / "startup.log"
"""The pod of NVIDIA's DRA driver removes this file when it starts, and creates it after it started the daemon. The
driver creates the directory of a claim before that, and removes it with the claim
(templates/mps-control-daemon.tmpl.yaml and cmd/gpu-kubelet-plugin/sharing.go of k8s-dra-driver-gpu, 25.x)."""

_MAX_CONFIG = 1 << 16

Declared = Mapping[str, tuple[NamedBy, DaemonLocation]]


class Declarations:
    """What the node declares now. Files of other users than root and the exporter's declare nothing."""

    def __init__(self, matches: Callable[[], Iterable[DaemonLocation]], *, procfs: Path, gke_config: Path) -> None:
        """`matches` returns the possible pipe directories; `gke_config` is the configuration of GKE's device plugin."""
        self._matches = matches
        self._gke_config = gke_config
        self._booted_at = 0.0
        with contextlib.suppress(OSError):
            self._booted_at = boot_time(_text(procfs / "stat") or "") or 0.0
        self._declared: Declared = {}

    def read(self) -> tuple[Declared, Declared]:
        """Return the declared daemons by name, and those that are no longer declared. Raises OSError."""
        found = {location.name: (by, location) for by, location in itertools.islice(self._found(), MOST_DECLARED)}
        # A search of patterns skips what it cannot read.
        missing = {name: declared for name, declared in self._declared.items() if name not in found}
        found |= {name: declared for name, declared in missing.items() if _still_declared(*declared)}
        withdrawn = {name: declared for name, declared in missing.items() if name not in found}
        self._declared = found
        return found, withdrawn

    def _found(self) -> Iterator[tuple[NamedBy, DaemonLocation]]:
        for location in self._matches():
            pipe = location.pipe.path
            if pipe.name == "pipe" and _does_plugin_run(pipe):
                yield NamedBy.DEVICE_PLUGIN, location
            elif claim_uid(str(pipe)) is not None:
                # A new container of the pod removes the file. If it then fails, the daemon must still run.
                declared = location.name in self._declared
                if declared or (_time_of(pipe.parent / STARTUP_LOG) or -1.0) >= self._booted_at:
                    yield NamedBy.DRA, location
        # GKE's device plugin that shares GPUs with MPS does not start without a daemon (pkg/gpu/nvidia/manager.go of
        # container-engine-accelerators).
        configuration: object = None
        with contextlib.suppress(ValueError, RecursionError):
            configuration = json.loads(_text(self._gke_config) or "{}")
        match configuration:
            case {"GPUSharingConfig": {"GPUSharingStrategy": "mps"}}:
                pipe = Path(DEFAULT_PIPE_DIRECTORY)
                yield NamedBy.GKE, on_host(str(pipe), pipe, Path(DEFAULT_LOG_DIRECTORY))


def _still_declared(by: NamedBy, location: DaemonLocation) -> bool:
    pipe = location.pipe.path
    if by is NamedBy.DEVICE_PLUGIN:
        return _does_plugin_run(pipe)
    try:
        return by is NamedBy.DRA and stat.S_ISDIR(pipe.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _does_plugin_run(pipe: Path) -> bool:
    """Return whether the plugin runs the daemon of a pipe directory, `ROOT/[VENDOR/]RESOURCE/pipe`. Raises OSError."""
    ready = any(_time_of(root / READY) is not None for root in pipe.parents[1:3])
    return ready and _time_of(pipe.with_name(STARTED)) is not None


def _time_of(path: Path) -> float | None:
    """Return when a regular file of root or the exporter's user was written; None if there is none. Raises OSError."""
    try:
        found = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_mtime if stat.S_ISREG(found.st_mode) and found.st_uid in (0, os.geteuid()) else None


def _text(path: Path) -> str | None:
    try:
        with path.open(errors="replace") as file:
            return file.read(_MAX_CONFIG)
    except (FileNotFoundError, NotADirectoryError):
        return None
