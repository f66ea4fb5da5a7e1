"""How the node and its faults are told: in words and tables for people, as objects for programs."""
