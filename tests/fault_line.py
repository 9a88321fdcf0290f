"""The whole line in this process against the Hub with faults, and a small model family in three shards."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from builders import llama_shapes, random_base, sparse_agent, write_model
from huggingface_hub import HfApi
from huggingface_hub.utils import _http

from hubmerge import line as line_module
from hubmerge.engine.stream import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.line import Prepared, Request, merge_to_folder, prepare
from hubmerge.output.finished import publish_folder
from hubmerge.output.publish import Published, Target
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.recipe import recipe_from_dict
from localhub.process import LocalHubProcess

SHARDS = tuple(f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3))
OUT_SHARD_BYTES = 300_000  # of the 1.1 MB of a merge, so that it has several shards too
OWN_WORDS = {"README.md", "hubmerge.json"}  # name the target, the time and the machine


@dataclass(frozen=True)
class Family:
    """Repos of a base and two agents."""

    base: str
    agents: tuple[str, ...]

    def recipe(self, **more: Any) -> dict[str, Any]:
        return {"base": self.base, "agents": [*self.agents], "method": "ram_plus", **more}


def upload_family(api: HfApi, folder: Path, prefix: str, seed: int = 0) -> Family:
    """Shards of some 250 kB, more than the first read of a header takes."""
    base = random_base(seed, sizes=llama_shapes(layers=6, hidden=96, intermediate=256, vocab=40))
    models = {"base": base, "one": sparse_agent(base, 0.2, seed + 1), "two": sparse_agent(base, 0.3, seed + 2)}
    for name, tensors in models.items():
        write_model(folder / name, tensors, shards=3)
        api.create_repo(f"{prefix}-{name}")
        api.upload_folder(repo_id=f"{prefix}-{name}", folder_path=folder / name)
    return Family(f"{prefix}-base", (f"{prefix}-one", f"{prefix}-two"))


def weights(files: dict[str, str]) -> dict[str, str]:
    """Those files in which no repo is named."""
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}


class Watcher:
    """The line's observer; `at[stage]` is called when that stage begins."""

    def __init__(self, at: dict[str, Callable[[], object]] | None = None) -> None:
        self.at = dict(at or {})

    def stage(self, name: str) -> None:
        if act := self.at.pop(name, None):
            act()

    def progress(self, stage: str, done: int, total: int, unit: str) -> None: ...
    def statistics(self, values: object) -> None: ...
    def warning(self, message: str) -> None: ...


@dataclass
class Line:
    """One job, which can be run again and again as `hubmerge run` would."""

    process: LocalHubProcess
    folder: Path
    recipe: dict[str, Any]
    target: str
    pauses: list[float] = field(default_factory=list)
    watcher: Watcher = field(default_factory=Watcher)

    def __post_init__(self) -> None:
        patience = Patience(sleep=self.pauses.append)
        self.hub = Hub(self.process.endpoint, self.process.tokens["ada"], patience=patience)
        self.api = HfApi(self.process.endpoint, token=self.process.tokens["ada"])

    def prepare(self) -> Prepared:
        target = Target(self.target, False)
        small = partial(make_plan, max_shard_bytes=OUT_SHARD_BYTES)
        with patch.object(line_module, "make_plan", small):
            return prepare(recipe_from_dict(self.recipe), self.hub, Request(target=target, license="mit"))

    def merge(self) -> dict[str, str]:
        """Merge to the folder; the sha256 of every file there that is a function of the inputs."""
        prepared, out = self.prepare(), self.folder / "out"
        with patch.object(line_module, "render_figures", lambda report: {}):  # most of the time, and not the topic
            merge_to_folder(prepared, self.hub, out, StreamOptions(cache=self.folder / "inputs"), self.watcher)
        return {p.name: sha256(p.read_bytes()).hexdigest() for p in out.iterdir() if p.name not in OWN_WORDS}

    def run(self) -> Published:
        self.merge()
        return publish_folder(Target(self.target, False), self.folder / "out", self.hub, self.watcher)

    def published(self) -> dict[str, str]:
        """The sha256 of every published file that is a function of the inputs."""
        state = self.hub.repo_state(self.target)
        return {
            path: file.sha256 or sha256(self.hub.read_file(state.id, state.sha, path)).hexdigest()
            for path, file in state.files.items()
            if path not in OWN_WORDS | {".gitattributes"}
        }

    def commits(self) -> int:
        return len(self.api.list_repo_commits(self.target))


@contextmanager
def unhurried_client(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[float]]:
    """The client's own pauses between tries, noted instead of waited for."""
    pauses: list[float] = []

    class Clock:
        sleep = staticmethod(pauses.append)

        def __getattr__(self, name: str) -> Any:
            return getattr(time, name)

    with monkeypatch.context() as context:
        context.setattr(_http, "time", Clock())
        yield pauses
