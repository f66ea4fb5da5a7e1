"""The core: what it makes of what was seen."""
