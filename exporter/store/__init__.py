"""Incidents, events, watchdog states and usage totals outlive the exporter in one SQLite file.

No other package imports sqlite3.
"""
