"""The whole line in this process: a merge of a small family from the Hub with fault switches to a folder or back."""

import json
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any
from unittest.mock import patch

from builders import llama_shapes, random_base, sparse_agent, write_model
from huggingface_hub import HfApi

from hubmerge import line as line_module
from hubmerge.engine.stream import StreamOptions
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.line import Prepared, Request, merge_to_folder, merge_to_hub, prepare
from hubmerge.output.publish import Published, Target
from hubmerge.plan.disk import used_bytes
from hubmerge.plan.plan import make_plan
from hubmerge.recipe.recipe import recipe_from_dict
from localhub.process import LocalHubProcess

SHARDS = tuple(f"model-0000{n}-of-00005.safetensors" for n in range(1, 6))  # of each model, 230 to 340 kB
OUT_SHARD_BYTES = 240_000  # of the 1.3 MB of a merge; the first is smaller than the first shard of an input
OWN_WORDS = {"README.md", "hubmerge.json"}  # name the target, the time and the machine


def upload(api: HfApi, folder: Path, repo: str, *, private: bool = False) -> str:
    """A new repo that holds the folder's files."""
    api.create_repo(repo, private=private)
    api.upload_folder(repo_id=repo, folder_path=folder)
    return repo


def upload_family(api: HfApi, folder: Path, prefix: str, *, private: bool = False) -> dict[str, Any]:
    """A base and two agents of 1.3 MB each, in `folder` and in repos; the recipe of their merge."""
    base = random_base(0, sizes=llama_shapes(layers=6, hidden=96, intermediate=256, vocab=40))
    models = {"base": base, "one": sparse_agent(base, 0.2, 1), "two": sparse_agent(base, 0.3, 2)}
    for name, tensors in models.items():
        write_model(folder / name, tensors, shards=len(SHARDS))
        upload(api, folder / name, f"{prefix}{name}", private=private)
    return {"base": f"{prefix}base", "agents": [f"{prefix}one", f"{prefix}two"], "method": "ram_plus"}


def weights(files: dict[str, str]) -> dict[str, str]:
    """Those files in which no repo is named."""
    return {name: digest for name, digest in files.items() if name.endswith(".safetensors")}


def threads_left() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("hubmerge-")]


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


class Watcher:
    """The line's observer: `at[stage]` is called once, when that stage begins, and `seen` at every word to it."""

    def __init__(self) -> None:
        self.stages: list[str] = []
        self.bytes: list[tuple[str, int, int]] = []  # stage, done, total
        self.warnings: list[str] = []
        self.at: dict[str, Callable[[], object]] = {}
        self.seen: Callable[[str], None] = lambda stage: None

    def stage(self, name: str) -> None:
        self.stages.append(name)
        if act := self.at.pop(name, None):
            act()
        self.seen(name)

    def progress(self, stage: str, done: int, total: int, unit: str) -> None:
        if unit == "B":
            self.bytes.append((stage, done, total))
        self.seen(stage)

    def statistics(self, values: object) -> None:
        self.seen("statistics")

    def warning(self, message: str) -> None:
        self.warnings.append(message)


@dataclass
class Line:
    """One merge, which can be run again and again as a command or a worker would."""

    process: LocalHubProcess
    folder: Path
    recipe: dict[str, Any]
    target: str
    pauses: list[float] = field(default_factory=list)
    watcher: Watcher = field(default_factory=Watcher)
    disk_budget: int | None = None
    user: str = "ada"
    undisturbed: dict[str, str] = field(default_factory=dict)  # what its files are where nothing goes wrong

    def __post_init__(self) -> None:
        token = self.process.tokens.get(self.user, "")  # nobody has none
        self.hub = Hub(self.process.endpoint, token, patience=Patience(sleep=self.pauses.append))
        self.api = HfApi(self.process.endpoint, token=token or False)

    @property
    def out(self) -> Path:
        return self.folder / "out"

    @property
    def inputs(self) -> Path:
        return self.folder / "inputs"

    def prepare(self) -> Prepared:
        small = partial(make_plan, max_shard_bytes=OUT_SHARD_BYTES)
        with patch.object(line_module, "make_plan", small):
            target = Target(self.target, False, expose=True)
            return prepare(recipe_from_dict(self.recipe), self.hub, Request(target=target, license="mit"))

    def to_folder(self, **more: Any) -> dict[str, str]:
        """The sha256 of every file there that is a function of the inputs."""
        with patch.object(line_module, "render_figures", lambda report: {}):  # most of the time, and not the topic
            merge_to_folder(self.prepare(), self.hub, self.out, self.options(), self.watcher, **more)
        return {p.name: sha256(p.read_bytes()).hexdigest() for p in self.out.iterdir() if p.name not in OWN_WORDS}

    def to_hub(self, **more: Any) -> Published:
        with patch.object(line_module, "render_figures", lambda report: {}):
            return merge_to_hub(self.prepare(), self.hub, self.out, self.options(), self.watcher, **more)

    def options(self) -> StreamOptions:
        return StreamOptions(4096, 2, cache=self.inputs, disk_budget=self.disk_budget)

    def published(self) -> dict[str, str]:
        """The sha256 of every published file that is a function of the inputs."""
        state = self.hub.repo_state(self.target)
        return {
            path: file.sha256 or sha256(self.hub.read_file(state.id, state.sha, path)).hexdigest()
            for path, file in state.files.items()
            if path not in OWN_WORDS | {".gitattributes"}
        }

    def arrives(self) -> None:
        """It is published with the bytes of an undisturbed merge, in one commit."""
        self.to_hub()
        assert self.published() == self.undisturbed
        assert self.commits() == 1

    def report(self) -> dict[str, Any]:
        state = self.hub.repo_state(self.target)
        return dict(json.loads(self.hub.read_file(state.id, state.sha, "hubmerge.json")))

    def commits(self) -> int:
        """Beyond the Hub's initial one."""
        return len(self.api.list_repo_commits(self.target)) - 1

    def finished_shards(self) -> int:
        """Output shards under their final names on this disk."""
        return len([*self.out.glob("*.safetensors")])

    def disk(self) -> int:
        """What weights take on this disk: inputs and output, finished or not."""
        return used_bytes([self.folder], lambda path: ".safetensors" in path)
