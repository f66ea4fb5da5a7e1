"""The driver's own counters, kept from going down: each begins at 0 again when the driver is loaded anew."""

from collections.abc import Mapping

from exporter.model.gpu import Meter
from exporter.model.observation import GpuReading

ENERGY, ECC_CORRECTED, ECC_UNCORRECTED = "energy_millijoules", "ecc_corrected", "ecc_uncorrected"


def metered(meters: Mapping[str, Meter], reading: GpuReading) -> Mapping[str, Meter]:
    """The counters after a reading; one that it does not tell stands still."""
    read = {
        ENERGY: reading.energy_millijoules,
        ECC_CORRECTED: reading.ecc_corrected,
        ECC_UNCORRECTED: reading.ecc_uncorrected,
    }
    return {**meters, **{name: _grown(meters.get(name), value) for name, value in read.items() if value is not None}}


def _grown(meter: Meter | None, value: int) -> Meter:
    """What began anew has since counted all of its value."""
    if meter is None:
        return Meter(last=value, total=value)
    return Meter(last=value, total=meter.total + (value - meter.last if value >= meter.last else value))
