"""What `replay` said of every recording at one commit, and a comparison with what it says now.

`python -m tests.baseline --write` records a new baseline; do that after a deliberate change.
"""
