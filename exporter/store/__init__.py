"""What outlives the exporter: incidents, events and what its watchdog knows, in one SQLite file.

The only importer of sqlite3.
"""
