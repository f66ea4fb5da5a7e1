"""The exporter with two more pages: `/static`, the metrics of its first request, and `/renderings`.

The first is a body of the same size from the same server, to compare a scrape with; the second has the CPU seconds of
each publication, as JSON. Everything else is as in `python -m tests.program`, and so are the arguments.
"""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from exporter.metrics.exposition import Exposition
from exporter.web.pages import Answer, Site
from tests import program

Respond = Callable[..., Answer]


def with_more_pages(answer: Respond, renderings: list[float]) -> Respond:
    """Return a function that answers these two paths, and all others as before."""
    static: list[Answer] = []

    def respond(site: Site, request: Any, *headers: str) -> Answer:
        match _path(request):
            case "/static":
                if not static:
                    static.append(answer(site, _with_path(request, "/metrics"), *headers))
                return static[0]
            case "/renderings":
                metrics = answer(site, _with_path(request, "/metrics"), *headers)
                return replace(metrics, body=json.dumps(renderings).encode(), gzipped=False)
            case _:
                return answer(site, request, *headers)

    return respond


def timed(publish: Callable[..., None], seconds: list[float]) -> Callable[..., None]:
    """Return a function that publishes as before, and records the CPU time."""

    def publish_timed(*arguments: Any) -> None:
        began = time.thread_time()
        publish(*arguments)
        seconds.append(time.thread_time() - began)

    return publish_timed


def _path(request: Any) -> str:
    path: str = request if isinstance(request, str) else request.path
    return path


def _with_path(request: Any, path: str) -> Any:
    return path if isinstance(request, str) else replace(request, path=path)


def main() -> int:
    """Run the exporter."""
    renderings: list[float] = []
    # The measured program is unchanged. Its methods are wrapped only here.
    Site.answer = with_more_pages(Site.answer, renderings)  # type: ignore[method-assign]  # wrapped only here
    Exposition.publish = timed(Exposition.publish, renderings)  # type: ignore[method-assign]  # wrapped only here
    return program.main(sys.argv[2:], **json.loads(sys.argv[1]))


if __name__ == "__main__":
    sys.exit(main())
