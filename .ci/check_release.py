"""Check that the tree can be released under a tag. Print what is wrong, and exit with 1.

python3 .ci/check_release.py v1.2.3
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

PLACEHOLDER = "example.invalid"

VERSIONS = {
    "exporter/__init__.py": r'^__version__ = "(.+)"$',
    "deploy/helm/cuda-mps-exporter/Chart.yaml": r"^(?:version|appVersion): (.+)$",
    "deploy/Containerfile": r'org\.opencontainers\.image\.version="(.+?)"',
    "CHANGELOG.md": r"\A(?s:.*?)^## (.+)$",
}
"""Where the version is, without quotes. The first section of the changelog is that of the release."""

REPOSITORIES = {
    "deploy/helm/cuda-mps-exporter/Chart.yaml": r"^(?:home: |sources: \[)(.+?)\]?$",
    "deploy/Containerfile": r'org\.opencontainers\.image\.source="(.+?)"',
    "deploy/packages/debian/control": r"^Homepage: (.+)$",
}
"""Where the address of the repository is, besides pyproject.toml."""

CHART = "deploy/helm/cuda-mps-exporter"
UNPUBLISHED = ("docs/kubernetes.md", f"{CHART}/values.yaml", f"{CHART}/README.md", f"{CHART}/templates/_helpers.tpl")
"""Texts that are false from the first release on."""


def values_in(places: dict[str, str]) -> Iterator[tuple[str, str]]:
    """Yield each file and a value in it. A file without one has an empty value."""
    for path, pattern in places.items():
        for value in re.findall(pattern, (ROOT / path).read_text(), re.MULTILINE) or [""]:
            yield path, value.strip('"')


def inconsistent() -> Iterator[str]:
    """Yield each address that is not that of pyproject.toml."""
    repository = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["urls"]["Repository"]
    for path, value in values_in(REPOSITORIES):
        if value != repository:
            yield f"{path}: the repository is {value!r}, and {repository!r} in pyproject.toml"


def problems(tag: str) -> Iterator[str]:
    """Yield what forbids a release under the tag."""
    for path, value in values_in(VERSIONS):
        if f"v{value}" != tag:
            yield f"{path}: the version is {value!r}, and the tag is {tag}"
    yield from inconsistent()
    for path in ("pyproject.toml", "SECURITY.md", *REPOSITORIES):
        if PLACEHOLDER in (ROOT / path).read_text():
            yield f"{path}: {PLACEHOLDER} is a placeholder"
    for path in UNPUBLISHED:
        if "no image is published" in (ROOT / path).read_text().lower():
            yield f"{path}: it says that no image is published, but the release publishes one"


if __name__ == "__main__":
    lines = list(problems(sys.argv[1]))
    print("\n".join(lines) or f"{sys.argv[1]} can be released")
    sys.exit(bool(lines))
