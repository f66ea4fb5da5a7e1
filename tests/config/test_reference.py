"""The page about the configuration matches the table, and its example is valid."""

from pathlib import Path

from exporter.config.options import DAEMON_KEYS, OPTIONS
from exporter.config.reference import example, reference
from tests.config.reading import config, document, written

PAGE = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_page_matches_the_table() -> None:
    """If not: python -m exporter.config.reference > docs/configuration.md."""
    assert PAGE.read_text() == reference()


def test_the_example_on_the_page_has_every_key(tmp_path: Path) -> None:
    assert example() in PAGE.read_text()
    unset = {option for option in OPTIONS if option.of(config("serve")) is None}
    assert set(document(example()).values) == set(OPTIONS) - unset
    keys = {each.key for each in DAEMON_KEYS if each.instead_of is None}
    assert [set(each) for each in document(example()).daemons] == [keys]
    assert all(f"\n# {each.key} = " in example() for each in DAEMON_KEYS if each.instead_of is not None)


def test_the_example_has_the_defaults_and_one_daemon(tmp_path: Path) -> None:
    read = config("serve", "--config.file", written(tmp_path, example()))
    (daemon,) = read.daemons
    assert daemon.name == "training"
    assert all(option.of(read) == option.of(config("serve")) for option in OPTIONS)
