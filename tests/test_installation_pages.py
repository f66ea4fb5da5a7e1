"""Pages of docs/install: four parts on one screen, values that exist, and commands that render the chart."""

import re
import shlex
from pathlib import Path

import pytest

from tests.deploy.manifests import CHART, VALUES, helm, objects
from tests.test_documentation import LINK, ROOT

PAGES = {page.stem: page for page in sorted((ROOT / "docs" / "install").glob("*.md"))}
IN_KUBERNETES = sorted(PAGES.keys() - {"host", "slurm"})

MAX_WORDS = 250
MAX_LINES = 60
"""Lines of a screen."""


def section(name: str, heading: str) -> str:
    """Return a part of a page, without its heading."""
    _, found, rest = PAGES[name].read_text().partition(f"\n## {heading}\n")
    assert found
    return rest.partition("\n## ")[0]


def expected_output(name: str) -> tuple[str, list[str]]:
    """Return the command that checks an installation, and the lines that it prints."""
    ((command, output),) = re.findall(r"^```\n\$ (.+)\n((?:.*\n)*?)```$", section(name, "Check"), re.MULTILINE)
    return command, output.splitlines()


def is_shown(printed: str, shown: list[str]) -> bool:
    """Return whether a page shows what a program prints, with other PIDs. `…` stands for what the page leaves out."""
    *lines, last = map(_pattern, shown)
    pattern = "\n".join((*lines, f"(.*\n)*?{last}" if last == ".*" else last))
    return re.fullmatch(pattern, "\n".join(map(_columns, printed.rstrip().splitlines()))) is not None


def _pattern(line: str) -> str:
    return re.escape(_columns(line)).replace("…", ".*")


def _columns(line: str) -> str:
    """Return the columns of a line without the padding. Those of a client have no PIDs."""
    words = line.split()
    if line.startswith("/"):
        words = ["PID" if word.isdecimal() and number in (1, 3) else word for number, word in enumerate(words)]
    return " ".join(words)


def values_of(name: str) -> str:
    """Return the name of the values that the page's command uses."""
    ((values,),) = [re.findall(r"ci/([\w-]+)-values\.yaml", " ".join(command)) for command in helm_commands(name)]
    return values


def helm_commands(name: str) -> list[list[str]]:
    """Return the words of the page's commands that install the chart."""
    text = PAGES[name].read_text().replace("\\\n", " ")
    return [shlex.split(line) for line in re.findall(r"^    (helm .*)$", text, re.MULTILINE)]


def linked_values(page: Path) -> set[str]:
    """Return the values files that a page links or passes to helm."""
    return set(re.findall(r"deploy/helm/cuda-mps-exporter/ci/([\w-]+)-values\.yaml", page.read_text()))


@pytest.mark.parametrize("name", PAGES)
def test_a_page_has_four_parts_on_one_screen(name: str) -> None:
    text = PAGES[name].read_text()

    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == ["Prerequisites", "Install", "Check", "Not covered"]
    assert sum(any(map(str.isalnum, word)) for word in text.split()) <= MAX_WORDS
    assert len(text.splitlines()) <= MAX_LINES


@pytest.mark.parametrize("name", PAGES)
def test_a_page_checks_with_one_command_that_prints_its_result(name: str) -> None:
    command, output = expected_output(name)

    assert command.endswith("cuda-mps-exporter status")
    assert output[0].startswith("well: 1 of 1 daemons up, 1 client")


def test_compares_the_shown_output_with_the_printed_one(subtests: pytest.Subtests) -> None:
    printed = "well: 1 client\n\n/tmp/x   7  active  8  root\nmore 1\nmore 2\n"
    for shown, same in (
        (["well: 1 client", "", "/tmp/x  100  active  200  root", "…"], True),
        (["well: 1 client", "", "/tmp/…  100  active  200  root", "more 1", "more 2"], True),
        (["well: 1 client", "", "/tmp/x  100  active  200  root"], False),
        (["well: 2 clients", "", "/tmp/x  100  active  200  root", "…"], False),
        (["well: 1 client", "", "/tmp/x  -  active  200  root", "…"], False),
        (["well: 1 client", "", "/tmp/x  100  active  200  alice", "…"], False),
        (["well: 1 client", "…", "more 3"], False),
    ):
        with subtests.test(shown=shown):
            assert is_shown(printed, shown) is same


def test_a_page_or_that_of_all_clusters_links_the_values_of_each_installation() -> None:
    pages = [*PAGES.values(), ROOT / "docs" / "kubernetes.md"]
    assert set().union(*map(linked_values, pages)) == VALUES.keys() - SIMILAR.keys()


SIMILAR = {"k3s": "device-plugin", "talos": "device-plugin"}
"""Installations with the values of another one, which the page shows."""


def test_installations_without_a_link_have_the_values_of_another_one() -> None:
    for name, other in SIMILAR.items():
        assert objects(name) == objects(other), name


@pytest.mark.parametrize("name", IN_KUBERNETES)
def test_the_commands_of_a_page_render_the_chart(name: str) -> None:
    (command,) = helm_commands(name)
    assert command[:3] == ["helm", "install", "cuda-mps-exporter"]
    chart, *arguments = command[3:]
    assert (ROOT / chart).samefile(CHART)

    done = helm(
        "template",
        "cuda-mps-exporter",
        ROOT / chart,
        *(each.replace("deploy/", f"{ROOT}/deploy/") for each in arguments),
    )

    assert done.returncode == 0, done.stderr
    assert re.search(r"image: .?your\.registry/cuda-mps-exporter:", done.stdout)


def test_readme_and_the_page_of_all_clusters_link_the_pages() -> None:
    links = [link for page in ("README.md", "docs/kubernetes.md") for link in LINK.findall((ROOT / page).read_text())]
    for name in PAGES:
        assert f"docs/install/{name}.md" in links
        assert name not in IN_KUBERNETES or f"install/{name}.md" in links
