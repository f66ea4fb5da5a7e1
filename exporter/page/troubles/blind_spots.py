"""What the exporter cannot see, as troubles."""

from collections.abc import Iterable

from exporter.model.daemon import DaemonState
from exporter.page.level import Level
from exporter.page.sight import Sight
from exporter.page.troubles.trouble import Trouble
from exporter.parse.printable import LONGEST_PROBLEM, printable
from exporter.view import View, gpu_name

_SEE_WHY, _DOCTOR = "this says what is missing", "cuda-mps-exporter doctor"


def blind_spots(sight: Sight) -> Iterable[Trouble]:
    """Sources that see nothing, GPUs that cannot be read, logs that cannot be followed; or the driver, let go of."""
    if sight.paused:
        yield Trouble(
            level=Level.CARE,
            what="the driver was let go of, so that nothing is known of the GPUs",
            next="when the work on them is done, resume",
            commands=("cuda-mps-exporter resume",),
        )
    for name, source in sorted(sight.node.sources.items()):
        problem = source.last.problem
        if problem is not None and not (sight.paused and problem == "paused"):
            yield _blind(f"{printable(name)}: {printable(problem, LONGEST_PROBLEM)}")
    for uuid, gpu in sight.node.gpus.items():
        if gpu.reading.problem is not None and not sight.paused:
            name = printable(gpu_name(sight.node, uuid))
            yield _blind(f"GPU {name}: {printable(gpu.reading.problem, LONGEST_PROBLEM)}")
    for daemon in View(sight.node).daemons():
        for file, problem in sorted(daemon.log_problems.items()):
            if problem is not None and daemon.state is DaemonState.UP:
                yield _blind(f"log of {printable(daemon.name)}: {printable(problem or file, LONGEST_PROBLEM)}")


def _blind(what: str) -> Trouble:
    return Trouble(level=Level.CARE, what=f"not all can be seen: {what}", next=_SEE_WHY, commands=(_DOCTOR,))
