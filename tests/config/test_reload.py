"""Reload gives the new configuration, or the old one and the error, and names options that need a restart."""

from pathlib import Path

from prometheus_client import generate_latest

from exporter.cli import parse_arguments
from exporter.config.load import build_config
from exporter.config.reload import Reloader
from exporter.metrics.catalogue import NodeCollector
from exporter.model.node import Node
from exporter.view import View
from tests.config.reading import written
from tests.config.test_daemons import TWO


def reloader(directory: Path, text: str, *arguments: str) -> Reloader:
    parsed = parse_arguments(("serve", "--config.file", written(directory, text), *arguments))
    environment = {"CUDA_MPS_EXPORTER_LOG_FORMAT": "json"}
    return Reloader(parsed, environment, build_config(parsed, environment))


def test_reads_a_changed_file(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "[clients]\nmin_age_seconds = 1")
    written(tmp_path, TWO + "[clients]\nmin_age_seconds = 2")
    reloaded = reads.reload()
    assert (reloaded.problem, reloaded.unchanged) == (None, ())
    assert reloaded.config.client_min_age == 2
    assert [each.name for each in reloaded.config.daemons] == ["training", "/run/other"]


def test_flags_and_environment_still_override_the_file(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "", "--log.level=debug")
    written(tmp_path, "[log]\nlevel = 'error'\nformat = 'console'")
    config = reads.reload().config
    assert (config.log_level, config.log_format) == ("debug", "json")


def test_an_unusable_file_changes_nothing(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "[clients]\nmin_age_seconds = 1")
    path = written(tmp_path, "[clients]\nmin_age_seconds = 'many'")
    reloaded, expected = reads.reload(), "expected a number of seconds from 0 to 1000000000"
    assert reloaded.problem == f"{path}: clients.min_age_seconds: invalid value 'many': {expected}"
    assert reloaded.config.client_min_age == 1


def test_names_options_that_need_a_restart(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "")
    written(
        tmp_path,
        "[web]\nlisten_address = [':1']\n[paths]\nruntime_directory = '/run/x'\n[clients]\nmin_age_seconds = 2",
    )
    reloaded = reads.reload()
    assert reloaded.unchanged == ("web.listen_address", "paths.runtime_directory")
    assert reloaded.config.listen == (("", 10677),)
    assert reloaded.config.runtime_directory == Path("/run/cuda-mps-exporter")
    assert reloaded.config.client_min_age == 2, "what can be changed, is"
    assert reads.reload().unchanged == reloaded.unchanged, "every reload names it until the next start"


def test_reports_whether_the_configuration_is_valid(tmp_path: Path) -> None:
    reads = reloader(tmp_path, "")
    assert reads.valid is True
    written(tmp_path, "x")
    reads.reload()
    assert reads.valid is False
    written(tmp_path, "")
    reads.reload()
    assert reads.valid is True


def exposed(view: View) -> str:
    return generate_latest(NodeCollector(view)).decode()


def test_the_status_is_exposed(tmp_path: Path) -> None:
    text = exposed(View(Node(), clock_step=60.0, config_valid=False))
    assert "\ncuda_mps_exporter_config_last_reload_successful 0.0\n" in text


def test_exposes_nothing_if_no_configuration_was_read() -> None:
    assert "config_last_reload" not in exposed(View(Node()))
