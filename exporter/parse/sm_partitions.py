"""Static SM partitions: `lspart` of protocol 2 with `-S` (R590 and later), `sm-partition list` of protocol 3 (R615).

Source: NVIDIA's MPS guide, release 615, and parsers of others that were written against real outputs: rows of `lspart`
have 7 cells in the guide, and 5 in those outputs. Not tried on hardware.
"""

import re
from collections.abc import Iterable, Mapping

from exporter.model.server import SmCapacity, SmPartition, SmPartitions
from exporter.model.settings import SM_PARTITION
from exporter.parse.protocol3 import Table

MAX_PARTITIONS = 256
"""Partitions of one daemon that are read. A GPU has at most 33 chunks of 4 SMs."""

_DEVICE = re.compile(r"(?:GPU|MIG)-[0-9a-f-]{1,40}", re.IGNORECASE)
_ID = re.compile(r"[A-Za-z0-9+/=_-]{1,64}")
_NAME = re.compile(r"[a-z0-9_]{1,64}")
_COUNT = re.compile(r"[0-9]{1,4}")
_HEADINGS = frozenset(("gpu", "partition", "free", "used", "clients", "chunk", "chunks", "sm"))
_WITH_CLIENTS = {"yes": True, "no": False}


def parse_lspart(stdout: str) -> tuple[SmPartitions, int]:
    """Return the partitions and the number of unknown rows of a reply to `lspart`."""
    partitions: list[SmPartition] = []
    free: dict[str, SmCapacity] = {}
    unknown = 0
    for line in stdout.splitlines():
        words = line.split()
        if not words or {word.lower() for word in words} <= _HEADINGS:
            continue
        match words:
            case [gpu, "-", chunks, used, sms, used_sms, _] | [gpu, chunks, used, sms, used_sms] if _are_counts(
                gpu, chunks, used, sms, used_sms
            ):
                free[gpu] = SmCapacity(chunks=int(chunks), sms=int(sms))
            case [gpu, found, "-", chunks, "-", sms, clients] | [gpu, found, chunks, sms, clients] if _are_counts(
                gpu, chunks, sms
            ) and _ID.fullmatch(found):
                used_by = _WITH_CLIENTS.get(clients.lower())
                partitions.append(SmPartition(gpu=gpu, id=found, chunks=int(chunks), sms=int(sms), has_clients=used_by))
            case _:
                unknown += 1
    return SmPartitions(partitions=tuple(partitions[:MAX_PARTITIONS]), free=free), unknown


def _are_counts(gpu: str, *counts: str) -> bool:
    return _DEVICE.fullmatch(gpu) is not None and all(map(_COUNT.fullmatch, counts))


def partitions_of_table(table: Table) -> SmPartitions:
    """Return the partitions of a table of protocol 3. One that is only configured has no ID yet."""
    partitions: list[SmPartition] = []
    free: dict[str, SmCapacity] = {}
    for row in table.rows:
        gpu, chunks, sms = (row.get(name, "") for name in ("device", "chunks", "sm-count"))
        if not _are_counts(gpu, chunks, sms):
            continue
        server, name, visible = (row.get(name, "") for name in ("server", "name", "visible-uuid"))
        status = row.get("status", "").lower()
        if status == "unallocated":
            free[gpu] = SmCapacity(chunks=int(chunks), sms=int(sms))
        elif status == "created" and _ID.fullmatch(visible) and _NAME.fullmatch(name):
            known = server if _NAME.fullmatch(server) else None
            partition = SmPartition(gpu=gpu, id=visible, chunks=int(chunks), sms=int(sms), name=name, server=known)
            partitions.append(partition)
    return SmPartitions(partitions=tuple(partitions[:MAX_PARTITIONS]), free=free)


def partition_of_variable(partitions: Iterable[SmPartition], variables: Mapping[str, str]) -> SmPartition | None:
    """Return the partition that CUDA_MPS_SM_PARTITION names: the beginning of a UUID, a slash, and an ID.

    An ID may contain slashes. A client chooses the variable, so only an existing partition is returned.
    """
    gpu, _, wanted = variables.get(SM_PARTITION, "").partition("/")
    found = [each for each in partitions if each.id == wanted and is_same_device(each.gpu, gpu)]
    return found[0] if len(found) == 1 else None


def is_same_device(first: str, second: str) -> bool:
    """Return whether one of two UUIDs, which may be shortened, is the beginning of the other one."""
    shorter, longer = sorted((first, second), key=len)
    return len(shorter) > len("GPU-") and longer.startswith(shorter)
