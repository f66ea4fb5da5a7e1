"""A separate program that runs the NVML collector on request, because a process loads a library only once.

The program executes each request in its own thread, so that a call that hangs does not block the next one.
"""

import itertools
import json
import os
import select
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.eventually import PATIENCE_SECONDS
from tests.standin.nvml import CompilerMissingError, NvmlStandIn
from tests.tools import not_here

PROGRAM = """
    import dataclasses, json, os, resource, sys, threading
    from pathlib import Path
    from exporter.clock import SystemClock
    from exporter.collectors.nvml import collector as nvml_collector
    from exporter.collectors.nvml.collector import Nvml
    from exporter.collectors.thread import Reading

    nvml_collector.WAIT_SECONDS = 0.1
    ready_file = Path(os.environ.get("READY_FILE", "/nowhere"))
    nvml, other = Nvml(SystemClock(), ready_file), Nvml(SystemClock(), ready_file)
    device = os.environ.get("STANDIN_NVML_DEVICE")

    def target(descriptor):
        try:
            return os.readlink(descriptor)
        except OSError:
            return None

    def descriptors():
        return [target(each) for each in Path("/proc/self/fd").iterdir()].count(device)

    def wait_for_xids(seconds):
        nvml_collector.WAIT_SECONDS = seconds

    def collect_xids():
        return nvml.xid_events.collect()

    def other_collect():
        return other.collect()

    def limit_descriptors(limit):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def is_replaced():
        return nvml.driver.replaced

    def mapped():
        return "libnvidia-ml" in Path("/proc/self/maps").read_text()

    def plain(result):
        if isinstance(result, dict):
            return {gpu: sorted(pids) for gpu, pids in result.items()}
        if not isinstance(result, Reading):
            return result
        return {"problem": brief(result), "observations": [{**dataclasses.asdict(each), "problem": brief(each)}
                                                 for each in result.observations]}

    def brief(one):
        problem = getattr(one, "problem", None)
        return problem and "; ".join(": ".join(words(each)) for each in problem.each)

    def words(problem):
        return filter(None, (problem.code, *map(problem.parameters.get, ("subject", "detail"))))

    def do(number, name, arguments):
        result = (globals().get(name) or getattr(nvml, name, None) or getattr(nvml.driver, name))(*arguments)
        sys.stdout.write(json.dumps([number, plain(result)]) + "\\n")
        sys.stdout.flush()

    for line in sys.stdin:
        threading.Thread(target=do, args=json.loads(line), daemon=True).start()
"""

Reading = dict[str, Any]


class NvmlProgram:
    """The running program."""

    def __init__(self, environment: dict[str, str]) -> None:
        pipe = subprocess.PIPE
        program = [sys.executable, "-c", textwrap.dedent(PROGRAM)]
        self._process = subprocess.Popen(program, env=os.environ | environment, stdin=pipe, stdout=pipe, bufsize=0)
        self._numbers = itertools.count()
        self._answers: dict[int, Any] = {}

    def ask(self, name: str, *arguments: object) -> int:
        number = next(self._numbers)
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([number, name, arguments]).encode() + b"\n")
        return number

    def has_answered(self, number: int, within: float) -> bool:
        """Return whether the call has returned, after at most `within` seconds."""
        assert self._process.stdout is not None
        while number not in self._answers and select.select([self._process.stdout], [], [], within)[0]:
            line = self._process.stdout.readline()
            assert line, "the program has ended"
            answered, answer = json.loads(line)
            self._answers[answered] = answer
        return number in self._answers

    def answer(self, number: int) -> Any:
        assert self.has_answered(number, PATIENCE_SECONDS), "the call has not returned"
        return self._answers.pop(number)

    def call(self, name: str, *arguments: object) -> Any:
        return self.answer(self.ask(name, *arguments))

    def collect(self) -> Reading:
        reading: Reading = self.call("collect")
        return reading

    def descriptors(self) -> int:
        return int(self.call("descriptors"))

    def close(self) -> None:
        """Kill the program, which may hang."""
        self._process.kill()
        with self._process:
            pass


Start = Callable[..., NvmlProgram]


def built_here(standin: NvmlStandIn) -> NvmlStandIn:
    """Build a stand-in driver, if there is a compiler, and return it."""
    try:
        standin.build()
    except CompilerMissingError as problem:
        not_here(str(problem))
    return standin


def built(directory: Path, without: Sequence[str] = (), version: str | None = None) -> NvmlStandIn:
    """Build a stand-in driver of a version, without some of its functions."""
    return built_here(NvmlStandIn(directory, without, version))


def assert_closed(program: NvmlProgram) -> None:
    found = program.descriptors(), program.call("mapped")
    assert found == (0, False), found
