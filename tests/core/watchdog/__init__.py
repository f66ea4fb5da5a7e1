"""The watchdog's mind: what it finds, and what it decides."""
