"""What can be wrong with a node, what was found on this one, and how it is shown to people and programs."""
