"""How slow this machine is just now, so that nobody is blamed for that."""

import os


def slowness() -> float:
    """How much longer everything takes on a machine that has more to do than it can; 1 on one that has not."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
