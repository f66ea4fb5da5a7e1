"""HTTP: the metrics, how the exporter and the node are, what has happened, and who may see what. Nothing here acts.

`Site` answers by path, `Api` has pages for programs, `Runbooks` for whoever was woken; `WebServer` serves a site, `WebSecurity` is the web config file:
TLS and passwords.
"""

from exporter.web.api import Api
from exporter.web.listeners import activated_listeners
from exporter.web.runbooks import Runbooks
from exporter.web.security import WebSecurity
from exporter.web.server import MOST_REQUESTS, WebServer
from exporter.web.site import Answer, Request, Site

__all__ = [
    "MOST_REQUESTS",
    "Answer",
    "Api",
    "Request",
    "Runbooks",
    "Site",
    "WebSecurity",
    "WebServer",
    "activated_listeners",
]
