"""What outlives the exporter, in one SQLite file. No other package imports sqlite3."""
