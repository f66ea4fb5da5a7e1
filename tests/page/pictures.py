"""Takes the pictures of the page that the documentation shows: `python -m tests.page.pictures docs/images`."""

import sys
import tempfile
from pathlib import Path

from exporter.web import WebServer
from tests.page.browser import DESKTOP, PHONE, Browser
from tests.page.scenes import SCENES
from tests.tools import needed
from tests.web.serving import LOCALHOST, Stage, Web

PICTURES = (("busy", DESKTOP, "light"), ("fault", DESKTOP, "dark"), ("dead", PHONE, "light"), ("idle", PHONE, "dark"))


def take(folder: Path) -> None:
    """All of them."""
    stage = Stage()
    server = WebServer(stage, [(LOCALHOST, 0)])
    server.open()
    web = Web(server)
    stage.site = web.site()
    with tempfile.TemporaryDirectory() as home, Browser(needed("chromium"), Path(home)) as browser:
        for scene, width, scheme in PICTURES:
            web.sight = SCENES[scene]()
            browser.open(f"http://localhost:{server.port}/", width=width, scheme=scheme)
            (folder / f"page-{scene}.png").write_bytes(browser.screenshot())
    server.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]))
