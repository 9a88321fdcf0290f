"""The launchers themselves: what `torchrun` and `accelerate launch` start is one merge, with one process's bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest
from process_helpers import ROOT
from stream_helpers import write_family

SHARDS = 6
SIZES = {f"model.layers.{i}.mlp.down_proj.weight": (40, 64) for i in range(SHARDS)}
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", "127.0.0.1:0"],
    # asks for nothing of a GPU that is not there: the processes choose their device themselves
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                   "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
}  # fmt: skip


def digests(folder: Path) -> dict[str, str]:
    return {path.name: sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("*.safetensors"))}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_processes_of_a_launcher_merge_what_one_process_merges(tmp_path: Path, launcher: str) -> None:
    pytest.importorskip("accelerate")
    write_family(tmp_path, sizes=SIZES)
    recipe = tmp_path / "recipe.yaml"
    agents = [str(path) for path in sorted(tmp_path.glob("agent*"))]
    recipe.write_text(json.dumps({"base": str(tmp_path / "base"), "agents": agents, "method": "ram_plus"}))

    def merge(name: str, *launched_by: str) -> str:
        command = [sys.executable, "-m", *launched_by, *(("-m",) if launched_by else ()), "hubmerge", "merge"]
        done = subprocess.run(
            [*command, str(recipe), "--out", str(tmp_path / name), "--license", "mit", "--device", "cpu"],
            cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout + done.stderr

    merge("alone")
    merge("together", *LAUNCHERS[launcher])
    assert digests(tmp_path / "together") == digests(tmp_path / "alone") != {}
    card = json.loads((tmp_path / "together" / "hubmerge.json").read_text())
    assert card["environment"]["processes"] == 2
    assert not (tmp_path / "together" / ".hubmerge").exists()
