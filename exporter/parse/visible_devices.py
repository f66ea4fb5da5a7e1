"""CUDA_VISIBLE_DEVICES, as a daemon has it in its environment."""

from collections.abc import Iterator, Mapping


def entries(text: str) -> Iterator[str]:
    """What it names, in order: ordinals, or UUIDs."""
    return (entry.strip() for entry in text.split(","))


def is_visible(text: str | None, index: int | None, uuid: str) -> bool:
    """Whether a GPU is among those that the variable leaves visible; all are where it is not set.

    Ordinals are taken as NVML's indices, which holds where all GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    As in CUDA, -1 ends the list; a UUID may be cut short.
    """
    if text is None:
        return True
    for entry in entries(text):
        if entry == "-1":
            return False
        if (index is not None and entry == str(index)) or (entry.startswith("GPU-") and uuid.startswith(entry)):
            return True
    return False


def by_ordinal(text: str, gpus: Mapping[str, int | None]) -> tuple[str, ...]:
    """The UUIDs of the GPUs that the variable leaves visible, in the order of the ordinals that they then have.

    `gpus` are NVML's indices by UUID. As in CUDA, what names no GPU, or one for the second time, ends the list.
    """
    found: list[str] = []
    for entry in entries(text):
        named = [uuid for uuid, index in gpus.items() if is_visible(entry, index, uuid)]
        if len(named) != 1 or named[0] in found:
            break
        found.append(named[0])
    return tuple(found)
