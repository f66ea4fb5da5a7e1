"""Who a process belongs to, by the text of its /proc/PID/cgroup (cgroups(7)), in its v1, hybrid and v2 forms.

A cgroup's path is believed from the outside in, and only as far as root or a service of root's chose its names: slices,
then the first unit (as systemd's own cg_path_get_unit does), or the directory of a container runtime, of the kubelet or
of Slurm that stands where these put it. Whatever lies below a unit or a container may have been made by the workload
itself, since either can be delegated to it: a `docker-ID.scope` below `user@1000.service`, a `job_1` in a container, a
pod in a container (kind, seen from its host) are hearsay, and left out. So no user can pass for another's container,
pod or job. What lies below the service of a container runtime is that runtime's own, and read as if it stood at the
root.

A path that begins with `/..` lies beside the reader's own cgroup namespace; what is above is not shown then, so the
tail of a pod's path is taken for one too.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

REMEMBERED_TEXTS = 1024
"""How many texts are kept parsed: more than there are clients on a node, since each is told of again and again."""

_LONGEST_TEXT = 1 << 14
_LONGEST_UNIT = 255
_DELETED = " (deleted)"

_RUNTIME_SERVICES = frozenset(
    {"containerd.service", "crio.service", "docker.service", "k3s.service", "k3s-agent.service", "rke2-agent.service"}
)

_ID = r"(?P<container>[0-9a-f]{64})"
_UUID = r"[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}"
_POD = rf"pod(?P<pod_uid>{_UUID}|[0-9a-f]{{32}})"
"""A pod's UID, which systemd has with `_` for `-`; a static pod's is a hash without either."""

_POD_SLICE = rf"(?:[^-/:]+-){{0,8}}kubepods(?:-burstable|-besteffort)?-{_POD}\.slice"
_POD_DIRECTORY = rf"(?:(?:burstable|besteffort)/)?{_POD}(?:/(?:crio-|cri-containerd-)?{_ID})?"
_NODE = r"[A-Za-z0-9][A-Za-z0-9.-]{0,62}"
_JOB_ID = r"job_(?P<slurm_job_id>[1-9][0-9]{0,9})"
_JOB_SLUID = r"(?P<slurm_job_sluid>s[0-9A-HJKMNP-TV-Z]{13})"
"""An `s` and 13 digits of Crockford's base 32 (Slurm's src/common/sluid.c)."""


def _shapes(*shapes: str) -> tuple[re.Pattern[str], ...]:
    """Shapes of the beginning of a path; each ends where a name does."""
    return tuple(re.compile(rf"(?:{shape})(?=/|\Z)") for shape in shapes)


_UNITS = _shapes(
    # systemd's cgroup driver of Docker, containerd, CRI-O, Podman and nerdctl.
    rf"(?:docker|cri-containerd|containerd|crio|libpod|nerdctl)-{_ID}\.scope",
    # Slurm's cgroup/v2; job directories are named by SLUID from 26.05 on, unless CgroupJobIdPaths=yes (cgroup.conf(5)).
    rf"(?:{_NODE}_)?slurmstepd\.scope/(?:{_JOB_ID}|{_JOB_SLUID})",
)
"""Below any slices, or none."""

_DIRECTORIES = _shapes(
    # The kubelet's cgroupfs driver; kind has it below /kubelet.
    rf"(?:kubelet/)?kubepods/{_POD_DIRECTORY}",
    # containerd's cgroupfs driver, given a path that was meant for systemd's.
    rf"{_POD_SLICE}:cri-containerd:{_ID}",
    # The cgroupfs drivers of Docker and Podman, Docker's for Amazon ECS, and LXC's before and from 4.0.
    rf"docker/{_ID}",
    rf"libpod_parent/libpod-{_ID}",
    rf"ecs/(?:[A-Za-z0-9_-]{{1,255}}/){{1,2}}{_ID}",
    r"lxc(?:/|\.payload/|\.payload\.)(?P<container>[A-Za-z0-9][A-Za-z0-9_.-]{0,63})",
    # Slurm's cgroup/v1, with its node's name where a host has several.
    rf"slurm(?:_{_NODE})?/uid_[0-9]{{1,10}}/{_JOB_ID}",
)
"""At the root only, or below the service of a container runtime."""

_TAILS = _shapes(_POD_DIRECTORY, _ID)
"""Outside the reader's own cgroup namespace only."""

