"""The watchdog: diagnosis of each expected daemon, and the decision what to do. Pure."""
