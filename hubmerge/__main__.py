"""`python -m hubmerge`."""

import sys

from hubmerge.cli import main

sys.exit(main())
