"""`once`: the metrics of the service on stdout, or in a file for node_exporter."""

import os
import re
import stat
from collections.abc import Callable
from pathlib import Path

from tests.exporter_process import Exporter, run
from tests.standin.mps import MpsStandIn

Serve = Callable[..., Exporter]


def test_prints_or_stores_the_metrics_of_the_service(
    serve: Serve, mps: MpsStandIn, environment: dict[str, str], tmp_path: Path
) -> None:
    mps.start()
    exporter = serve()
    exporter.shows(1, "cuda_mps_daemon_up")
    done = run(environment, "once")
    assert done.returncode == 0
    assert "cuda_mps_daemon_up{" in done.stdout
    families = [line for line in done.stdout.splitlines() if line.startswith("# TYPE ")]
    assert len(families) == len(set(families)) > 40
    # node_exporter has its own families of its process. It fails if a file contains them too.
    assert all(line.startswith("# TYPE cuda_mps_") for line in families)
    samples = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    assert all(re.search(r"[a-z_}] \S+$", line) for line in samples)

    replaces_a_file_that_all_can_read(environment, tmp_path / "textfile" / "mps.prom")
    names_a_file_that_cannot_be_written(environment, tmp_path / "none" / "mps.prom")
    replaces_only_regular_files(environment, tmp_path)


def replaces_a_file_that_all_can_read(environment: dict[str, str], file: Path) -> None:
    file.parent.mkdir()
    file.write_text("before")
    done = run(environment, "once", "--output", str(file))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert "cuda_mps_daemon_up{" in file.read_text()
    assert stat.S_IMODE(file.stat().st_mode) == 0o644
    assert list(file.parent.iterdir()) == [file]


def names_a_file_that_cannot_be_written(environment: dict[str, str], file: Path) -> None:
    done = run(environment, "once", "--output", str(file))
    assert done.returncode == 1
    assert f"{file} cannot be written: No such file" in done.stderr


def replaces_only_regular_files(environment: dict[str, str], directory: Path) -> None:
    (directory / "real").write_text("before")
    (directory / "link").symlink_to("real")
    (directory / "dangling").symlink_to("nothing")
    os.mkfifo(directory / "fifo")
    (directory / "folder").mkdir()
    for path in (*(directory / name for name in ("link", "dangling", "fifo", "folder")), Path("/dev/null")):
        kind = stat.S_IFMT(path.lstat().st_mode)
        done = run(environment, "once", "--output", str(path))
        assert (done.returncode, stat.S_IFMT(path.lstat().st_mode)) == (1, kind), path
        assert "not a regular file" in done.stderr, path
    done = run(environment, "once", "--output", "-")
    assert (done.returncode, "cuda_mps_daemon_up{" in done.stdout) == (0, True)
    assert (directory / "real").read_text() == "before"
    assert not (directory / "nothing").exists()


def test_fails_without_a_service_and_leaves_the_file(environment: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "mps.prom"
    file.write_text("before")
    done = run(environment, "once", "--output", str(file))
    assert (done.returncode, file.read_text()) == (1, "before")
    assert "no service answers" in done.stderr
