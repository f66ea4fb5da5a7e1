"""The driver's own counters, kept from going down: each begins at 0 again when the driver is loaded anew."""

from collections.abc import Mapping

from exporter.model.gpu import Gpu, Meter
from exporter.model.observation import GpuReading

ENERGY, ECC_CORRECTED, ECC_UNCORRECTED = "energy_millijoules", "ecc_corrected", "ecc_uncorrected"


def metered(known: Gpu | None, reading: GpuReading) -> Mapping[str, Meter]:
    """The counters after a reading; one that it does not tell stands still."""
    meters: Mapping[str, Meter] = {} if known is None else known.meters
    late = known is not None and reading.at < known.reading.at
    read = {
        ENERGY: reading.energy_millijoules,
        ECC_CORRECTED: reading.ecc_corrected,
        ECC_UNCORRECTED: reading.ecc_uncorrected,
    }
    return {
        **meters,
        **{name: _grown(meters.get(name), value, late=late) for name, value in read.items() if value is not None},
    }


def _grown(meter: Meter | None, value: int, *, late: bool) -> Meter:
    """What began anew has since counted all of its value; what is less because it was read before is no news."""
    if meter is None:
        return Meter(last=value, total=value)
    if value >= meter.last:
        return Meter(last=value, total=meter.total + value - meter.last)
    return meter if late else Meter(last=value, total=meter.total + value)
