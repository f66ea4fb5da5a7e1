"""Everything that `deploy/packages/build` builds is complete, and works on a Debian that has nothing else."""

import email
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from exporter import __version__
from exporter.cli import COMMANDS
from tests.eventually import PATIENCE_SECONDS, eventually
from tests.exporter_process import Exporter
from tests.systemd.machine import Machine
from tests.tools import needed

pytestmark = pytest.mark.systems

ROOT = Path(__file__).parents[2]
NAME = "cuda-mps-exporter"
SERVICE = f"{NAME}.service"
CONFIGURATION, DEFAULTS = f"/etc/{NAME}/config.toml", f"/etc/default/{NAME}"
STATE, RUNTIME, HOME = f"/var/lib/{NAME}", f"/run/{NAME}", f"/opt/{NAME}"
NEXT = "99.0"
"""Version of the package that replaces the one built here."""

BUILD_SECONDS = 500

MACHINES = {"amd64": 62, "arm64": 183}
"""The architectures of the packages, and their machines in ELF files (EM_X86_64, EM_AARCH64)."""

EXTENSIONS = frozenset({"bcrypt", "markupsafe", "psutil", "pycxxfilt", "yaml"})
"""Packages with compiled files. `lib/python3.X/site-packages` is before their names."""

OF_THE_SOURCE = ("tests/web/test_runbooks.py", "tests/test_layering.py", "tests/deploy/test_image.py")
"""Fast tests that read many files of the repository."""

PACKAGES_OF_A_NODE = "systemd,systemd-sysv,procps,python3"
PACKAGES_OF_THE_IMAGE = "python3-venv,python-is-python3"

OF_THE_PACKAGE_MANAGER = ("/var/cache/", "/var/lib/apt/", "/var/lib/dpkg/status", "/var/lib/systemd", "/var/log/")
"""Files that apt, dpkg and systemd write with every package."""

SCRAPE = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:10677/metrics').read().decode())"


def ran(*command: str | Path, seconds: float = PATIENCE_SECONDS, **variables: str) -> str:
    """Run a command that must succeed, and return its output."""
    environment = {**os.environ, **variables}
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=environment, check=False)
    assert done.returncode == 0, f"{command}: {done.stdout[-5000:]}{done.stderr[-5000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The root directory of a minimal Debian, and its archive beside it."""
    directory = tmp_path_factory.mktemp("bare")
    archive, root = directory / "root.tar", directory / "root"
    codename = dict(line.split("=", 1) for line in Path("/etc/os-release").read_text().splitlines())["VERSION_CODENAME"]
    included = f"--include={PACKAGES_OF_A_NODE},{PACKAGES_OF_THE_IMAGE}"
    ran(needed("mmdebstrap"), "--quiet", "--variant=minbase", included, codename, archive, seconds=BUILD_SECONDS)
    root.mkdir()
    ran("tar", "xf", archive, "-C", root, "--exclude=./dev/*")
    return root


