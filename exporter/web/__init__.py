"""HTTP server: metrics, health, landing page, runbooks and JSON API. No endpoint acts.

`WebServer` serves a `Site`, which selects a page by its path. `WebSecurity` applies the web config file.
"""
