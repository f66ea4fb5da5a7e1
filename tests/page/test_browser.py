"""The page in a real browser: layout, contrast, keyboard, refresh, and hostile names."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import pytest

from tests.builders import with_incidents
from tests.eventually import eventually
from tests.page import browser_scripts as shown
from tests.page.browser import DESKTOP, PHONE, Browser
from tests.page.inputs import INPUTS, attributed, busy, dead, fault, full, hostile, idle, status_input
from tests.ports import LOCALHOST
from tests.tools import needed
from tests.web.serving import Web, serving

pytestmark = pytest.mark.systems

REFRESH_SECONDS = 0.25

LEAST_CONTRAST = 4.5
"""Of text with what is behind it, by WCAG 2.2 AA."""

MAIN = "document.querySelector('main').textContent.replace(/\\s+/g, ' ')"
FRESH = (
    "fetch('/').then(answer => answer.text()).then(text => new DOMParser().parseFromString(text, 'text/html')"
    f".{MAIN.removeprefix('document.')})"
)
"""The words of what is shown, and of what is served."""

TIMES = "[...document.querySelectorAll('main time')].map(each => each.textContent)"

NOW = "refresh()"
"""The script's own way to look, without waiting for its time to come."""

both_widths = pytest.mark.parametrize("width", [DESKTOP, PHONE], ids=["desktop", "phone"])


class Shown(NamedTuple):
    """A browser, the server that it looks at, and where that is."""

    browser: Browser
    web: Web
    url: str


