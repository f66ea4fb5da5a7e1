"""The page at `/`: texts for each section, made from the status of the node, and templates that show them.

It is imported when the page is first requested, because the templates take some MiB.
"""
