"""The files that the page needs."""

from importlib.resources import files


def style() -> bytes:
    """The style sheet."""
    return files("exporter.page").joinpath("style.css").read_bytes()


def script() -> bytes:
    """Return the script that refreshes the page."""
    return files("exporter.page").joinpath("page.js").read_bytes()