@pytest.fixture(scope="module", autouse=True)
def _refreshes_often() -> Iterator[None]:
    """Refresh often, so that the tests are fast."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exporter.page.page.REFRESH_SECONDS", REFRESH_SECONDS)
        yield


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with Browser(needed("chromium"), tmp_path_factory.mktemp("chromium")) as browser:
        yield browser


@pytest.fixture(scope="module")
def served() -> Iterator[Web]:
    with serving() as web:
        yield web


@pytest.fixture
def at(chromium: Browser, served: Web) -> Shown:
    """A browser that has opened nothing yet, and a server that shows an idle node."""
    web = Web(served.server, served.replaceable, sight=idle())
    web.show()
    chromium.open("about:blank")  # The page of the test before would fetch pages that this server does not have.
    chromium.events.clear()
    return Shown(chromium, web, f"http://localhost:{web.server.port}/")


@both_widths
@pytest.mark.parametrize("name", ["idle", "busy", "fault", "dead", "hostile"])
def test_fits_the_window_without_errors(at: Shown, name: str, width: int) -> None:
    at.web.sight = INPUTS[name]()
    at.browser.open(at.url, width=width)

    assert at.browser.run("document.documentElement.scrollWidth") == width
    assert at.browser.run(shown.OVERFLOWING) == []
    _all_is_well(at)


def test_the_largest_node_fits_a_phone(at: Shown) -> None:
    at.web.sight = full()
    at.browser.open(at.url, width=PHONE)

    assert at.browser.run("document.documentElement.scrollWidth") == PHONE
    _all_is_well(at)


def test_hostile_names_are_only_text(at: Shown) -> None:
    at.web.sight = hostile()
    at.browser.open(at.url)
    at.browser.run(NOW)

    assert at.browser.run("document.title") == "Critical: <script>document.title='owned';alert(1)</script> (CUDA MPS)"
    assert at.browser.run("document.scripts.length") == 1
    assert at.browser.run("document.images.length") == 0
    _all_is_well(at)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["busy", "fault", "dead"])
def test_text_has_enough_contrast(at: Shown, name: str, scheme: str) -> None:
    at.web.sight = INPUTS[name]()
    at.browser.open(at.url, scheme=scheme)
    at.browser.run("for (const each of document.querySelectorAll('details')) each.open = true")

    contrasts = at.browser.run(shown.CONTRASTS)
    assert len(contrasts) > 15
    assert {place: ratio for place, ratio in contrasts.items() if ratio < LEAST_CONTRAST} == {}
    assert at.browser.run("getComputedStyle(document.body).backgroundColor") == (
        "rgb(16, 19, 23)" if scheme == "dark" else "rgb(243, 245, 247)"
    )


def test_the_keyboard_reaches_all_controls_and_shows_the_focus(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.open(at.url)

    reached = []
    for _ in range(at.browser.run(shown.FOCUSABLE)):
        at.browser.press("Tab")
        reached.append(at.browser.run(shown.FOCUSED))
    assert reached[0][1] == "Skip to the content"
    assert len({place for place, _, _ in reached}) == len(reached)
    assert [each for each in reached if each[2] is not True] == []


def test_a_key_unfolds_details(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.open(at.url)
    at.browser.run("document.querySelector('#finding-1 summary').focus()")
    at.browser.press("Enter")

    assert at.browser.run("document.querySelector('#finding-1').open") is True


def test_changes_appear_by_themselves(at: Shown) -> None:
    at.browser.open(at.url)
    assert "Well" in _headline(at)
    at.web.sight = dead()

    eventually(lambda: _has(at, "Critical"))
    assert at.browser.run("document.title") == "Critical: node1 (CUDA MPS)"


def test_a_refresh_preserves_details_focus_and_selection(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.open(at.url)
    at.browser.run(
        "document.querySelector('#finding-1').open = true;"
        "document.querySelector('#faults details').open = true;"
        "document.querySelector('#faults summary').focus();"
        "getSelection().selectAllChildren(document.querySelector('#problems code'));"
        "scrollTo(0, 300)"
    )
    at.web.sight = replace(fault(), at=fault().at + 60)
    at.browser.run(NOW)

    assert "1 min 45 s" in _headline(at)
    stays = (
        "[document.querySelector('#finding-1').open, document.querySelector('#faults details').open,"
        " document.activeElement === document.querySelector('#faults summary'), getSelection().toString(), scrollY]"
    )
    assert at.browser.run(stays) == [True, True, True, "kill -KILL 601", 300]


def test_shows_times_in_the_zone_that_the_visitor_chooses(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.call("Emulation.setTimezoneOverride", timezoneId="Asia/Kathmandu")
    at.browser.open(at.url)
    shown_by_server = at.browser.run(TIMES)
    began = fault().incidents[0].started_at
    for zone, seconds in (("UTC", 0), ("browser", 5.5 * 3600)):
        at.browser.run(f"zone.value = '{zone}'; zone.dispatchEvent(new Event('change'));scrollTo(0, 0)")
        wanted = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(began + seconds))
        assert wanted in at.browser.run(TIMES)
        at.browser.run(NOW)
        assert wanted in at.browser.run(TIMES), "after a refresh"
        at.browser.open(at.url)
        assert wanted in at.browser.run(TIMES), "in the next page"
        assert at.browser.run("document.querySelector('#as-of').textContent").startswith(
            time.strftime("As of %Y-%m-%d %H:%M:%S", time.gmtime(fault().at + seconds))
        )
    at.browser.run("zone.value = 'node'; zone.dispatchEvent(new Event('change'))")
    assert at.browser.run(TIMES) == shown_by_server
    at.browser.call("Emulation.setTimezoneOverride", timezoneId="")


def test_sections_appear_and_disappear(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.open(at.url)
    for sight in (busy(), fault(), idle(), fault()):
        at.web.sight = sight
        at.browser.run(NOW)
        fresh = at.browser.run(FRESH)
        assert at.browser.run(MAIN) == fresh


def test_unchanged_nodes_are_not_modified(at: Shown) -> None:
    at.web.sight = busy()
    at.browser.open(at.url)
    at.browser.run(
        "window.touched = [];"
        "const everything = {subtree: true, childList: true, attributes: true, characterData: true};"
        "new MutationObserver(all => touched.push(...all.map(each => each.type)))"
        ".observe(document.querySelector('main'), everything)"
    )
    at.browser.run(NOW)

    assert at.browser.run("touched") == []


def test_marks_stale_data_until_the_exporter_answers_again(chromium: Browser) -> None:
    with serving() as web:
        web.sight = busy()
        port = web.server.port
        chromium.open(f"http://localhost:{port}/")
        assert chromium.run("document.querySelector('#stale').checkVisibility()") is False
    chromium.run(NOW)

    assert chromium.run("document.querySelector('#stale').checkVisibility()") is True
    assert "has not answered since" in chromium.run("document.querySelector('#stale').textContent")
    assert "systemctl status cuda-mps-exporter" in chromium.run("document.querySelector('#stale').textContent")
    assert chromium.run("document.title") == "Not current: Warning: node1 (CUDA MPS)"
    assert chromium.run("document.body.classList.contains('stale')") is True
    with serving((LOCALHOST, port)):
        chromium.run(NOW)
        assert chromium.run("document.querySelector('#stale').checkVisibility()") is False
        assert chromium.run("document.title") == "Warning: node1 (CUDA MPS)"
        chromium.open("about:blank")


def test_a_button_copies_its_command(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.open(at.url)
    copied = "window.copied = ''; document.addEventListener('copy', () => { copied = getSelection().toString(); });"
    at.browser.run(f"{copied} document.querySelector('#problems .copy').click()")

    assert at.browser.run("copied") == "kill -KILL 601"
    assert at.browser.run("document.querySelector('#problems .copy').textContent") == "Copied"


@both_widths
def test_a_runbook_fits_the_window(at: Shown, width: int) -> None:
    at.browser.open(f"{at.url}runbooks/ControlCommands.md", width=width)

    assert at.browser.run("document.documentElement.scrollWidth") == width
    assert at.browser.run(shown.OVERFLOWING) == []
    assert at.browser.run("document.querySelectorAll('.command').length") > 3
    assert at.browser.answer("Log.entryAdded", "Runtime.exceptionThrown") == []


def test_reports_that_access_was_withdrawn(at: Shown) -> None:
    at.browser.open(at.url)
    at.browser.run("window.fetch = () => Promise.resolve(new Response('<main id=main></main>'))")
    at.browser.run(NOW)

    assert "no longer shows the node" in at.browser.run("document.querySelector('#stale').textContent")


def test_a_hidden_page_does_not_fetch_until_it_is_shown(at: Shown) -> None:
    at.browser.open(at.url)
    hide = "Object.defineProperty(document, 'hidden', {configurable: true, get: () => %s});"
    turn = "document.dispatchEvent(new Event('visibilitychange'));"
    count = (
        "window.asked = 0; const real = window.fetch; window.fetch = (...all) => { asked += 1; return real(...all); };"
    )
    at.browser.run(count + hide % "true" + turn)
    at.browser.run(NOW)
    at.browser.run(f"new Promise(done => setTimeout(done, {4000 * REFRESH_SECONDS}))")
    assert at.browser.run("asked") == 1

    at.browser.run(hide % "false" + turn)
    assert at.browser.run("asked") >= 2


# -- finding a client --------------------------------------------------------------------------------------------------

ROWS = """
[...document.querySelectorAll("#clients details:not([hidden])[open] tbody tr:not([hidden])")]
  .map((row) => Number(row.cells[1].textContent))
