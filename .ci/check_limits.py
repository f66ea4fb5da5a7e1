"""Compare the language, size and options of the project with `.ci/limits.toml`. Exit with 1 if a limit is exceeded."""

import argparse
import ast
import os
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

ROOT = Path(__file__).resolve().parents[1]

LIMITS = tomllib.loads((ROOT / ".ci/limits.toml").read_text())

LEAVES: Mapping[str, tuple[re.Pattern[str], re.Pattern[str]]] = {
    name: (re.compile(rf"exporter/(?:{leaf['own']})"), re.compile(leaf["names"]))
    for name, leaf in LIMITS.pop("leaf").items()
}
"""Each optional subject: its own files, and the names by which other files of exporter/ refer to it."""

DIALECT = frozenset(LIMITS.pop("words")["dialect"])
"""Words that an SRE, kernel or Prometheus engineer would not search for."""

PHRASES = re.compile(r"\b(is no more|no more than|in the midst|lets? go|let alone)\b", re.IGNORECASE)

STANDARD = re.compile(
    r"keep[-_ ]?alive|keepdims|keep_fds|keep_blank_values|keepends|KEEPCAPS|keep_caps|keep_firing_for|says otherwise",
    re.IGNORECASE,
)
"""Names of others that contain such a word."""

PARTS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")

TABLES = ("problems.py",)
"""Modules that are one table, of any length."""

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
    modules = {path: path.read_text() for path in files(("exporter/**/*.py",))}
    lines = [len(text.splitlines()) for text in modules.values()]
    prose = " ".join(read(files(("README.md", "docs/**/*.md"))))
    options, help_lines = _options()
    cases = Counter(_cases())
    return {
        "dialect": {name: density(read(files(each)))[0] for name, each in PARTS_OF_PROJECT.items()},
        "size": {
            "modules": len(modules),
            "modules_with_one_importer": _with_one_importer(modules),
            "lines": sum(lines),
            "code_lines": sum(map(code_lines, modules.values())),
            "module_lines": max(len(text.splitlines()) for path, text in modules.items() if path.name not in TABLES),
            "test_lines": sum(len(text.splitlines()) for text in read(files(("tests/**/*.py",)))),
            "cases": cases.total(),
            "cases_of_a_test": max(cases.values()),
            "words": sum(any(map(str.isalnum, token)) for token in prose.split()),
        },
        "options": {"total": options, "help_lines": help_lines},
        "leaves": {name: sum(1 for _ in naming(name)) for name in LEAVES},
    }


def code_lines(text: str) -> int:
    """Return the lines of a module without docstrings, comments, imports and blank lines."""
    tree = ast.parse(text)
    left_out = {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom) or _is_docstring(node)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    numbered = enumerate(text.splitlines(), start=1)
    return sum(
        number not in left_out and line.strip() != "" and not line.strip().startswith("#") for number, line in numbered
    )


def _is_docstring(node: ast.AST) -> TypeGuard[ast.Expr]:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def _with_one_importer(modules: Mapping[Path, str]) -> int:
    """Return how many modules only one other module imports."""
    names = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for path in modules}
    importers: dict[str, set[Path]] = {name: set() for name in names}
    for path, text in modules.items():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for name in (node.module, *(f"{node.module}.{each.name}" for each in node.names)):
                    importers.get(name, set()).add(path)
    return sum(len(found) == 1 for found in importers.values())


def naming(leaf: str) -> Iterator[str]:
    """Yield the files of exporter/ outside an optional subject that name it: what its removal has to change."""
    own, names = LEAVES[leaf]
    for path in files(("exporter/**/*.py", "exporter/**/*.html", "exporter/**/*.js")):
        relative = path.relative_to(ROOT).as_posix()
        if own.match(relative) is None and names.search(path.read_text()):
            yield relative


def _cases() -> Iterator[str]:
    """Yield the test function of each default test case."""
    command = (sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly")
    collected = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    yield from (line.partition("[")[0] for line in collected.splitlines() if "::" in line)


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
    parser.add_argument("--leaf", choices=LEAVES, help="list the files that name an optional subject")
    parser.add_argument("--worst", choices=PARTS_OF_PROJECT, help="list the files with most dialect words")
    arguments = parser.parse_args()
    if arguments.worst or arguments.leaf:
        found = worst(PARTS_OF_PROJECT[arguments.worst], 60) if arguments.worst else naming(arguments.leaf)
        print(*found, sep="\n")
        return 0
    sizes = measured()
    for section, values in sizes.items():
        print(f"{section}: " + ", ".join(f"{name} {value:.4g}" for name, value in values.items()))
    problems = list(exceeded(sizes, LIMITS))
    print(*(f"exceeded: {each}" for each in problems), sep="\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
