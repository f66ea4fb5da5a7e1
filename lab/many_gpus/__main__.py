"""Experiments on all GPUs of a host: `OUT=DIR python3 -m lab.many_gpus [SCENE]...`.

As root, with MPS, nvcc and PyTorch. All scenes by default. Each prints its table, and ends within its time. DIR gets
SCENE.tar.gz with all that it wrote, and its output as `log`.
"""

import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.gpu.device import devices
from lab.gpu.program import SOURCE

FAREWELL_SECONDS = 20
TORCH = "torch.version"
"""It imports PyTorch, which takes up to a minute for the first time on a machine."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Modules with their arguments, in which `{out}` is a directory; and after how many seconds they are ended."""

    seconds: float
    commands: tuple[str, ...]


def scenes(gpus: int) -> Mapping[str, Scene]:
    """Return the scenes for so many GPUs."""
    results, score = "lab.fault_trials.results {out}", "lab.contention.score {out}"
    trial = "lab.contention.trial --scene {} --seconds {}"
    return {
        "domains": Scene(90 + 25 * gpus, ("lab.fault_trials --plan several-gpus --out {out}", results)),
        "daemons": Scene(340, ("lab.many_gpus.daemons isolation",)),
        "crowd": Scene(200 + 30 * gpus, ("lab.many_gpus.daemons crowd",)),
        "slots": Scene(60 + 60 * gpus, ("lab.many_gpus.slots",)),
        "limits": Scene(120 + 60 * gpus, ("lab.limits",)),
        "sm-time": Scene(300, ("lab.attribution.several_gpus counted together",)),
        "slowdown": Scene(240, (TORCH, trial.format("several-gpus", 150), score)),
        "all-reduce": Scene(210, (TORCH, trial.format("all-reduce", 120), score)),
        "rank-faults": Scene(280 + 20 * gpus, (TORCH, "lab.fault_trials --plan ranks --out {out}", results)),
    }


def play(scene: Scene, out: Path) -> None:
    """Run the commands of a scene, one after another, and write what they print to `log`, too."""
    out.mkdir()
    ends = time.monotonic() + scene.seconds
    with (out / "log").open("w") as log:
        for words in scene.commands:
            left = max(5.0, ends - time.monotonic())
            limit = ["timeout", "--signal=INT", f"--kill-after={FAREWELL_SECONDS}", f"{left:.0f}"]
            command = [*limit, sys.executable, "-m", *shlex.split(words.format(out=out))]
            with subprocess.Popen(
                command,
                cwd=SOURCE,
                env={**os.environ, "OUT": str(out), "PYTHONUNBUFFERED": "1"},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            ) as process:
                for line in process.stdout or ():
                    sys.stdout.write(line[:400].rstrip("\n") + "\n")
                    log.write(line)
            for archive in out.glob("*.tar.gz"):
                shutil.unpack_archive(archive, out, filter="data")
                archive.unlink()


def main() -> None:
    """Play the scenes."""
    gpus, out = len(devices()), Path(os.environ["OUT"])
    for name in sys.argv[1:] or scenes(gpus):
        scene, began = scenes(gpus)[name], time.monotonic()
        print(f"== {name}, {gpus} GPUs, at most {scene.seconds:.0f} s", flush=True)
        play(scene, out / name)
        with tarfile.open(out / f"{name}.tar.gz", "w:gz") as archive:
            archive.add(out / name, arcname=name)
        shutil.rmtree(out / name)
        print(f"== {name} took {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
