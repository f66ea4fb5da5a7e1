"""The watchdog: what it finds, and what it decides."""
