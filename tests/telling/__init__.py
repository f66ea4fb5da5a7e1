"""How the node and its faults are told."""
