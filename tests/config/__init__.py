"""The configuration: flags, environment and file, and what is refused."""
