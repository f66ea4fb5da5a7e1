"""The page as it is rendered: complete, well formed, small, and with every name as text alone."""

import json
import re
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from urllib.parse import parse_qs, urlsplit

import pytest

from exporter.page.page import Page
from exporter.page.tables import with_code
from exporter.parse.printable import printable
from exporter.report.text import zone_text, zoned_time
from tests.builders import DAEMON, GPU
from tests.page.html_reader import Read
from tests.page.inputs import INPUTS, fault, full, hostile, no_daemon, overwhelmed

LINKS = {"Metrics": "/metrics", "Status": "/status"}
SECTIONS = ("What happened before", "Daemons", "Clients", "GPUs", "Faults and deaths", "Watchdog", "Collectors")
MOST_BYTES, MOST_BYTES_OF_PROBLEMS = 120_000, 146_000


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
    problem, hour, *others = read.headings
    assert problem == ("Nothing to do" if name in ("idle", "no_daemon") else "The problem")
    assert (hour.split()[0], others) == ("Last", list(SECTIONS))
    assert ("open for" in read.text) == (name in ("fault", "hostile"))
    assert (read.tags.count("main"), read.tags.count("h1")) == (1, 2)


def assert_references_resolve(read: Read) -> None:
    ids = Counter(read.all_of("id"))
    assert {name for name, times in ids.items() if times > 1} == set()
    assert set(read.all_of("aria-labelledby")) <= ids.keys()


def assert_no_forms_and_no_external_resources(read: Read) -> None:
    assert not set(read.tags) & {"form", "iframe", "object", "embed", "img", "style", "base"}
    assert [value for tag, name, value in read.attributes if tag == "script"] == ["/page.js", ""]
    assert all(value.startswith(("/", "#", "data:,")) for value in read.all_of("href"))
    assert not [name for _, name, _ in read.attributes if name.startswith("on") or name == "style"]


