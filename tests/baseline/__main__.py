"""`python -m tests.baseline --write`: record what `replay` prints now for every recording."""

import sys

from tests.baseline.replayed import RECORDINGS, write

if sys.argv[1:] != ["--write"]:
    sys.exit(f"{__doc__}\nThis replaces the files in tests/baseline/expected.")
for recording in RECORDINGS:
    write(recording)
