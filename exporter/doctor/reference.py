"""Write docs/doctor.md from the registry: `python -m exporter.doctor.reference > docs/doctor.md`."""

import sys

from exporter.doctor.checks import CHECKS
from exporter.doctor.finding import PAGE, Check, first_sentence

_ABOUT = """\
<!-- Written by `python -m exporter.doctor.reference > docs/doctor.md`. Edit the checks instead. -->
# doctor: common mistakes and their fixes

    sudo cuda-mps-exporter doctor

`doctor` reads once all that MPS and the exporter need: programs, driver, GPUs, daemons, directories, logs, CUDA
processes, limits and rights. It reports each mistake, worst first, with the commands that fix it. It changes nothing.

| exit code | meaning |
|---|---|
| 0 | nothing is worse than advice |
| 1 | a warning: something costs performance, safety or data |
| 2 | an error: MPS or the exporter cannot work, or an option is invalid |

`--json` prints the report for programs. `--verbose` also lists the checks that found nothing (`ok`) and those that lack
facts (`unknown`). Give `doctor` the options of `serve`, such as `--watchdog.mode`.

- **An area that could not be examined is never reported as ok.** Root can examine all areas.
- **The rights of the service count** while it runs, not those of the user who runs `doctor`.
- **It does no harm.** It attaches to no process, and sends each daemon the short queries of `status`, one at a time. It
  reads five variables of a process's environment. Names that a user chose are escaped and quoted.

## Checks

The report has more details on each, and the commands.

"""


def reference() -> str:
    """Return the page."""
    return _ABOUT + "".join(map(_line, CHECKS))


def _line(check: Check) -> str:
    page = check.doc.removeprefix("docs/")
    link = "" if check.doc == PAGE else f" [{page}]({page})"
    return f"- `{check.id}`: {check.summary} *{first_sentence(check.fix)}*{link}\n"


if __name__ == "__main__":
    sys.stdout.write(reference())
