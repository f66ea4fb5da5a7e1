"""HTTP server: metrics, health, landing page, runbooks and JSON API. No endpoint acts.

`WebServer` serves a `Site`, which selects a page by its path. `WebSecurity` applies the web config file.
"""

from exporter.web.api import Api
from exporter.web.handler import Answer, Request
from exporter.web.pages import Runbooks, Site
from exporter.web.server import DEFAULT_MAX_REQUESTS, WebServer, activated_listeners
from exporter.web.web_config import WebSecurity

__all__ = [
    "DEFAULT_MAX_REQUESTS",
    "Answer",
    "Api",
    "Request",
    "Runbooks",
    "Site",
    "WebSecurity",
    "WebServer",
    "activated_listeners",
]
