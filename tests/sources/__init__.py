"""The sources, against the stand-ins and real processes."""
