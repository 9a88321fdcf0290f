"""A merge on the first GPU, where a kernel fails an assertion after a few chunks: nothing works on it any more then.

    python tests/engine/breaking_gpu.py FOLDER

Prints JSON: the warnings, the facts, whether the bytes are the CPU's. A process of its own, since no other one gets
the GPU back once this has happened, and since it might be ended by it.
"""

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]
_GOOD = 3  # chunks; the first are trials


def main(folder: Path) -> None:
    import torch
    from stream_helpers import Watching, bytes_of, plan_of, run, write_family

    from hubmerge.engine import lanes
    from hubmerge.engine.counting import BLOCK
    from hubmerge.engine.definition import ChunkInputs

    watching = Watching()
    calls: list[int] = []
    on_device = lanes.merge_on_device

    def breaking(inputs: ChunkInputs, *arguments: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == _GOOD + 1:
            place = inputs.raws[0].device
            torch.zeros(1, device=place)[torch.full((1,), 5, dtype=torch.int64, device=place)]
        return on_device(inputs, *arguments, **named)

    lanes.merge_on_device = breaking
    write_family(folder)
    plan = plan_of(folder, "ram")
    run(plan, folder / "cpu")
    options = {"backend": "eager", "device": "cuda"}
    found = run(plan, folder / "gpu", chunk=BLOCK, threads=3, observer=watching, **options)
    equal = bytes_of(folder / "gpu", plan) == bytes_of(folder / "cpu", plan)
    print(json.dumps({"warnings": watching.messages, "device": dict(found.device), "equal": equal}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
