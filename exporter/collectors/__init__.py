"""Collectors read the system. Each returns what it read or a problem; none raises or decides."""
