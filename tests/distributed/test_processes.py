"""Two real processes with gloo: the bytes of one, a lost process ends the other, and the merge goes on."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "engine"))

from stream_helpers import write_family  # noqa: E402

SHARD_BYTES = 12_000  # four shards
VOLATILE = ("created", "environment")


@pytest.fixture(scope="module")
def family(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    write_family(folder)
    for method in ("ram_plus", "ties", "ram"):
        agents = ", ".join(str(folder / f"agent{k}") for k in range(3))
        text = f"base: {folder / 'base'}\nagents: [{agents}]\nmethod: {method}\n"
        (folder / f"{method}.yaml").write_text(text, encoding="utf-8")
    return folder


def argv(family: Path, method: str, out: Path, *more: str) -> list[str]:
    return ["merge", str(family / f"{method}.yaml"), "--out", str(out), "--license", "mit", "--device", "cpu", *more]


def start(processes: int, runs: Sequence[Sequence[str]], die: dict[str, int] | None = None) -> list[tuple[int, str]]:
    """(exit code, stderr) by rank."""
    held = [socket.socket() for _ in runs]
    for one in held:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in held]
    for one in held:
        one.close()
    order = json.dumps({"runs": runs, "ports": ports, "shard_bytes": SHARD_BYTES, "die": die})
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "MASTER_ADDR": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "WORLD_SIZE": str(processes),
    }
    started = [
        subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("rank_process.py")), order],
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    try:
        return [(p.returncode, error) for p in started for error in [p.communicate(timeout=120)[1]]]
    finally:
        for process in started:
            process.kill()


def content(folder: Path) -> dict[str, Any]:
    """Every file's bytes; of the manifest and the card, what is not the time or the machine."""
    files: dict[str, Any] = {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }
    manifest = json.loads(files.pop("hubmerge.json"))
    files["manifest"] = {k: v for k, v in manifest.items() if k not in VOLATILE}
    del files["README.md"]  # it tells the hardware and the seconds
    return files


@pytest.fixture(scope="module")
def alone(family: Path) -> dict[str, dict[str, Any]]:
    """What one process gives, by method."""
    runs = [argv(family, method, family / "alone" / method) for method in ("ram_plus", "ties", "ram")]
    assert start(1, runs)[0] == (0, "")
    found = {method: content(family / "alone" / method) for method in ("ram_plus", "ties", "ram")}
    assert all(sum(name.endswith(".safetensors") for name in files) >= 3 for files in found.values())
    return found


def test_two_processes_give_the_bytes_and_statistics_of_one(
    family: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    methods = ("ram_plus", "ties", "ram")
    finished = start(2, [argv(family, method, tmp_path / method) for method in methods])
    assert [code for code, _ in finished] == [0, 0], finished
    for method in methods:
        assert content(tmp_path / method) == alone[method], method


def test_a_lost_process_ends_the_other_and_the_same_command_goes_on(
    family: Path, alone: dict[str, Any], tmp_path: Path
) -> None:
    out = tmp_path / "out"
    first = start(2, [argv(family, "ram_plus", out)], die={"rank": 1, "shards": 1})
    assert first[1][0] == -9
    assert first[0][0] == 1
    assert "E_PROCESS" in first[0][1]
    assert "--resume" in first[0][1]
    assert not (out / "hubmerge.json").exists()
    [kept] = (out / ".hubmerge" / "rank-1").glob("*.safetensors")
    written = kept.stat().st_mtime_ns
    finished = start(2, [argv(family, "ram_plus", out, "--resume")])
    assert [code for code, _ in finished] == [0, 0], finished
    assert content(out) == alone["ram_plus"]
    assert (out / kept.name).stat().st_mtime_ns == written  # adopted, not merged again
