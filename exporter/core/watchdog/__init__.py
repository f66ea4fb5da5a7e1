"""The watchdog's mind: what is the matter with each expected daemon, and what is to be done. Pure."""