def assert_headings_in_order_and_tables_with_headers(read: Read) -> None:
    levels = [int(tag[1]) for tag in read.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert read.tags.count("caption") == read.tags.count("table")
    assert all(scope for tag, name, scope in read.attributes if (tag, name) == ("th", "scope"))


def test_each_picture_has_a_description_or_stands_beside_its_text(page: Page, subtests: pytest.Subtests) -> None:
    for name in INPUTS:
        with subtests.test(name=name):
            pictures = re.findall("<svg ([^>]*)>", page.node(INPUTS[name]()).decode())
            assert len(pictures) > 2
            for attributes in pictures:
                described = re.search(r'role="(?:img|group)" aria-label="[^"]+: [^"]+"', attributes)
                assert described or 'aria-hidden="true"' in attributes


def test_each_command_has_a_button_that_copies_it(page: Page) -> None:
    rendered = page.node(fault()).decode()
    buttons = rendered.count('</code><button type="button" class="copy">Copy</button>')
    assert buttons == rendered.count('class="copy"') == rendered.count('<div class="command"><code>')
    assert buttons > 2


def test_a_pid_and_its_process_are_not_broken_into_two_lines(page: Page) -> None:
    rendered = page.node(fault()).decode()

    assert '<th><a href="/clients/601-1">vllm</a><td>601<td>' in rendered
    assert "PID\N{NO-BREAK SPACE}601\N{NO-BREAK SPACE}(vllm of bob)" in rendered
    assert "PID 601 (vllm of" not in rendered


def test_hostile_names_are_text_and_truncated(page: Page) -> None:
    rendered = page.node(hostile()).decode()
    read = Read(rendered.encode())
    events = rendered[rendered.index('<section id="before"') : rendered.index('<section id="daemons"')]

    assert "<script>document" not in rendered
    assert "<img" not in rendered
    assert read.tags.count("script") == 1
    assert "<script>document.title=" in read.text
    assert "x" * 65 not in read.text
    assert not {"\u202e", "\x1b", "\x00", "\u2028"} & set(rendered)
    for escaped in ("&lt;script&gt;document.title=&#39;", "&#34;&#39;&gt;&lt;img src=x onerror=alert(1)&gt;"):
        assert escaped in events
    assert "<script" not in events
    assert "x" * 33 not in events


def test_the_largest_node_and_one_with_all_problems_fit_into_a_page_that_a_phone_can_load(page: Page) -> None:
    largest, problems = page.node(full()), page.node(overwhelmed())

    assert Read(largest).tags.count("tr") > 8 * 48
    assert "and 40 more" in Read(problems).text
    assert len(largest) < MOST_BYTES
    assert len(problems) < MOST_BYTES_OF_PROBLEMS


def test_links_to_other_pages_and_incidents(page: Page) -> None:
    assert set(LINKS.values()) <= set(Read(page.node(no_daemon())).all_of("href"))
    ids = ("513-2", "513-1")
    links = {f"{place}/{id_}" for id_ in ids for place in ("/incidents", "/api/v1/incidents")}
    assert links <= set(Read(page.node(fault())).all_of("href"))


MONITORING = {
    "prometheus": "https://prometheus.example.com/p",
    "grafana": "http://[::1]:3000",
    "host": "node1",
    "port": 10677,
}


def links_elsewhere(rendered: bytes) -> list[tuple[str, dict[str, list[str]]]]:
    """Return the links to other servers, with their parameters."""
    found = (urlsplit(each) for each in Read(rendered).all_of("href") if each.startswith("http"))
    return [(f"{each.scheme}://{each.netloc}{each.path}", parse_qs(each.query, strict_parsing=True)) for each in found]


def test_links_to_prometheus_and_grafana_if_their_urls_are_set() -> None:
    (graph, query), (board, of_node), (_, at_fault), (incident, of_incident), *_ = links_elsewhere(
        Page(LINKS, MONITORING).node(fault())
    )

    assert graph == "https://prometheus.example.com/p/graph"
    assert query["g0.expr"] == [
        f'cuda_mps_daemon_clients and on (job, instance) cuda_mps_gpu_info{{gpu="{GPU}"}}',
    ]
    assert (board, of_node) == (
        "http://[::1]:3000/d/cuda-mps-node",
        {"var-instance": ["node1:10677", "node1"]},
    )
    (began,) = (each.started_at for each in fault().incidents if each.id == "513-2")
    assert at_fault["g0.expr"][0].startswith(f'cuda_mps_daemon_clients{{daemon="{DAEMON}"}} and on')
    assert incident == "http://[::1]:3000/d/cuda-mps-incident"
    assert of_incident["var-incident"] == ["513-2"]
    assert of_incident["from"] == [f"{1000 * (began - 900):.0f}"]
    assert of_incident["to"] == [f"{1000 * (fault().at):.0f}"]


def test_links_to_no_other_server_by_default(page: Page) -> None:
    assert links_elsewhere(page.node(fault())) == []


def test_a_hostile_name_is_only_a_value_in_a_link() -> None:
    name = "\"'<&#?\\\udc80\n{}|x"
    open_one = replace(fault().incidents[0], daemon=name, gpus=())
    rendered = Page(LINKS, {**MONITORING, "host": "n.1"}).node(replace(fault(), incidents=(open_one,)))
    (_, query), (board, parameters) = links_elsewhere(rendered)[2:4]

    daemon, _, node = query["g0.expr"][0].partition(" and on (job, instance) ")
    assert json.loads(daemon.removeprefix("cuda_mps_daemon_clients{daemon=").removesuffix("}")) == printable(name)
    assert node == 'up{instance=~"n.1(:.*)?"}'
    assert (board[-4:], parameters["var-daemon"]) == ("dent", [printable(name)])


def test_times_have_their_zone(page: Page) -> None:
    read = Read(page.node(fault()))

    assert f"Times in {zone_text(fault().at)} " in read.text
    times = [value for tag, name, value in read.attributes if (tag, name) == ("time", "datetime")]
    assert {zoned_time(fault().at), zoned_time(fault().incidents[0].started_at)} <= set(times)
    assert len(times) == read.tags.count("time") > 5


def test_visitors_without_access_get_links(page: Page) -> None:
    read = Read(page.links())

    assert set(LINKS.values()) <= set(read.all_of("href"))
    assert "http://localhost" in read.text
    assert "password or a client certificate" in read.text


def test_runbooks_are_html(page: Page) -> None:
    text = """\
# Title

Run `a|b`, **not `c`**:

    x <y>

1. One
   more
2. Two ([other](Other.md)):

       z

| a | b |
|---|---|
| `c` | d |
- e
"""
    rendered = page.text("Title", text).decode()
    Read(rendered.encode())

    for html in (
        "<title>Title</title>",
        "<h1>Title</h1>",
        "<p>Run <code>a|b</code>, <b>not <code>c</code></b>:</p>",
        "<code>x &lt;y&gt;</code><button",
        "<ol><li><p>One\nmore</p></li>",
        'Two (<a href="/runbooks/Other.md">other</a>):</p>\n<div class="command"><code>z</code>',
        "<tr><td><code>c</code><td>d</table>",
        "<ul><li><p>e</p></li></ul>",
    ):
        assert html in rendered


def test_reloads_without_a_script(page: Page) -> None:
    assert b'<noscript><meta http-equiv="refresh" content="10"></noscript>' in page.node(no_daemon())


def test_a_command_is_only_text() -> None:
    assert with_code("run `echo <b>`") == "run <code>echo &lt;b&gt;</code>"
