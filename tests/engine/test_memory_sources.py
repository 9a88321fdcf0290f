"""The plan's prediction of memory where inputs are derived, come from a Hub, or are shared by processes: whole ones."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from builders import read_model, write_shard
from huggingface_hub import HfApi
from memory_helpers import LONG, NOWHERE, Family, merge, merge_once, predicted
from source_helpers import FP8_CONFIG, lora, pair, to_fp8, write_adapter

from benchmarks.metering import measure, merging
from benchmarks.synthetic import write_family
from hubmerge.engine.distributed import Ranks
from hubmerge.engine.options import StreamOptions
from hubmerge.engine.prediction import Machine, predict
from hubmerge.hub.client import Hub
from hubmerge.line import Request, prepare
from hubmerge.plan.plan import Plan
from hubmerge.recipe.recipe import Recipe
from localhub.process import LocalHubProcess

WIDE = replace(LONG, intermediate=6144, vocabulary=512)
ROOM = 1_000_000  # for inputs on the disk
ON_HUB = 6  # models
LICENSE = b"---\nlicense: apache-2.0\n---\n"


def assert_near(said: int, measured: int) -> None:
    assert 0.75 <= said / measured <= 1.25, (said, measured)


@pytest.fixture(scope="module")
def hub(long_family: Family, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHubProcess]:
    with LocalHubProcess(tmp_path_factory.mktemp("hub")) as process:
        api = HfApi(process.endpoint, token=process.tokens["ada"])
        for name in ("base", *(f"agent{k}" for k in range(ON_HUB - 1))):
            api.create_repo(f"ada/{name}")
            api.upload_folder(repo_id=f"ada/{name}", folder_path=long_family.folder / name, allow_patterns=["*.*"])
        yield process


def adapter(folder: Path, seed: int) -> str:
    """Of two tensors, each of several chunks."""
    tensors = pair("model.layers.0.mlp.gate_proj", *lora((WIDE.intermediate, WIDE.hidden), seed=seed))
    tensors |= pair("model.layers.0.mlp.down_proj", *lora((WIDE.hidden, WIDE.intermediate), seed=seed))
    return str(write_adapter(folder, tensors, files={"README.md": LICENSE}))


def fp8_model(folder: Path, source: Path, rows: int) -> str:
    """In blocks of so many rows, so that no two are equal."""
    folder.mkdir()
    write_shard(folder / "model.safetensors", to_fp8(read_model(source), block=(rows, 128)))
    config = json.loads((source / "config.json").read_text())
    fp8 = FP8_CONFIG | {"weight_block_size": [rows, 128]}
    (folder / "config.json").write_text(json.dumps(config | {"quantization_config": fp8}))
    (folder / "README.md").write_bytes(LICENSE)
    return str(folder)


@pytest.mark.parametrize("kind", ["adapters", "fp8"])
def test_inputs_that_are_computed(kind: str, short_family: Family, tmp_path: Path) -> None:
    merge_once(short_family.recipe("ram", 3), tmp_path)
    write_family(WIDE, tmp_path, (0.1,))
    base, plain = tmp_path / "base", tmp_path / "agent0"
    if kind == "fp8":
        agents = [fp8_model(tmp_path / f"fp8_{k}", plain, 16 * k) for k in (1, 2)]
    else:
        agents = [adapter(tmp_path / f"lora{k}", k) for k in (1, 2)]
    recipe = Recipe.model_validate({"base": str(base), "agents": [*agents, str(plain)], "method": "ram"})
    assert_near(predicted(recipe, 2), merge(recipe, tmp_path, "--threads", "2"))


def plan_on(hub: LocalHubProcess, recipe: Recipe) -> Plan:
    return prepare(recipe, Hub(hub.endpoint, hub.tokens["ada"])).plan


@pytest.mark.parametrize(("method", "agents", "threads"), [("ram", 2, 2), ("ties", 5, 2), ("ram", 5, 8)])
def test_shards_that_are_read_by_ranges(
    method: str, agents: int, threads: int, hub: LocalHubProcess, short_family: Family, tmp_path: Path
) -> None:
    merge_once(short_family.recipe(method, agents), tmp_path)
    recipe = Recipe.model_validate(
        {"base": "ada/base", "agents": [f"ada/agent{k}" for k in range(agents)], "method": method}
    )
    plan = plan_on(hub, recipe)
    options = StreamOptions(threads=threads)
    environment = {"HF_ENDPOINT": hub.endpoint, "HF_TOKEN": hub.tokens["ada"], "HUBMERGE_DATA": str(tmp_path / "data")}
    budget = ["--disk-budget", str((plan.output_bytes + ROOM) / 1e9)]
    peak = merge(recipe, tmp_path, "--threads", str(threads), *budget, environment=environment)
    said = predict(plan, Machine(2, input_bytes=ROOM), options).memory_bytes
    assert_near(said, peak)
    fetched = predict(plan, Machine(2), options).memory_bytes
    assert said - fetched >= 90_000_000
    if threads == 2:  # and the same where they are fetched whole
        assert_near(fetched, merge(recipe, tmp_path, "--threads", "2", environment=environment))


def test_blocks_take_no_more_however_many_threads_wait_for_them(hub: LocalHubProcess) -> None:
    recipe = Recipe.model_validate({"base": "ada/base", "agents": ["ada/agent0", "ada/agent1"], "method": "ram"})
    plan = plan_on(hub, recipe)

    def ranges(threads: int) -> int:
        options = StreamOptions(threads=threads)
        with_ranges = predict(plan, Machine(2, input_bytes=0), options).memory_bytes
        return with_ranges - predict(plan, Machine(2, input_bytes=plan.download_bytes), options).memory_bytes

    assert ranges(1) == ranges(64) > 0


class Two(Ranks):
    size = 2


def test_two_processes(long_family: Family, short_family: Family, tmp_path: Path) -> None:
    """Each takes what a process on its own takes, and torch with what it holds to talk."""
    merge_once(short_family.recipe("ties", 3), tmp_path)
    path, out = tmp_path / "recipe.yaml", tmp_path / "out"
    recipe = long_family.recipe("ties", 3)
    path.write_text(recipe.to_yaml())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    common = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo"}
    command = [sys.executable, *merging(path, "--out", str(out), "--threads", "2")]
    with ThreadPoolExecutor(2) as pool:
        done = [pool.submit(measure, command, {**common, "RANK": str(rank)}) for rank in range(2)]
        peaks = [future.result().peak_rss_bytes for future in done]
    plan = prepare(recipe, NOWHERE, Request(allow_local=True)).plan
    said = predict(plan, Machine(2), StreamOptions(threads=2, ranks=Two())).memory_bytes
    for peak in peaks:
        assert_near(said, peak)