_SLICE_OF_POD = re.compile(_POD_SLICE)
_UNIT = re.compile(r"[A-Za-z0-9:_.\\@-]+\.(?:service|scope|socket|mount|swap)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Belonging:
    """Who a process belongs to; None where it belongs to none, or that cannot be told.

    `unit` is the system unit that `systemctl status PID` names, escaped as there: for a user's own units that is
    `user@UID.service`, since their names are the user's word alone. `container` is the whole ID, by which other
    exporters' families can be joined (LXC: the name); the outermost, where containers are nested.
    """

    unit: str | None = None
    container: str | None = None
    pod_uid: str | None = None
    slurm_job_id: str | None = None
    slurm_job_sluid: str | None = None


@lru_cache(maxsize=REMEMBERED_TEXTS)
def belonging(text: str) -> Belonging:
    """Who a process belongs to. On v1 each controller has a path of its own, and each tells what it can.

    Slurm, for one, places its jobs in some controllers only.
    """
    paths = dict(_hierarchies(text))
    found = [_found_in(path) for path in paths.values()]
    pod_uid = _first(found, "pod_uid")
    return Belonging(
        unit=_unit_of(paths.get("name=systemd") or paths.get("") or ""),
        container=_first(found, "container"),
        pod_uid=None if pod_uid is None else pod_uid.replace("_", "-"),
        slurm_job_id=_first(found, "slurm_job_id"),
        slurm_job_sluid=_first(found, "slurm_job_sluid"),
    )


def _hierarchies(text: str) -> Iterator[tuple[str, str]]:
    """Controllers and path of each line, `ID:CONTROLLERS:PATH`. Only a newline ends one, which no cgroup's name has."""
    for line in text[:_LONGEST_TEXT].split("\n"):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if path.startswith("/"):
            yield controllers, path.removesuffix(_DELETED)


def _first(found: Iterable[Mapping[str, str]], key: str) -> str | None:
    return next((each[key] for each in found if key in each), None)


def _found_in(path: str) -> Mapping[str, str]:
    """What one path tells, by the names of the shapes' groups."""
    outside, slices, rest = _parts(path)
    shapes = _UNITS if slices else (*_UNITS, *_DIRECTORIES)
    if outside and not slices:
        shapes = (*shapes, *_TAILS)
    service, _, below = rest.partition("/")
    if service in _RUNTIME_SERVICES:
        shapes, rest = _DIRECTORIES, below
    pods = (_SLICE_OF_POD.fullmatch(name) for name in slices)
    matches = (*pods, *(shape.match(rest) for shape in shapes))
    return {
        key: value
        for match in matches
        if match is not None
        for key, value in match.groupdict().items()
        if value is not None
    }


def _unit_of(path: str) -> str | None:
    """The first name that is no slice, if it is a unit's; systemd puts a `_` before one like the kernel's own."""
    _, _, rest = _parts(path)
    name = rest.partition("/")[0].removeprefix("_")
    return name if len(name) <= _LONGEST_UNIT and _UNIT.fullmatch(name) else None


def _parts(path: str) -> tuple[bool, tuple[str, ...], str]:
    """Whether a path leads out of the reader's cgroup namespace, its slices, and the rest of it."""
    names = path.strip("/").split("/")
    outside = names[0] == ".."
    while names and names[0] == "..":
        names.pop(0)
    first = next((index for index, name in enumerate(names) if not name.endswith(".slice")), len(names))
    return outside, tuple(names[:first]), "/".join(names[first:])
