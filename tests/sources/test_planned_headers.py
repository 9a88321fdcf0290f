"""A header is read before its shard: what was planned from must be what the verified file begins with."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import pytest
from builders import random_base, write_model
from line import OUT_SHARD_BYTES, Line, threads_left

from hubmerge.engine.stream import StreamOptions
from hubmerge.errors import CorruptError, SourceChangedError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared, merge_to_hub
from hubmerge.recipe.model_name import ModelName
from hubmerge.sources.open import open_model
from hubmerge.sources.reader import LocalOrFetched, TensorReader

LIE = "model-00003-of-00005.safetensors"


def planned_from_a_lie(line: Line) -> Prepared:
    """While it is planned, one shard's header has two tensors of the same shape the wrong way round."""
    read = Hub.read_range

    def lying(hub: Hub, repo: str, sha: str, path: str, start: int, end: int) -> bytes:
        raw = read(hub, repo, sha, path, start, end)
        if (repo, path) == ("ada/one", LIE):
            raw = raw.replace(b".q_proj.", b".?_proj.").replace(b".k_proj.", b".q_proj.").replace(b"?", b"k")
        return raw

    with patch.object(Hub, "read_range", lying):
        prepared = line.prepare()
    honest = line.prepare()
    assert prepared.plan.agents[0].tensors != honest.plan.agents[0].tensors
    return prepared


@pytest.mark.parametrize("inputs", [4_000_000, 0], ids=["whole shards", "ranges"])
def test_a_server_that_lies_about_a_header_alone_is_found_out_before_anything_of_it_is_merged(
    line: Line, inputs: int
) -> None:
    prepared = planned_from_a_lie(line)
    with pytest.raises(CorruptError, match=rf"another header.*{LIE} in ada/one"):
        merge_to_hub(
            prepared,
            line.hub,
            line.out,
            StreamOptions(cache=line.inputs, disk_budget=2 * OUT_SHARD_BYTES + inputs),
            line.watcher,
        )
    assert threads_left() == []
    assert not line.api.repo_exists(line.target) or line.commits() == 0
    line.disk_budget = 2 * OUT_SHARD_BYTES + inputs
    honest = Line(line.process, line.folder.with_name("honest"), line.recipe, line.target, disk_budget=line.disk_budget)
    honest.to_hub()
    assert honest.published() == line.undisturbed


def test_a_folder_whose_header_changed_since_it_was_planned_from_is_refused(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", random_base(1))
    hub = Hub("http://127.0.0.1:9")
    model = open_model(ModelName(id=str(folder), local=True), hub, allow_local=True)
    path = folder / "model.safetensors"
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b".q_proj.", b".?_proj.").replace(b".k_proj.", b".q_proj.").replace(b"?_p", b"k_p"))
    assert len(path.read_bytes()) == len(raw)
    tensor = next(iter(model.tensors.values()))
    with (
        TensorReader([model], LocalOrFetched(hub, tmp_path / "cache")) as reader,
        pytest.raises(SourceChangedError, match="changed its header"),
    ):
        reader.raw(0, tensor, 0, 1)
