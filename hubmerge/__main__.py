"""`python -m hubmerge`."""

import sys

from hubmerge.cli import console

sys.exit(console())
