"""The watchdog's mind: what it makes of a daemon, and what it has done."""
