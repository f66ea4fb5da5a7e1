"""`python -m exporter` is `cuda-mps-exporter`."""

import sys

from exporter.cli import main

sys.exit(main())
