"""Compare the language, size and options of the project with `.ci/limits.toml`. Exit with 1 if a limit is exceeded."""

import argparse
import os
import re
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

LIMITS = tomllib.loads((ROOT / ".ci/limits.toml").read_text())

DIALECT = frozenset(LIMITS.pop("words")["dialect"])
"""Words that an SRE, kernel or Prometheus engineer would not search for."""

PHRASES = re.compile(r"\b(is no more|no more than|in the midst|lets? go|let alone)\b", re.IGNORECASE)

STANDARD = re.compile(
    r"keep[-_ ]?alive|keepdims|keep_fds|keep_blank_values|keepends|KEEPCAPS|keep_caps|keep_firing_for|says otherwise",
    re.IGNORECASE,
)
"""Names of others that contain such a word."""

PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

PARTS_OF_PROJECT = {
    "docs": ("*.md", "docs/**/*.md", "alerts/**/*.md", "alerts/**/*.yml", "deploy/**/*.yaml", "systemd/**/*"),
    "code": ("exporter/**/*.py", "exporter/**/*.c", "exporter/**/*.html"),
    "tests": ("tests/**/*.py", "lab/**/*.py", "benchmarks/**/*.py", "dashboards/**/*.py"),
}
"""The files whose language is measured."""


def words(text: str) -> Iterator[str]:
    """Yield the words of a text in lower case. Identifiers are split: `told_by` is two words, `DoorReader` as well."""
    for part in PARTS.finditer(STANDARD.sub("", text)):
        yield part[0].lower()


def density(texts: Iterable[str]) -> tuple[float, int, int]:
    """Return the dialect words per 1,000 words, their number, and the number of words."""
    total = dialect = 0
    for text in texts:
        for word in words(text):
            total += 1
            dialect += word in DIALECT
        dialect += len(PHRASES.findall(text))
    return 1000 * dialect / max(total, 1), dialect, total


def files(patterns: Iterable[str]) -> list[Path]:
    """Return the files that match, each once."""
    return sorted({path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()})


def read(paths: Iterable[Path]) -> Iterator[str]:
    """Yield the texts of files."""
    return (path.read_text(errors="replace") for path in paths)


def measured() -> dict[str, dict[str, float]]:
    """Return what `limits.toml` limits."""
    modules = [len(text.splitlines()) for text in read(files(("exporter/**/*.py",)))]
    with_code = [lines for lines in modules if lines > 1]
    prose = " ".join(read(files(("README.md", "docs/**/*.md"))))
    options, help_lines = _options()
    return {
        "dialect": {name: density(read(files(each)))[0] for name, each in PARTS_OF_PROJECT.items()},
        "size": {
            "modules": len(modules),
            "lines": sum(modules),
            "module_lines": max(modules),
            "median_lines_least": statistics.median(with_code),
            "median_lines_most": statistics.median(with_code),
            "words": sum(any(map(str.isalnum, token)) for token in prose.split()),
        },
        "options": {"total": options, "help_lines": help_lines},
    }


def _options() -> tuple[int, int]:
    """Return how many options and daemon keys there are, and how many lines `serve --help` has."""
    sys.path.insert(0, str(ROOT))
    from exporter.config.settings import DAEMON_KEYS

    command = (sys.executable, "-m", "exporter", "serve", "--help")
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, "COLUMNS": "80"}, capture_output=True, check=True)
    shown = run.stdout.decode()
    options = set(re.findall(r"^  (--[a-z][a-z.-]*)", shown, re.MULTILINE)) - {"--config.check"}
    return len(options) + len(DAEMON_KEYS), len(shown.splitlines())


def exceeded(found: dict[str, dict[str, float]], limits: dict[str, dict[str, float]]) -> Iterator[str]:
    """Yield a line for each limit that is exceeded."""
    for section, values in limits.items():
        for name, limit in values.items():
            value = found[section][name]
            if value < limit if name.endswith("_least") else value > limit:
                yield f"{section}.{name}: {value:.4g}, limit {limit:g}"


def worst(patterns: Iterable[str], count: int = 20) -> Iterator[str]:
    """Yield the files with most dialect words for their length."""
    rows = [(*density((path.read_text(errors="replace"),)), path.relative_to(ROOT)) for path in files(patterns)]
    for each, dialect, total, path in sorted(rows, reverse=True)[:count]:
        yield f"{each:6.1f}  {dialect:4} of {total:6}  {path}"


def main() -> int:
    """Print what is measured and what exceeds its limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worst", choices=PARTS_OF_PROJECT, help="list the files with most dialect words")
    chosen = parser.parse_args().worst
    if chosen:
        print("\n".join(worst(PARTS_OF_PROJECT[chosen], 60)))
        return 0
    found = measured()
    for section, values in found.items():
        print(f"{section}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    problems = list(exceeded(found, LIMITS))
    print(*(f"exceeded: {each}" for each in problems), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
