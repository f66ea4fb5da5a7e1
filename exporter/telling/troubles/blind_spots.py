"""What the exporter cannot see, as troubles."""

from collections.abc import Iterable

from exporter.core.gpus import NVML
from exporter.core.work import DOORS
from exporter.model.daemon import DaemonState
from exporter.model.node import Node, Source
from exporter.model.problem import ProblemCode
from exporter.parse.printable import printable
from exporter.telling.level import Level
from exporter.telling.problem_text import log_text, problem_text, source_text
from exporter.telling.remedy import DOCTOR
from exporter.telling.troubles.trouble import Trouble
from exporter.view import View, gpu_name

CONTRADICTED_SECONDS = 3600.0
"""For how long a contradiction of a daemon's log is reported."""

_SEE_WHY = "this says what is missing"
_DOCTOR_FOR = {DOORS: f"{DOCTOR} --attribution=bpf"}
"""What the service was told by its unit, a command in a shell has to be told, too."""


def blind_spots(node: Node) -> Iterable[Trouble]:
    """Sources that see nothing, GPUs that cannot be read, logs that cannot be followed; or the driver, closed."""
    failing = {name: source for name, source in sorted(node.sources.items()) if source.problems}
    paused = {name for name, source in failing.items() if _is_paused(source)}
    if paused:
        yield Trouble(
            level=Level.CARE,
            what="paused: the driver is closed, so that nothing is known of the GPUs",
            next="when the work on them is done, resume",
            commands=("cuda-mps-exporter resume",),
        )
    for name, source in failing.items():
        if name not in paused:
            yield _blind(printable(name), source_text(name, source), doctor=_DOCTOR_FOR.get(name, DOCTOR))
    for uuid, gpu in node.gpus.items():
        if gpu.reading.problem is not None and NVML not in failing:
            text = problem_text(gpu.reading.problem, NVML)
            yield _blind(f"GPU {printable(gpu_name(node, uuid))}", text, fails=False)
    for daemon in View(node).daemons():
        for file, problem in sorted(daemon.log_problems.items()):
            if problem is not None and daemon.state is DaemonState.UP:
                yield _blind(f"log of {printable(daemon.name)}", log_text(file, problem), fails=False)


def contradicted_logs(node: Node, at: float) -> Iterable[Trouble]:
    """Daemons with a log that other sources contradicted lately."""
    for daemon in View(node).daemons():
        if daemon.contradicted_at is not None and at - daemon.contradicted_at <= CONTRADICTED_SECONDS:
            yield Trouble(
                level=Level.CARE,
                what=f"log of daemon {printable(daemon.name)} contradicts other sources: a user may forge its lines",
                next="no report follows from such lines; this says whether other users can write to the log",
                commands=(DOCTOR,),
                fails=False,
                daemon=daemon.name,
            )


def _is_paused(source: Source) -> bool:
    return all(each.code is ProblemCode.PAUSED for problem in source.problems.values() for each in problem.each)


def _blind(where: str, text: str, *, fails: bool = True, doctor: str = DOCTOR) -> Trouble:
    what = f"not all can be seen: {where}: {text}"
    return Trouble(level=Level.CARE, what=what, next=_SEE_WHY, commands=(doctor,), fails=fails)
