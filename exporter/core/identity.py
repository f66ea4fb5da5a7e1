"""What a client is called, and what it holds."""

from collections.abc import Mapping

from exporter.model.observation import GpuReading, ProcessReading
from exporter.model.server import Client

_DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"


def client_id(client: Client, process: ProcessReading | None) -> str:
    """A client's id: PID and start time, or PID and first sighting where the start is not known."""
    if process is None:
        return f"{client.pid}-s{_base36(int(client.connected_at))}"
    return f"{client.pid}-{_base36(process.start_ticks)}"


def used_bytes(reading: GpuReading) -> Mapping[int, int]:
    """Memory of each process on a GPU; NVML's two lists agree on the clients that are in both (measured)."""
    processes = (*(reading.compute_processes or ()), *(reading.mps_processes or ()))
    return {each.pid: each.used_bytes for each in processes if each.used_bytes is not None}


def _base36(number: int) -> str:
    digits = ""
    while number:
        number, digit = divmod(number, 36)
        digits = _DIGITS[digit] + digits
    return digits or "0"
