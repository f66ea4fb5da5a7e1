"""Text in, values out: no I/O, no clock, and never an exception, whatever the text."""
