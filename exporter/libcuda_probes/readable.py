"""Names of kernels for people: demangled in a child process, and without what a table has no room for."""

import re
import sys
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from hashlib import blake2b
from importlib.util import find_spec
from pathlib import Path
from random import SystemRandom

from exporter.clock import Clock
from exporter.collectors import without_capabilities
from exporter.collectors.child import Output, run
from exporter.libcuda_probes import demangle
from exporter.model.kernels import KernelName
from exporter.parse.printable import printable

WIDTH = 60
"""The most characters of a short name."""
LONGEST_NAME = 4095
"""The most characters of a name that is shown whole, or demangled."""

MOST_NAMES, MOST_BYTES, MOST_STORED = 256, 60_000, 4096
"""The most names and bytes for one child, and the most stored names, of about 400 bytes each. A pipe has room for so
many bytes: this process need not wait until the child reads them."""

DEADLINE_SECONDS = 1.0  # the child ends itself after half of it
CHILD_RATIO = 0.02
"""The part of the time in which a child may run, whatever names the workloads choose."""

# Lengths are bounded, or some names would take quadratic time.
_NOISE = re.compile(
    r"^std::enable_if<.*?>::type |\(anonymous namespace\)::|::(?=<)| (?=>)| const\b|\[abi:[^\]]{0,99}\]"
    r"|::(?:'\w{0,99}'|\{[^{}]{0,99}\}|operator\b|h[0-9a-f]{16}$)"
)
"""The type of the result, qualifiers, ABI tags, lambdas, and the hash of a Rust name."""
_NUMBERS = r"(?:(?<=[< ])(?:(?:unsigned |long ){0,2}(?:int|long|bool)|true|false|-?\d+u?l*)(?:, |(?=>)))+"
_COUNTS = re.compile(rf"{_NUMBERS}|(?:(?<=[< ])\w{{1,9}}<{_NUMBERS}>(?:, )?)+")
"""Template arguments that are numbers or types of indexes, and types with a short name and only such arguments, such as
tuple<…> and C<…> of CUTLASS."""


def demangle_command() -> Sequence[str] | None:
    """Return the program that demangles, without capabilities even for root; None if pycxxfilt is not installed."""
    python, spec = (sys.executable, "-I", "-S"), find_spec("pycxxfilt")
    program = (*python, without_capabilities.__file__, *python, demangle.__file__)
    return None if spec is None else (*program, str(Path(str(spec.origin)).parents[1]))


class ReadableNames:
    """Gives kernels short names, and stores them."""

    def __init__(self, clock: Clock, command: Sequence[str] | None) -> None:
        self._clock, self._command = clock, command
        self._next_child = clock.monotonic()
        self._stored: dict[bytes, str] = {}  # by digest, which is shorter than a name
        self._last: dict[str, KernelName] = {}  # what was returned last, if it is complete: most calls are the same

    def names(self, raws: Collection[str]) -> Mapping[str, KernelName]:
        """Return each name with its short form, of at most `WIDTH` characters. It takes `DEADLINE_SECONDS` at most.

        A mangled name is only truncated if it cannot be demangled, or has not been yet. Short forms that would be the
        same have a part of their name's digest at the end.
        """
        if self._last.keys() == set(raws):
            return self._last
        digests = {raw: blake2b(raw.encode(errors="surrogatepass"), digest_size=16).digest() for raw in raws}
        self._demangle({raw: digest for raw, digest in digests.items() if digest not in self._stored})
        texts = {raw: self._stored.get(digest) or _fitted(raw[:LONGEST_NAME]) for raw, digest in digests.items()}
        times, names = Counter(texts.values()), dict[str, KernelName]()
        for raw, text in texts.items():
            short = text if times[text] == 1 else f"{_fitted(text, WIDTH - 8)} #{digests[raw].hex()[:6]}"
            names[raw] = KernelName(raw=printable(raw, LONGEST_NAME), short=printable(short))
        self._last = names if self._stored.keys() >= set(digests.values()) else {}
        return names

    def _demangle(self, new: Mapping[str, bytes]) -> None:
        """Store short forms of these names, as many as one child demangles in its time.

        They are chosen at random, so that each client has its turn. A name without a line waits for another child: this
        one may have been too slow. A name that cannot be demangled has an empty line.
        """
        bare = {raw: _without_file(raw) for raw in new if len(raw) <= LONGEST_NAME}
        mangled = [raw for raw, name in bare.items() if re.fullmatch("_[ZR][!-~]+", name)]
        self._stored |= {new[raw]: _short(raw[:LONGEST_NAME]) for raw in new.keys() - mangled}
        batch, began = SystemRandom().sample(mangled, min(len(mangled), MOST_NAMES)), self._clock.monotonic()
        if batch and self._command is not None and began >= self._next_child:
            text, output = "\n".join([*map(bare.__getitem__, batch), ""])[:MOST_BYTES].rpartition("\n")[0], Output(None)
            with suppress(OSError):
                output = run(self._command, environment={}, deadline=DEADLINE_SECONDS, clock=self._clock, text=text)
            self._next_child = began + (self._clock.monotonic() - began) / CHILD_RATIO
            lines = output.stdout.split("\n")[:-1]
            for raw, line in zip(batch, lines if len(lines) <= text.count("\n") + 1 else (), strict=False):
                self._stored[new[raw]] = _short(line) or _fitted(raw)
        while len(self._stored) > MOST_STORED:
            del self._stored[next(iter(self._stored))]


def _without_file(name: str) -> str:
    """Return a name without the part of its file, which nvcc adds with -rdc=true: __nv_static_LENGTH_FILE_NAME."""
    start = re.match(r"__nv_static_([0-9]{1,4})_", name)
    return name if start is None else name[start.end() + int(start[1]) + 1 :]


def _short(name: str) -> str:
    """Return a name without namespaces, the type of its result, parameters and lambdas, in `WIDTH` characters."""
    for _ in range(9):  # the deepest parentheses first
        name = re.sub(r"(?!\(anonymous namespace\))\([^()]*\)", "", name)
    return _fitted(re.sub(r"\b(?:\w+::)+(?=[\w~])|\bvoid (?=\w)", "", _NOISE.sub("", name)).strip())


def _fitted(name: str, width: int = WIDTH) -> str:
    """Return the beginning of a name, without numbers if that makes room; also the end of one without templates.

    Triton numbers its kernels there.
    """
    name = name if len(name) <= width else _COUNTS.sub("…", name)
    tail = 0 if "<" in name else 16
    return name if len(name) <= width else f"{name[: width - tail - 1].rstrip('…')}…{name[len(name) - tail :]}"
