"""`python -m tests.baseline.compare OLD NEW`: print what users see differently after NEW than after OLD.

Both are commits. Differences that allowed.toml names, each with its reason, are only counted. The exit code is 1 if
there are others.
"""

import difflib
import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("allowed.toml")
MISSING = "(missing)"


def snapshot(commit: str, stack: ExitStack) -> Path:
    """Return a folder with what the program of a commit shows."""
    checkout, folder = (Path(stack.enter_context(tempfile.TemporaryDirectory())) for _ in range(2))
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, capture_output=True)
    subprocess.run(["tar", "--extract", "--directory", str(checkout)], input=archive.stdout, check=True)
    command = [sys.executable, "-m", "tests.baseline.snapshot", str(folder)]
    subprocess.run(command, cwd=checkout, check=True)
    return folder


def flat(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the path and the value of each leaf. A list of texts is one leaf."""
    match value:
        case [str(), *_]:
            yield path, value
        case dict():
            for key, item in value.items():
                yield from flat(item, f"{path}/{key}")
        case list():
            for number, item in enumerate(value):
                yield from flat(item, f"{path}/{number}")
        case _:
            yield path, value


def differences(old: Path, new: Path) -> Iterator[tuple[str, Any, Any]]:
    """Yield the paths of values that differ, each with the old and the new value."""
    for name in sorted({path.name for folder in (old, new) for path in folder.iterdir()}):
        before, after = (_values(folder / name) for folder in (old, new))
        for path in dict.fromkeys((*before, *after)):
            values = before.get(path, MISSING), after.get(path, MISSING)
            if values[0] != values[1]:
                yield f"{name.removesuffix('.json')}{path}", *values


def _values(file: Path) -> Mapping[str, Any]:
    return dict(flat(json.loads(file.read_text()))) if file.exists() else {}


def _lines(value: Any) -> list[str]:
    return [str(line) for line in value] if isinstance(value, list) else [str(value)]


def main(old: str, new: str) -> int:
    """Compare two commits."""
    patterns = tomllib.loads(ALLOWED.read_text())["allowed"]
    used = dict.fromkeys(patterns, 0)
    others = 0
    with ExitStack() as stack:
        for path, before, after in differences(snapshot(old, stack), snapshot(new, stack)):
            pattern = next((each for each in patterns if fnmatchcase(path, each)), None)
            if pattern is not None:
                used[pattern] += 1
                continue
            others += 1
            print(path, *difflib.unified_diff(_lines(before), _lines(after), lineterm="", n=0), sep="\n  ")
    for pattern, count in used.items():
        print(f"allowed: {count} of {pattern}: {patterns[pattern]}")
    print(f"{others} differences that are not allowed")
    return int(others > 0)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
