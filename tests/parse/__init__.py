"""The parsers: text in, values out."""
