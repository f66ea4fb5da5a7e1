"""The hands, with real processes and the stand-in daemon."""
