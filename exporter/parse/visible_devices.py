"""CUDA_VISIBLE_DEVICES, as a daemon has it in its environment."""


def is_visible(text: str | None, index: int | None, uuid: str) -> bool:
    """Whether a GPU is among those that the variable leaves visible; all are where it is not set.

    Ordinals are taken as NVML's indices, which holds where all GPUs are alike or CUDA_DEVICE_ORDER is PCI_BUS_ID.
    As in CUDA, -1 ends the list; a UUID may be cut short.
    """
    if text is None:
        return True
    for entry in (entry.strip() for entry in text.split(",")):
        if entry == "-1":
            return False
        if (index is not None and entry == str(index)) or (entry.startswith("GPU-") and uuid.startswith(entry)):
            return True
    return False
