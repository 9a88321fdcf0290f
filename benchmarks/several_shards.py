"""`hubmerge` with small output shards, so that a small model has several: python -m benchmarks.several_shards …"""

import os
import sys
from functools import partial

import hubmerge.line
from hubmerge.cli.main import main
from hubmerge.plan.plan import make_plan

if __name__ == "__main__":
    hubmerge.line.make_plan = partial(make_plan, max_shard_bytes=int(os.environ.get("SHARD_BYTES", 128 * 2**20)))
    sys.exit(main())
