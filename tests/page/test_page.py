"""The page as it is rendered: complete, well formed, small, and with every name as text alone."""

import re
from collections import Counter
from itertools import pairwise

import pytest

from exporter.page.page import Page, _with_code
from tests.page.html_reader import Read
from tests.page.inputs import INPUTS, fault, full, hostile, no_daemon, overwhelmed

LINKS = {"Metrics": "/metrics", "Status": "/status"}
SECTIONS = ("Last hour", "Recent faults", "Daemons", "GPUs", "Failure domains", "Watchdog", "Collectors")
MOST_BYTES = 200_000


@pytest.fixture(scope="module")
def page() -> Page:
    return Page(LINKS)


def test_every_page_is_well_formed(page: Page, subtests: pytest.Subtests) -> None:
    for name in INPUTS:
        with subtests.test(name=name):
            read = Read(page.node(INPUTS[name]()))
            assert_all_sections(read, name)
            assert_references_resolve(read)
            assert_no_forms_and_no_external_resources(read)
            assert_headings_in_order_and_tables_with_headers(read)


def assert_all_sections(read: Read, name: str) -> None:
    assert [each for each in read.headings if each != "Open faults"] == list(SECTIONS)
    assert ("Open faults" in read.headings) == (name in ("fault", "hostile"))
    assert read.tags.count("main") == read.tags.count("h1") == 1


def assert_references_resolve(read: Read) -> None:
    ids = Counter(read.all_of("id"))
    assert {name for name, times in ids.items() if times > 1} == set()
    assert set(read.all_of("aria-labelledby")) <= ids.keys()


def assert_no_forms_and_no_external_resources(read: Read) -> None:
    assert not set(read.tags) & {"form", "button", "input", "iframe", "object", "embed", "img", "style", "base"}
    assert [value for tag, name, value in read.attributes if tag == "script"] == ["/page.js", ""]
    assert all(value.startswith(("/", "#", "data:,")) for value in read.all_of("href"))
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name == "style"]


def assert_headings_in_order_and_tables_with_headers(read: Read) -> None:
    levels = [int(tag[1]) for tag in read.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert read.tags.count("caption") == read.tags.count("table")
    assert all(scope for tag, name, scope in read.attributes if (tag, name) == ("th", "scope"))
    assert read.tags.count("th") == sum((tag, name) == ("th", "scope") for tag, name, _ in read.attributes)


def test_each_picture_has_a_name_and_each_plot_a_description(page: Page, subtests: pytest.Subtests) -> None:
    for name in INPUTS:
        with subtests.test(name=name):
            pictures = re.findall(
                "<svg ([^>]*)>(?:<title ([^>]*)>[^<]+</title><desc ([^>]*)>[^<]+</desc>)?",
                page.node(INPUTS[name]()).decode(),
            )

            plots = 0
            for attributes, title, description in pictures:
                if 'role="img"' not in attributes:
                    assert 'aria-hidden="true"' in attributes or attributes.startswith("viewBox")
                elif "aria-label=" not in attributes:
                    plots += 1
                    assert title.replace("id=", "aria-labelledby=") in attributes
                    assert description.replace("id=", "aria-describedby=") in attributes
                    assert title
                    assert description
            assert plots == 4


def test_a_process_and_its_pid_are_in_one_cell_without_a_line_break_between(page: Page) -> None:
    rendered = page.node(fault()).decode()

    assert (
        '<th scope="row"><span class="process"><bdi class="name">vllm</bdi> <span class="pid">PID 601</span></span>'
        in rendered
    )
    assert "PID\N{NO-BREAK SPACE}601\N{NO-BREAK SPACE}(vllm of bob)" in rendered
    assert "PID 601 (" not in rendered


def test_hostile_names_are_text_and_truncated(page: Page) -> None:
    rendered = page.node(hostile()).decode()
    read = Read(rendered.encode())
    hour = rendered[rendered.index('<section id="hour"') : rendered.index('<section id="faults"')]

    assert "<script>document" not in rendered
    assert "<img" not in rendered
    assert read.tags.count("script") == 1
    assert "<script>document.title=" in read.text
    assert "x" * 33 not in read.text
    assert not {"\u202e", "\x1b", "\x00", "\u2028"} & set(rendered)
    for escaped in ("&lt;script&gt;document.title=&#39;", "&#34;&#39;&gt;&lt;img src=x onerror=alert(1)&gt;"):
        assert escaped in hour
    assert "<script" not in hour
    assert "x" * 33 not in hour


def test_the_largest_node_and_one_with_all_problems_fit_into_a_page_that_a_phone_can_load(page: Page) -> None:
    largest, problems = page.node(full()), page.node(overwhelmed())

    assert Read(largest).tags.count("tr") > 8 * 48
    assert "and 40 more" in Read(problems).text
    assert max(len(largest), len(problems)) < MOST_BYTES


def test_links_to_other_pages_and_incidents(page: Page) -> None:
    assert set(LINKS.values()) <= set(Read(page.node(no_daemon())).all_of("href"))
    assert {"/api/v1/incidents/513-2", "/api/v1/incidents/513-1"} <= set(Read(page.node(fault())).all_of("href"))


def test_visitors_without_access_get_links(page: Page) -> None:
    read = Read(page.links())

    assert set(LINKS.values()) <= set(read.all_of("href"))
    assert "http://localhost" in read.text
    assert "password or a client certificate" in read.text
    assert "script" not in read.tags


def test_reloads_without_a_script(page: Page) -> None:
    assert b'<noscript><meta http-equiv="refresh" content="10"></noscript>' in page.node(no_daemon())


def test_a_command_is_only_text() -> None:
    assert _with_code("run `echo <b>`") == "run <code>echo &lt;b&gt;</code>"
