"""Figures that the exporter is held to, each made by a script that says whether it is reached: see README.md."""
