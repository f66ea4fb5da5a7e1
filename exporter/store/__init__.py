"""Incidents, events, watchdog states, usage totals and samples outlive the exporter in one SQLite file.

No other package imports sqlite3.
"""
