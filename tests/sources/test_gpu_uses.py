"""How busy every GPU was, by GPM alone, from a driver that another opens."""

import pytest

from exporter.sources.nvml.driver import DriverError
from exporter.sources.nvml.use import GpuUses
