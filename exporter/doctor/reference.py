"""docs/doctor.md, from the registry: `python -m exporter.doctor.reference > docs/doctor.md`."""

import sys
from collections.abc import Iterator

from exporter.doctor.finding import PAGE
from exporter.doctor.registry import CHECKS

_ABOUT = """\
<!-- Written by `python -m exporter.doctor.reference > docs/doctor.md`. Edit the checks instead. -->
# doctor: the classic mistakes, and how to mend each

    sudo cuda-mps-exporter doctor

It looks once at everything that MPS and the exporter need of each other: programs, driver, GPUs, daemons, their
directories and logs, CUDA processes and the containers and units that they are in, limits, rights, ports. It says what
is wrong, worst first, where, and what to type. It mends nothing itself.

| exit code | |
|---|---|
| 0 | nothing is worse than advice, which can be left as it is |
| 1 | a warning: something costs performance, safety, or sight |
| 2 | an error: something keeps MPS from working, or the exporter from it; or it was asked wrongly |

`--json` prints the same for programs: `exit_code`, `counts`, `findings` (each with `severity`, `id`, `code`, `what`,
`where`, `fix`, `commands`, `doc`), the ids of the checks that found nothing (`ok`) and of those that could not be made
in full (`unknown`), and what was `not_looked_at`. `--verbose` lists those checks, too. It takes the same options as
`status`, and those of `serve` that it judges (`--web.listen-address`, `--watchdog.mode` and the like): give it what the
service is given.

**What could not be looked at is never said to be fine.** As an ordinary user it sees less than as root, and says so.
Where the service runs, its rights are those that count, not those of whoever asks; and the port that it holds is not
taken.

**It does no harm.** It attaches to no process. It asks each daemon what `status` asks, one short command at a time, and
waits for the exporter where that asks. Of a process's environment nothing is read but five variables of MPS and CUDA.
Whatever a process, a path or a log calls itself is shown on its line, and quoted where it stands in a command.

## What it finds
"""


def reference() -> str:
    """The page."""
    return "\n".join((_ABOUT, *_table(), ""))


def _table() -> Iterator[str]:
    yield "| id | what it means | what to do | more |"
    yield "|---|---|---|---|"
    for check in CHECKS:
        page = check.doc.removeprefix("docs/")
        more = "" if check.doc == PAGE else f"[{page}]({page})"
        yield f"| `{check.id}` | {check.meaning} | {check.remedy} | {more} |"


if __name__ == "__main__":
    sys.stdout.write(reference())
