"""Run the local Hub: `python -m localhub --port 0 --data DIR [--zoo] [--users FILE] [--faults]`."""

import argparse
import sys
from pathlib import Path

from hubmerge.errors import HubmergeError
from localhub.protocol import Limits
from localhub.server import serve


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m localhub", description=__doc__, allow_abbrev=False)
    parser.add_argument("--port", type=int, default=0, help="port on 127.0.0.1; 0 takes a free one")
    parser.add_argument("--data", type=Path, required=True, help="folder that holds everything")
    parser.add_argument("--zoo", action="store_true", help="fill it with the example models and questions")
    parser.add_argument("--users", type=Path, help="JSON file with other users than the default ones")
    defaults = Limits()
    parser.add_argument(
        "--multipart-bytes",
        type=int,
        default=defaults.multipart_bytes,
        help="large files above this size are uploaded in parts",
    )
    parser.add_argument("--part-bytes", type=int, default=defaults.part_bytes, help="size of such a part")
    parser.add_argument("--faults", action="store_true", help="with the route that switches faults on, for tests")
    parser.add_argument("--parent", type=int, help="stop when the parent process with this id is gone")
    args = parser.parse_args()
    limits = Limits(multipart_bytes=args.multipart_bytes, part_bytes=args.part_bytes)
    try:
        serve(
            args.port,
            args.data,
            zoo=args.zoo,
            users=args.users,
            limits=limits,
            parent=args.parent,
            with_faults=args.faults,
        )
    except HubmergeError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
