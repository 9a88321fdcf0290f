"""Two real processes with gloo, of our own or a launcher's: the bytes of one, a lost process ends the other, and the
merge goes on."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from process_helpers import start
from processes import ROOT
from stream_helpers import write_family

VOLATILE = ("created", "environment")
LAUNCHERS = {
    "torchrun": ["torch.distributed.run", "--nproc-per-node", "2", "--master-port", "0", "--rdzv-backend", "c10d",
                 "--rdzv-endpoint", "127.0.0.1:0"],
    # asks for nothing of a GPU that is not there: the processes choose their device themselves
    "accelerate": ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "--num_machines", "1",
                   "--mixed_precision", "no", "--dynamo_backend", "no", "--main_process_port", "0"],
}  # fmt: skip


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    write_family(folder)
    for method in ("ram_plus", "ram", "wudi"):
        agents = ", ".join(f"{{model: {folder / f'agent{k}'}, weight: {k - 0.5}}}" for k in range(3))
        text = f"base: {folder / 'base'}\nagents: [{agents}]\nmethod: {method}\n"
        (folder / f"{method}.yaml").write_text(text, encoding="utf-8")
    return folder


def argv(family: Path, method: str, out: Path | str, *more: str) -> list[str]:
    return ["merge", str(family / f"{method}.yaml"), "--out", str(out), "--license", "mit", "--device", "cpu", *more]


def content(folder: Path) -> dict[str, Any]:
    """Every file's bytes; of the manifest and the card, what is not the time or the machine."""
    files: dict[str, Any] = {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
    manifest = json.loads(files.pop("hubmerge.json"))
    files["manifest"] = {k: v for k, v in manifest.items() if k not in VOLATILE}
    del files["README.md"]  # it tells the hardware and the seconds
    return files


def test_two_processes_of_a_launcher_merge_what_one_process_merges(family, tmp_path):
    pytest.importorskip("accelerate")
    made = {}
    for name, launched_by in {"alone": [], **{name: [*words, "-m"] for name, words in LAUNCHERS.items()}}.items():
        command = [sys.executable, "-m", *launched_by, "hubmerge", *argv(family, "ram_plus", tmp_path / name)]
        variables = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, timeout=240)
        assert done.returncode == 0, done.stderr[-2000:]
        made[name] = content(tmp_path / name)
    for launcher in LAUNCHERS:
        assert made[launcher] == made["alone"], launcher
        manifest = json.loads((tmp_path / launcher / "hubmerge.json").read_text())
        assert manifest["environment"]["processes"] == 2


def test_each_process_says_what_it_warns_of_with_its_rank(family, tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("here a CUDA device can be used, so that nobody warns")
    command = argv(family, "wudi", tmp_path / "out", "--device", "auto")  # whose products a device would get
    finished = start(2, [command], environment={"PRETEND_A_DEVICE": "1"})
    assert [code for code, _ in finished] == [0, 0], finished
    said = [[line for line in error.splitlines() if "warning:" in line] for _, error in finished]
    missing = "torch finds no CUDA device here; the CPU goes on"
    assert [len(lines) for lines in said] == [2, 1], "what the plan warns of is told once"
    assert [lines[-1] for lines in said] == [f"hubmerge: warning: {rank}{missing}" for rank in ("", "rank 1: ")]


def test_a_lost_process_ends_the_other_and_the_same_command_goes_on(family, tmp_path):
    out = tmp_path / "out"
    [(code, error)] = start(1, [argv(family, "ram_plus", tmp_path / "alone")])
    assert code == 0, error
    first = start(2, [argv(family, "ram_plus", out)], {"rank": 1, "kind": "die at shard", "times": 1})
    assert first[1][0] == -9
    assert first[0][0] == 1
    assert "E_PROCESS" in first[0][1]
    assert "the same command goes on" in first[0][1]
    assert not (out / "hubmerge.json").exists()
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("*.safetensors")}
    assert len(kept) >= 2, "of both processes"
    finished = start(2, [argv(family, "ram_plus", out)])
    assert [code for code, _ in finished] == [0, 0], finished
    assert content(out) == content(tmp_path / "alone")
    assert {name: (out / name).stat().st_mtime_ns for name in kept} == kept  # not merged again


def test_processes_that_do_not_see_the_same_folder_refuse_before_they_merge(family, tmp_path):
    machines = [tmp_path / "one", tmp_path / "two"]
    for machine in machines:
        machine.mkdir()
    finished = start(2, [argv(family, "ram", "out")], folders=machines)
    assert [code for code, _ in finished] == [1, 1]
    for _, error in finished:
        assert "E_PROCESS: the processes of this merge do not see the same output folder" in error
        assert "not seen by rank 1" in error
    assert not [*tmp_path.rglob("*.safetensors")]


def test_sensitivities_that_rank_0_computes_or_that_are_named_weigh_in_every_process_alike(tmp_path):
    zoo, data, file = ROOT / "examples" / "zoo", tmp_path / "data", str(tmp_path / "math.safetensors")
    pairs = {name: str(zoo / "eval" / f"dev_{name}.jsonl") for name in ("math", "tool")}
    calibration = {"data": pairs["tool"], "prompt": "prompt", "answer": "answer", "max_pairs": 2}
    agents = [  # one is named, one is computed
        {"model": str(zoo / "math"), "sensitivity": file},
        {"model": str(zoo / "tool"), "calibration": calibration},
    ]
    recipe = {"base": str(zoo / "base"), "agents": agents, "method": "sar", "dtype": "bfloat16"}
    (tmp_path / "sar.yaml").write_text(json.dumps(recipe), encoding="utf-8")

    def run(processes: int, *commands: list[str]) -> None:
        where = ["--out", str(tmp_path / str(processes)), "--license", "apache-2.0", "--device", "cpu"]
        merge = ["merge", str(tmp_path / "sar.yaml"), *where]
        environment = {"HUBMERGE_DATA": str(data)}
        finished = start(processes, [*commands, merge], environment=environment, shard_bytes=100_000)
        assert [code for code, _ in finished] == [0] * processes, finished

    named_by = ["--prompt", "prompt", "--answer", "answer", "--max-pairs", "2", "--out", file]
    run(1, ["sensitivity", str(zoo / "math"), "--data", pairs["math"], *named_by])
    for kept in (data / "sensitivity").iterdir():
        kept.unlink()  # so that rank 0 computes
    run(2)
    one = content(tmp_path / "1")
    assert sum(name.endswith(".safetensors") for name in one) >= 3
    assert content(tmp_path / "2") == one
