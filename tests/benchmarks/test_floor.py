"""What a stream is compared with: the floor does all reading and writing, side by side, and is measured by turns."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from benchmark_helpers import place
from plan_helpers import NOWHERE

from benchmarks import stream_meter
from benchmarks.synthetic import SHAPES, write_family
from hubmerge.engine.stream import StreamOptions
from hubmerge.line import Request, prepare
from hubmerge.plan.plan import Plan
from hubmerge.recipe.recipe import Recipe

WAIT_S = 60.0  # turns a hang into a failure


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    folder = tmp_path_factory.mktemp("family")
    write_family(SHAPES["tiny"], folder)
    recipe = {"base": str(folder / "base"), "agents": [str(folder / f"agent{k}") for k in range(3)], "method": "ram"}
    return prepare(Recipe.model_validate(recipe), NOWHERE, Request(allow_local=True)).plan


@pytest.mark.parametrize(("passes", "hashed"), [(1, True), (2, False)])
def test_the_floor_reads_every_input_and_writes_every_byte_of_an_output(plan, tmp_path, monkeypatch, passes, hashed):
    read: list[int] = []
    original = stream_meter.read_chunk

    def reading(reader: Any, chunk: Any) -> Any:
        stored = original(reader, chunk)
        read.append(sum(len(raw) for raw in stored.raws))
        return stored

    monkeypatch.setattr(stream_meter, "read_chunk", reading)
    block = stream_meter.block_to_write()[: 64 * 1024]  # so that a tiny output is many
    stream_meter.floor(plan, passes, hashed, tmp_path, StreamOptions(threads=3), block)
    assert sum(read) == passes * 4 * plan.elements
    written = sorted(path.stat().st_size for path in tmp_path.iterdir())
    assert len(written) == 3
    assert sum(written) == plan.output_bytes
    assert written[-1] - written[0] <= 1, "every core has the same share"
    assert [t.name for t in threading.enumerate() if t.name == "floor-hash"] == []


def test_the_floor_writes_while_it_reads(plan, tmp_path, monkeypatch):
    """The sink does; a floor that wrote afterwards would be none."""
    writing = threading.Event()

    def read(reader: Any, chunk: Any) -> None:
        assert writing.wait(WAIT_S), "nothing is written before everything is read"

    def write(*told: Any) -> None:
        writing.set()

    monkeypatch.setattr(stream_meter, "read_chunk", read)
    monkeypatch.setattr(stream_meter, "_write", write)
    stream_meter.floor(plan, 1, True, tmp_path, StreamOptions(threads=2), stream_meter.block_to_write())


@pytest.mark.parametrize(("kind", "hashed"), [("null", True), ("disk", False)])
def test_a_sink_writes_and_hashes_what_it_says(plan, tmp_path, kind, hashed):
    with stream_meter.hashing(on=hashed):
        stream_meter.merged(plan, tmp_path / "out", StreamOptions(threads=2, backend="eager", sink=kind))
    written = list((tmp_path / "out").glob("*.safetensors"))
    assert sum(path.stat().st_size for path in written) == (plan.output_bytes if kind == "disk" else 0)
    lines = (tmp_path / "out" / ".hubmerge" / "journal.jsonl").read_text().splitlines()
    digests = {json.loads(line)["sha256"] for line in lines if '"shard"' in line}
    assert ("0" * 64 in digests) is not hashed


def test_what_is_compared_runs_by_turns_and_the_least_of_each_is_kept(tmp_path):
    begun: list[str] = []

    def run(name: str, walls: Iterator[float]) -> dict[str, Any]:
        begun.append(name)
        return {"wall_s": next(walls), "cpu_s": 10.0 - len(begun)}

    walls = {"stream": iter([3.0, 2.0, 4.0]), "floor": iter([1.5, 7.0, 1.0])}
    found = place(tmp_path).by_turns({name: lambda name=name: run(name, walls[name]) for name in walls})
    assert begun == ["stream", "floor"] * 3
    assert found == {"stream": {"wall_s": 2.0, "cpu_s": 7.0}, "floor": {"wall_s": 1.0, "cpu_s": 4.0}}


def test_making_synthetic_values_is_no_part_of_what_is_measured(tmp_path, monkeypatch):
    own = "synthetic:short?layers=1&seed=12345"
    agents = [f"{own}&agent={k}&density=0.1" for k in (1, 2)]
    recipe = Recipe.model_validate({"base": own, "agents": agents, "method": "ram_plus"})
    plan = prepare(recipe, NOWHERE, Request(allow_local=True)).plan

    def merging() -> None:
        with monkeypatch.context() as patched:
            patched.delattr("hubmerge.sources.synthetic._piece")  # what makes them
            stream_meter.merged(plan, tmp_path, StreamOptions(threads=2, backend="eager", sink="null"))

    assert stream_meter.timed(plan, merging)["elements"] == plan.elements