"""
"""The PIDs that the unfolded tables of clients show."""

FIND, SORT = "#find input", "#find select"
"""The controls."""


def _search(at: Shown, find: str = "", order: str = "") -> list[int]:
    """Return the PIDs that are shown for a text and an order."""
    values = {FIND: find, SORT: order}
    at.browser.run(
        f"for (const [name, value] of Object.entries({json.dumps(values)})) document.querySelector(name).value = value;"
        f"document.querySelector('{FIND}').dispatchEvent(new Event('input', {{bubbles: true}}))"
    )
    shown_pids: list[int] = at.browser.run(ROWS)
    return shown_pids


@pytest.mark.parametrize(
    ("find", "pids"),
    [
        ("", [600, 601, 602]),
        ("601", [601]),
        ("60", [600, 601, 602]),
        ("01", []),
        ("TRAIN.py alice", [600]),
        ("gpu 1", [600, 602]),
        ("gpu1", [600, 602]),
        ("GPU: 1 bob", []),
        ("gpu 2", []),
        ("<b>", []),
        (".*", []),
    ],
)
def test_finds_clients_by_pid_name_and_gpu(at: Shown, find: str, pids: list[int]) -> None:
    at.web.sight = busy()
    at.browser.open(at.url)

    assert _search(at, find) == pids
    assert at.browser.run("document.querySelector('#find output').textContent.endsWith(' of 4')") is (find != "")
    _all_is_well(at)


def test_sorts_clients_by_what_a_cell_shows(at: Shown) -> None:
    at.web.sight = attributed()
    at.browser.open(at.url)
    cells = "[...document.querySelectorAll('#clients details[open] tbody tr')].map(row => row.cells[%d].textContent)"

    assert _search(at, order="sm") == [600, 602, 601]
    assert _search(at, order="pid") == [600, 601, 602]
    _search(at, order="memory")
    texts = at.browser.run(
        cells
        % at.browser.run(
            "[...document.querySelectorAll('#clients details th')].map(each => each.textContent).indexOf('Memory')"
        )
    )
    assert texts == sorted(texts, key=_bytes, reverse=True)
    numbers = {
        "1.5 GiB": 1.5 * 2**30,
        "900 MiB": 900 * 2**20,
        "2 to 14 %": 8,
        "48.0 ± 1.2 %; 25.0 %": 73,
        "": -1,
        "≥ 1.8x": 1.8,
    }
    assert at.browser.run(f"{json.dumps(list(numbers))}.map(quantity)") == list(numbers.values())


def _bytes(text: str) -> float:
    number, unit = text.split()
    return float(number) * 1024.0 ** ("bytes", "KiB", "MiB", "GiB").index(unit)


def test_what_was_searched_stays_over_a_refresh_and_is_in_the_address(at: Shown) -> None:
    at.web.sight = full(gpus=2, clients=20)
    at.browser.open(f"{at.url}#clients")
    assert at.browser.run(ROWS) == []
    wanted = [1000019, *range(1000010, 1000019)]
    assert _search(at, "100001", "memory") == sorted(wanted)

    at.web.sight = replace(at.web.sight, at=at.web.sight.at + 60)
    at.browser.run(NOW)
    assert at.browser.run(ROWS) == sorted(wanted)
    assert at.browser.run("location.href") == f"{at.url}?find=100001&order=memory#clients"
    at.browser.open(at.browser.run("location.href").replace("100001", "1001001"))
    assert at.browser.run(ROWS) == [1001001]
    assert at.browser.run(f"[document.querySelector('{FIND}').value, document.querySelector('{SORT}').value]") == [
        "1001001",
        "memory",
    ]
    assert _search(at) == [], "the tables are folded again"
    _all_is_well(at)


def test_clients_are_found_by_keys_alone(at: Shown) -> None:
    at.web.sight = attributed()
    at.browser.open(at.url)
    for _ in range(at.browser.run(shown.FOCUSABLE)):
        at.browser.press("Tab")
        if at.browser.run(f"document.activeElement.matches('{FIND}')"):
            break
    at.browser.type("60")
    at.browser.press("Tab")
    at.browser.press("ArrowDown")

    assert at.browser.run(ROWS) == [600, 602, 601]
    at.browser.run(NOW)
    assert at.browser.run(f"document.activeElement.matches('{SORT}')") is True


def test_there_is_no_control_without_the_script(at: Shown, monkeypatch: pytest.MonkeyPatch) -> None:
    # Without the script, the browser loads the whole page again, which would disturb this test.
    monkeypatch.setattr("exporter.page.page.REFRESH_SECONDS", 600)
    at.web.show()
    at.web.sight = busy()
    at.browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        at.browser.call("Page.navigate", url=at.url)
        eventually(lambda: _is_complete(at))
        controls = at.browser.run(
            "[...document.querySelectorAll('input, select')].filter(each => each.checkVisibility())"
        )
        assert (controls, at.browser.run(ROWS)) == ([], [600, 601, 602])
    finally:
        at.browser.call("Emulation.setScriptExecutionDisabled", value=False)


def _is_complete(at: Shown) -> None:
    assert at.browser.run("document.readyState") == "complete"


def test_a_link_of_the_headline_unfolds_its_problem(at: Shown) -> None:
    at.web.sight = fault()
    at.browser.open(at.url)
    at.browser.run("document.querySelector('#headline a[href=\"#finding-2\"] b').click()")
    assert at.browser.run("document.querySelector('#finding-2').open") is True
    at.browser.open("about:blank")
    at.browser.open(f"{at.url}#finding-1")
    assert at.browser.run("document.querySelector('#finding-1').open") is True


@both_widths
def test_the_second_critical_problem_is_in_the_first_screen(at: Shown, width: int) -> None:
    lasting = fault().incidents[0]
    at.web.sight = status_input(with_incidents(lasting, replace(lasting, id="514-1", server=514), start=busy().node))
    at.browser.open(at.url, width=width)
    bottom = "document.querySelector('#headline .more li').getBoundingClientRect().bottom"
    assert at.browser.run("document.querySelector('#headline .more').textContent.includes('server 514')") is True
    assert at.browser.run(bottom) < 800


@both_widths
@pytest.mark.parametrize("path", ["incidents", "incidents/513-2", "events"])
def test_the_pages_of_incidents_and_events_fit_and_refresh(at: Shown, path: str, width: int) -> None:
    at.web.sight = fault()
    at.browser.open(f"{at.url}{path}", width=width)
    at.web.sight = replace(fault(), at=fault().at + 600)

    eventually(lambda: _is_current(at))
    assert at.browser.run("document.body.classList.contains('stale')") is False
    assert at.browser.run("document.documentElement.scrollWidth") == width
    assert at.browser.run(shown.OVERFLOWING) == []
    _all_is_well(at)


def _is_current(at: Shown) -> None:
    assert re.search(r"1[0-9] min", at.browser.run(MAIN))


def _headline(at: Shown) -> str:
    return str(at.browser.run("document.querySelector('#headline').textContent"))


def _has(at: Shown, words: str) -> None:
    assert words in _headline(at)


def _all_is_well(at: Shown) -> None:
    """Check that there was no error, no dialog, and no request to another server."""
    assert at.browser.answer("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled") == []
    assert at.browser.answer("Page.javascriptDialogOpening") == []
    asked = [each["params"]["request"]["url"] for each in at.browser.answer("Network.requestWillBeSent")]
    assert len(asked) >= 3
    assert [url for url in asked if not url.startswith((at.url, "data:,"))] == []


def test_a_screen_reader_reads_the_headings_of_columns_and_rows(at: Shown) -> None:
    at.web.sight = attributed()
    at.browser.open(at.url)
    at.browser.run("for (const each of document.querySelectorAll('details')) each.open = true")
    roles = Counter(each["role"]["value"] for each in at.browser.call("Accessibility.getFullAXTree")["nodes"])
    rows, columns = (at.browser.run(f"document.querySelectorAll('{part} th').length") for part in ("tbody", "thead"))
    assert (roles["rowheader"], roles["columnheader"]) == (rows, columns)
    assert rows == at.browser.run("document.querySelectorAll('tbody tr').length") > 0
