"""A merge on the first GPU, where a kernel fails an assertion after a few chunks: nothing works on it any more then.

    python tests/engine/breaking_gpu.py FOLDER

Prints JSON: the warnings, the facts, whether the bytes are the CPU's. A process of its own, since no other one gets
the GPU back once this has happened, and since it might be ended by it.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent), str(HERE)]
_GOOD = 3  # chunks; the first is the trial


def main(folder: Path) -> None:
    import torch
    from stream_helpers import NOWHERE, bytes_of, plan_of, run, write_family

    from hubmerge.engine import lanes
    from hubmerge.engine.counting import BLOCK
    from hubmerge.engine.definition import ChunkInputs
    from hubmerge.engine.journal import Journal
    from hubmerge.engine.progress import Unobserved
    from hubmerge.engine.stream import StreamOptions, merge
    from hubmerge.sources.reader import LocalOrFetched, TensorReader

    warnings: list[str] = []
    calls: list[int] = []
    on_device = lanes.merge_on_device

    class Warned(Unobserved):
        def warning(self, message: str) -> None:
            warnings.append(message)

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
    out = folder / "gpu"
    out.mkdir()
    with TensorReader(plan.models, LocalOrFetched(NOWHERE, folder / "cache")) as reader:
        options = StreamOptions(BLOCK, 3, backend="eager", device="cuda")
        found = merge(plan, reader, Journal.open(out, plan, resume=False), out, options, Warned())
    equal = bytes_of(out, plan) == bytes_of(folder / "cpu", plan)
    print(json.dumps({"warnings": warnings, "device": dict(found.device), "equal": equal}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
