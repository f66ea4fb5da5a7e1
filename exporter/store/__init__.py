"""What outlives the exporter: its incidents and events, in one SQLite file. The only importer of sqlite3."""
