"""Reload gives the new configuration, or the old one and the error, and names options that need a restart."""

from pathlib import Path

from exporter.cli import parse_arguments
from exporter.config.load import Reloader, build_config
from tests.config.reading import written
from tests.config.test_daemons import TWO


def reloader(directory: Path, text: str, *arguments: str) -> Reloader:
    parsed = parse_arguments(("serve", "--config.file", written(directory, text), *arguments))
    environment = {"CUDA_MPS_EXPORTER_LOG_FORMAT": "json"}
    return Reloader(parsed, environment, build_config(parsed, environment))


def test_reads_a_changed_file(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "[clients]\nmin_age_seconds = 1")
    written(tmp_path, TWO + "[clients]\nmin_age_seconds = 2")
    config = reads.reload()
    assert (reads.problem, reads.needs_restart) == (None, ())
    assert config.client_min_age == 2
    assert [daemon.name for daemon in config.daemons] == ["training", "/run/other"]


def test_flags_and_environment_still_override_the_file(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "", "--log.level=debug")
    written(tmp_path, "[log]\nlevel = 'error'\nformat = 'console'")
    config = reads.reload()
    assert (config.log_level, config.log_format) == ("debug", "json")


def test_an_unusable_file_changes_nothing_until_it_is_corrected(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "[clients]\nmin_age_seconds = 1")
    path = written(tmp_path, "[clients]\nmin_age_seconds = 'many'")
    assert reads.problem is None
    assert reads.reload().client_min_age == 1
    expected = "expected a number of seconds from 0 to 1000000000"
    assert reads.problem == f"{path}: clients.min_age_seconds: invalid value 'many': {expected}"
    written(tmp_path, "")
    assert reads.reload().client_min_age == 15
    assert reads.problem is None


def test_names_options_that_need_a_restart(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "")
    written(tmp_path, "web.listen_address = [':1']\npaths.runtime_directory = '/run/x'\nclients.min_age_seconds = 2")
    config = reads.reload()
    assert reads.needs_restart == ("web.listen_address", "paths.runtime_directory")
    assert config.listen == (("", 10677),)
    assert config.runtime_directory == Path("/run/cuda-mps-exporter")
    assert config.client_min_age == 2, "what can be changed, is"
    before = reads.needs_restart
    reads.reload()
    assert reads.needs_restart == before, "every reload names it until the next start"
