"""Commands that documents, alerts and the program show work when they are pasted."""

import contextlib
import re
import shlex
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from exporter.cli import parse_arguments
from exporter.report.remedy import commands_to_restart, commands_to_start, commands_to_stop
from tests.builders import DAEMON, daemon_dead, idle
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.report.test_remedy import moved
from tests.standin.mps import MpsStandIn

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md")),
    *sorted(ROOT.glob("docs/*.md")),
    *sorted(ROOT.glob("alerts/runbooks/*.md")),
    *sorted(ROOT.glob("alerts/*.yml")),
]
OWN = re.compile(r"(?:^|[\s/`(])cuda-mps-exporter (?=[a-z-])([^|&;`#<>\n]*(?:<[a-z ]+>[^|&;`#<>\n]*)*)")
COMMANDS = ("serve", "status", "incidents", "once", "record", "replay", "doctor", "demo", "pause", "resume")
PLACEHOLDERS: Mapping[str, str] = {"…": "", "{{": "", "<daemon>": "NAME", "<ID>": "ID", "DAEMON": "NAME"}


def blocks(document: Path) -> Iterator[str]:
    """Yield the indented blocks of a Markdown document, which are commands for a shell."""
    if document.suffix == ".md":
        text = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
        for block in re.findall(r"(?<=\n\n)((?: {4}[^\n]*\n)+)", text):
            yield re.sub("^ {4}", "", block, flags=re.MULTILINE)


def own_commands(document: Path) -> list[list[str]]:
    """Return the arguments of this program's commands in a document; those with a placeholder end before it."""
    text = document.read_text()
    if document.suffix == ".yml":
        text = re.sub(r"\s+", " ", text)
    found = [each.group(1).strip() for each in OWN.finditer(text)]
    return [words for each in found if (words := _words(each)) and words[0] in COMMANDS]


def _words(command: str) -> list[str]:
    for placeholder, value in PLACEHOLDERS.items():
        command = command.replace(placeholder, value) if value else command.partition(placeholder)[0]
    try:
        return shlex.split(command.rstrip(".,:'\"\\"))
    except ValueError:
        return shlex.split(command.partition("'")[0])


def test_documents_have_commands() -> None:
    """Otherwise the patterns above are wrong."""
    assert sum(len(list(blocks(each))) for each in DOCUMENTS) > 50
    assert sum(len(own_commands(each)) for each in DOCUMENTS) > 60


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_own_commands_have_existing_arguments(document: Path) -> None:
    for words in own_commands(document):
        wanted = [*words, "-"] if words[0] == "record" and words[-1].startswith("-") else words
        assert _exit_code(wanted) == 0, words


def _exit_code(arguments: list[str]) -> object:
    """Return the exit code if the arguments are invalid or ask for help, else 0."""
    with contextlib.redirect_stderr(None), contextlib.redirect_stdout(None):
        try:
            parse_arguments(arguments)
        except SystemExit as ended:
            return ended.code or 0
    return 0


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_a_shell_can_read_each_block(document: Path) -> None:
    for block in blocks(document):
        text = re.sub(r"<[A-Za-z ]+>", "NAME", block)
        done = subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True)
        assert (done.returncode, done.stderr) == (0, ""), block


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_of_the_repository_in_commands_exist(document: Path) -> None:
    for block in blocks(document):
        for name in re.findall(
            r"(?<![\w/.])(?:alerts|dashboards|deploy|docs|systemd|tests|benchmarks|\.ci)/[\w.@/-]+", block
        ):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_units_in_commands_exist(document: Path) -> None:
    others = {"prometheus", "prometheus-alertmanager", "grafana-server", "nvidia-persistenced"}
    known = {each.name for each in (ROOT / "systemd").glob("*.service")} | {f"{each}.service" for each in others}
    for command in re.findall(r"systemctl (?:[a-z-]+ )(?:--now )?([^&|;`\n#]*)", document.read_text()):
        for word in command.split():
            if re.fullmatch(r"[a-z@0-9.-]*(?:mps|prometheus|nvidia)[a-z@0-9.-]*", word):
                unit = re.sub(r"@[^.]*", "@", word.rstrip(".,"))
                assert unit.removesuffix(".service") + ".service" in known, command


DIRECTORIES = ["training", "a b", "$HOME", "it's", 'a"b', "a;b", "`x`", "-d"]


@pytest.mark.parametrize("name", DIRECTORIES)
def test_shown_commands_start_stop_and_restart_the_daemon_of_their_directory(mps: MpsStandIn, name: str) -> None:
    directory = mps.pipe_directory.parent
    with MpsStandIn(directory / "other") as other, MpsStandIn(directory / name) as meant:
        other.start()
        meant.pipe_directory.mkdir(parents=True)
        meant.log_directory.mkdir()
        directories = str(meant.pipe_directory), str(meant.log_directory)
        dead, alive = moved(daemon_dead(), *directories), moved(idle(), *directories)
        paste(commands_to_start(dead, dead.daemons[DAEMON], None), meant)
        eventually(lambda: _answers(meant))
        before = meant.pid
        paste(commands_to_restart(alive, alive.daemons[DAEMON], None), meant)
        eventually(lambda: _answers(meant))
        assert meant.pid != before
        paste(commands_to_stop(alive, alive.daemons[DAEMON], None), meant)
        eventually(lambda: _has_ended(meant))
        assert other.is_running()


def paste(commands: tuple[str, ...], mps: MpsStandIn) -> None:
    """Run commands as a shell of root would, without the variables of any daemon."""
    assert commands
    environment = {key: value for key, value in mps.environment().items() if not key.startswith("CUDA_MPS_")}
    for command in commands:
        done = subprocess.run(
            ["bash", "-c", command],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
        )
        assert (done.returncode, done.stderr) == (0, ""), command


def _answers(mps: MpsStandIn) -> None:
    assert mps.ask("get_server_list").returncode == 0


def _has_ended(mps: MpsStandIn) -> None:
    assert not mps.is_running()