@pytest.fixture(scope="module")
def built(bare: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with all packages."""
    for program in ("dh", "podman", "crun"):
        needed(program)
    directory = tmp_path_factory.mktemp("built")
    image = str(bare.with_suffix(".tar"))
    fast = {"DPKG_DEB_COMPRESSOR_LEVEL": "1"}
    ran(ROOT / "deploy" / "packages" / "build", directory, seconds=BUILD_SECONDS, PYTHON_IMAGE=image, **fast)
    return directory


@pytest.fixture(scope="module")
def deb(built: Path) -> Path:
    """The Debian package for this machine."""
    (found,) = built.glob(f"*_{ran('dpkg', '--print-architecture').strip()}.deb")
    return found


def unpacked(archive: Path, directory: Path) -> tuple[dict[str, Any], Path]:
    """Unpack an image. Return its configuration, and the directory with its files."""
    ran("tar", "xf", archive, "-C", directory)

    def blob(descriptor: dict[str, str]) -> Path:
        return directory / "blobs" / descriptor["digest"].replace(":", "/")

    (entry,) = json.loads((directory / "index.json").read_text())["manifests"]
    manifest = json.loads(blob(entry).read_text())
    root = directory / "root"
    root.mkdir()
    for layer in manifest["layers"]:
        ran("tar", "xf", blob(layer), "-C", root, "--exclude=dev/*")
    return json.loads(blob(manifest["config"]).read_text()), root


def machine_of(library: Path) -> int:
    """Return e_machine of an ELF file."""
    header = library.read_bytes()[:20]
    assert header.startswith(b"\x7fELF")
    return int.from_bytes(header[18:], "little")


def contents(home: Path) -> set[str]:
    """Return the paths of files, without the name of the machine."""
    return {re.sub("x86_64|aarch64", "M", str(path.relative_to(home))) for path in home.rglob("*")}


@pytest.fixture(scope="module")
def source(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked source distribution."""
    directory = tmp_path_factory.mktemp("source")
    (archive,) = built.glob("*.tar.gz")
    ran("tar", "xzf", archive, "-C", directory)
    (found,) = directory.iterdir()
    return found


@pytest.fixture
def node(bare: Path, tmp_path: Path) -> Iterator[Machine]:
    """A bare Debian with a running systemd."""
    (tmp_path / "root").mkdir()
    machine = Machine(tmp_path / "root", bare)
    yield machine
    machine.close()


def files(node: Machine) -> set[str]:
    """Return the paths of all files on disk, except others of the package manager."""
    found = node.do("find", "/", "-xdev", "-not", "-path", "/root/*").splitlines()
    return {path for path in found if NAME in path or not path.startswith(OF_THE_PACKAGE_MANAGER)}


def install(node: Machine, deb: Path) -> None:
    """Install a package as the guide does, without questions."""
    (command,) = re.findall(r"^    (.+\.deb.*)$", (ROOT / "docs" / "install" / "host.md").read_text(), re.MULTILINE)
    node.write("/root/apt.conf", 'Dpkg::Options { "--force-confold"; };\n')
    shutil.copy(deb, node.root / "root")
    node.do("env", "APT_CONFIG=/root/apt.conf", "DEBIAN_FRONTEND=noninteractive", "sh", "-c", f"cd /root && {command}")
    node.do("rm", f"/root/{deb.name}")


def next_version(deb: Path, directory: Path) -> Path:
    """Make a later version of a package, with another program and other default settings."""
    unpacked = directory / "unpacked"
    ran("dpkg-deb", "--raw-extract", deb, unpacked)
    (module,) = unpacked.glob(f"opt/{NAME}/lib/python3*/site-packages/exporter/__init__.py")
    for file, before, after in (
        (unpacked / "DEBIAN" / "control", f"\nVersion: {__version__}", f"\nVersion: {NEXT}"),
        (module, __version__, NEXT),
        (unpacked / CONFIGURATION.lstrip("/"), "# An example", "# Another example"),
        (unpacked / DEFAULTS.lstrip("/"), "# Environment", "# The environment"),
    ):
        text = file.read_text()
        assert before in text
        file.write_text(text.replace(before, after))
    ran("/usr/bin/python3", "-I", "-m", "compileall", "-q", "-f", "--invalidation-mode=unchecked-hash", module)
    built = directory / f"{NAME}_{NEXT}.deb"
    ran("dpkg-deb", "--build", "-Znone", unpacked, built)
    return built


def serves(node: Machine, version: str) -> None:
    """Wait until the service shows the metrics of this version."""

    def shown() -> None:
        done = node.run("python3", "-c", SCRAPE)
        (info,) = re.findall(r"^cuda_mps_exporter_build_info.*", done.stdout, re.MULTILINE) or ("",)
        assert f'version="{version}"' in info, done.stderr
        assert "\ncuda_mps_exporter_history_writable 1.0" in done.stdout

    eventually(shown, every=0.2)


def test_the_deb_is_installed_upgraded_removed_and_purged(node: Machine, deb: Path, tmp_path: Path) -> None:
    """An upgrade restarts the service. State and changed settings last until the package is purged."""
    before, users = files(node), node.do("cat", "/etc/passwd", "/etc/group")

    install(node, deb)
    serves(node, __version__)
    installed = files(node)
    assert node.do("systemctl", "is-enabled", SERVICE).strip() == "enabled"
    first = node.show(SERVICE, "MainPID")
    assert node.do("stat", "--format=%U", f"/proc/{first}").strip() == NAME
    assert node.do(NAME, "--version").split()[-1] == __version__
    node.do(f"{HOME}/bin/python3", "-c", "import bcrypt, yaml")
    node.do("sh", "-c", f"cd /usr/share/{NAME} && {HOME}/bin/python3 -m dashboards --output /tmp/site --job gpus")
    assert 'up{job="gpus"}' in node.do("cat", "/tmp/site/alerts/cuda-mps.rules.yml")
    node.do("rm", "-r", "/tmp/site")
    node.do("python3", f"/usr/share/{NAME}/dashboards/report.py", "--help")
    assert not [path for path in files(node) - installed if path.startswith(HOME)]
    node.do("systemctl", "reload", SERVICE)
    node.do("apt-get", "check")
    assert node.do("dpkg", "--verify", NAME) == ""

    node.write(CONFIGURATION, '[log]\nlevel = "debug"\n')
    evidence = f"{STATE}/evidence"
    node.write(evidence, "a file\n")
    history = node.do("stat", "--format=%i", f"{STATE}/history.sqlite")
    install(node, next_version(deb, tmp_path))
    serves(node, NEXT)
    assert node.show(SERVICE, "MainPID") not in ("0", first)
    assert node.do("cat", CONFIGURATION) == '[log]\nlevel = "debug"\n'
    assert node.do("cat", DEFAULTS).startswith("# The environment")
    assert node.do("stat", "--format=%i", f"{STATE}/history.sqlite") == history
    assert files(node) - installed == {f"{CONFIGURATION}.dpkg-dist", evidence}

    node.do("apt-get", "remove", "-y", NAME)
    assert node.run("systemctl", "cat", SERVICE).returncode != 0
    assert node.run("test", "-e", f"/proc/{node.show(SERVICE, 'MainPID')}/exe").returncode != 0
    left = files(node)
    assert {CONFIGURATION, DEFAULTS, f"{STATE}/history.sqlite", evidence} <= left
    assert not [path for path in left if path.startswith(HOME)]

    node.write(f"/etc/systemd/system/{SERVICE}.d/journal.conf", "[Service]\nSupplementaryGroups=systemd-journal\n")
    node.do("apt-get", "purge", "-y", NAME)
    # dpkg removes an empty directory that no package has.
    assert files(node) == before - {"/opt"}
    assert node.do("cat", "/etc/passwd", "/etc/group") == users
    assert node.run("test", "-e", RUNTIME).returncode != 0


def test_an_administrator_who_disabled_the_service_finds_it_disabled_after_an_upgrade(
    node: Machine, deb: Path, tmp_path: Path
) -> None:
    install(node, deb)
    node.do("systemctl", "disable", "--now", SERVICE)
    install(node, next_version(deb, tmp_path))
    assert node.run("systemctl", "is-enabled", SERVICE).stdout.strip() == "disabled"
    assert node.show(SERVICE, "ActiveState") == "inactive"


def test_the_deb_has_the_manual_and_completions_of_all_commands(deb: Path, tmp_path: Path) -> None:
    ran("dpkg-deb", "--extract", deb, tmp_path)
    share = tmp_path / "usr" / "share"
    manual = ran("zcat", share / "man" / "man1" / f"{NAME}.1.gz")
    bash, zsh, fish = (
        share / each
        for each in (
            f"bash-completion/completions/{NAME}",
            f"zsh/vendor-completions/_{NAME}",
            f"fish/vendor_completions.d/{NAME}.fish",
        )
    )
    for command in COMMANDS:
        assert f"{NAME} {command}" in manual.replace("\\-", "-")
    assert "\\-\\-web.listen\\-address" in manual
    ran(needed("zsh"), "-n", zsh)
    completed = ran(needed("fish"), "--no-config", "-c", f"source {fish}; complete -C '{NAME} serve --log.level d'")
    assert completed.split()[0] == "debug"
    words = f"COMP_WORDS=({NAME} st) COMP_CWORD=1; $(complete -p {NAME} | sed 's/.*-F //') st {NAME}"
    assert ran("bash", "-c", f'. {bash}; {words}; echo "${{COMPREPLY[*]}}"').split() == ["status"]


def test_the_deb_has_the_files_that_the_guides_install(deb: Path, tmp_path: Path) -> None:
    """They are where the guides find them, with the same relative paths as in a clone."""
    ran("dpkg-deb", "--extract", deb, tmp_path)
    share = tmp_path / "usr" / "share" / NAME
    assert share.readlink() == Path(HOME) / "share" / NAME
    found = tmp_path / HOME.lstrip("/") / "share" / NAME
    for folder in ("alerts", "dashboards", "systemd"):
        wanted = {each.relative_to(ROOT) for each in (ROOT / folder).rglob("*") if "__pycache__" not in each.parts}
        assert wanted <= {each.relative_to(found) for each in found.rglob("*")}


def test_the_default_configuration_of_the_deb_changes_no_setting(deb: Path, tmp_path: Path) -> None:
    ran("dpkg-deb", "--extract", deb, tmp_path)
    assert tomllib.loads((tmp_path / CONFIGURATION.lstrip("/")).read_text()) == {}
    lines = (tmp_path / DEFAULTS.lstrip("/")).read_text().splitlines()
    assert all(line.startswith("#") for line in lines)


def test_sha256sums_has_every_file(built: Path) -> None:
    sums = dict(reversed(line.split()) for line in (built / "SHA256SUMS").read_text().splitlines())
    others = [each for each in built.iterdir() if each.name != "SHA256SUMS"]
    assert {each.suffix for each in others} == {".deb", ".gz", ".json", ".tar", ".whl"}
    assert sums == {each.name: hashlib.sha256(each.read_bytes()).hexdigest() for each in others}


def test_the_sbom_has_every_package_of_the_deb(built: Path, tmp_path: Path) -> None:
    for deb in built.glob("*.deb"):
        ran("dpkg-deb", "--extract", deb, tmp_path / deb.stem)
        content = json.loads(deb.with_suffix(".cdx.json").read_text())
        listed = {
            (each["name"], each["version"]) for each in (*content["components"], content["metadata"]["component"])
        }
        metadata = (tmp_path / deb.stem / HOME.lstrip("/")).glob("lib/python3*/site-packages/*.dist-info/METADATA")
        contained = [email.message_from_string(each.read_text()) for each in metadata]
        assert len(contained) > 5
        assert {(each["Name"], each["Version"]) for each in contained} == listed


@pytest.mark.parametrize(("architecture", "machine"), MACHINES.items())
def test_packages_of_each_architecture_have_only_its_files(
    built: Path, tmp_path: Path, architecture: str, machine: int
) -> None:
    """Those of another architecture are not run. They have the same files, and the BPF programs of all machines."""
    (deb,) = built.glob(f"*_{architecture}.deb")
    (archive,) = built.glob(f"*-image-{architecture}.tar")
    (tmp_path / "image").mkdir()
    config, root = unpacked(archive, tmp_path / "image")
    ran("dpkg-deb", "--raw-extract", deb, tmp_path / "deb")
    control = email.message_from_string((tmp_path / "deb" / "DEBIAN" / "control").read_text())
    assert control["Architecture"] == config["architecture"] == architecture
    assert re.search(r"libc6 \(>= 2\.\d+\)", control["Depends"])
    assert re.search(r"python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\)", control["Depends"])

    home = tmp_path / "deb" / HOME.lstrip("/")
    assert not [*home.rglob("uv_cache.json"), *home.rglob("direct_url.json")], "they differ in each build"
    documentation = {path.suffix for path in (tmp_path / "deb" / "usr/share/doc").rglob("*") if path.is_file()}
    assert ".md" in documentation
    assert ".py" not in documentation
    assert (home / "bin" / "python3").readlink() == Path("/usr/bin/python3")
    assert (home / "bin" / NAME).read_text().splitlines()[0] == f"#!{HOME}/bin/python3"
    for environment in (home, root / HOME.lstrip("/")):
        libraries = list(environment.rglob("*.so"))
        assert {path.relative_to(environment).parts[3] for path in libraries} >= EXTENSIONS
        assert {machine_of(path) for path in libraries} == {machine}
        assert {path.name for path in environment.rglob("probes.*.o")} == {"probes.x86_64.o", "probes.aarch64.o"}

    (other,) = (path for path in built.glob("*.deb") if path != deb)
    ran("dpkg-deb", "--extract", other, tmp_path / "other")
    assert contents(tmp_path / "other" / HOME.lstrip("/")) == contents(home)


def test_the_wheel_names_its_python_and_license(built: Path) -> None:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as opened:
        (name,) = [each for each in opened.namelist() if each.endswith(".dist-info/METADATA")]
        metadata = email.message_from_bytes(opened.read(name))
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["License-Expression"] == "Apache-2.0 AND (BSD-2-Clause OR GPL-2.0-only)"
    assert metadata.get_all("License-File") == ["LICENSE", "exporter/libcuda_probes/LICENSE"]


def test_the_source_distribution_has_every_file_of_the_repository(source: Path) -> None:
    tracked = ran("git", "-C", ROOT, "ls-files", "-z").rstrip("\0").split("\0")
    assert [path for path in tracked if not (source / path).exists()] == []


def test_tests_of_the_source_distribution_run_in_it(source: Path) -> None:
    command = (sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", *OF_THE_SOURCE)
    done = subprocess.run(command, cwd=source, capture_output=True, text=True, timeout=BUILD_SECONDS, check=False)
    assert done.returncode == 0, done.stdout[-5000:]


def test_the_source_distribution_is_installed_in_a_new_environment(source: Path, tmp_path: Path) -> None:
    venv.create(tmp_path, with_pip=True)
    python = tmp_path / "bin" / "python"
    ran(python, "-m", "pip", "install", "-q", f"{source}[web]", seconds=BUILD_SECONDS)
    ran(python, "-m", "pip", "check")
    assert ran(tmp_path / "bin" / NAME, "--version").split()[-1] == __version__


def test_the_image_serves_as_its_user(built: Path, tmp_path: Path) -> None:
    """Its files are unpacked, and its command is run with another command line: a container needs cgroups."""
    (archive,) = built.glob(f"*-image-{ran('dpkg', '--print-architecture').strip()}.tar")
    whole, root = unpacked(archive, tmp_path)
    config = whole["config"]
    assert config["Cmd"] == ["serve"]
    variables = dict(each.split("=", 1) for each in config["Env"])
    chroot = ("chroot", f"--userspec={config['User']}", root, "env", "-i", f"PATH={variables['PATH']}")
    ran(*chroot, *config["Entrypoint"], "--version")
    become = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
    demo = (*map(str, chroot), *config["Entrypoint"], "demo", "--web.listen-address=127.0.0.1:0", "--log.format=json")
    program = Exporter(["-c", become, *demo], {}, tmp_path / "log")
    program.shows(1, "cuda_mps_exporter_build_info", version=__version__)
    program.stop()
