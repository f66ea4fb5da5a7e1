"""The documentation, and the programs that write its generated files."""
