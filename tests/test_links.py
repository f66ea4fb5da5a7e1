"""Every link of a page leads somewhere, and so does its anchor."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((*ROOT.glob("*.md"), *ROOT.glob("[abdt]*/**/*.md")))
LINK = re.compile(r"\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in HEADING.findall(page.read_text())}


def test_every_link_has_a_target(subtests: pytest.Subtests) -> None:
    for page in PAGES:
        with subtests.test(page=page):
            for link in LINK.findall(page.read_text()):
                if "://" not in link:
                    path, _, anchor = link.partition("#")
                    there = page.parent / path if path else page
                    assert there.exists(), link
                    assert not anchor or anchor in anchors(there), link


def test_the_front_page_has_an_image() -> None:
    """And there are links at all."""
    assert "docs/images/page-busy.png" in LINK.findall((ROOT / "README.md").read_text())
