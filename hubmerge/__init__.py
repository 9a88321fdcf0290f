"""hubmerge: merge RL-trained agents on the Hugging Face Hub.

The line, one stage after another, each handing a frozen value to the next:
recipe → sources → plan → probe → stream → sink → card → publish → evaluate → leaderboard.
"""

__version__ = "0.1.0"
