"""A publication that can be tried again and again, on a Hub whose commits a test can watch and break."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from hubmerge.engine.progress import Observer, Unobserved
from hubmerge.hub.client import Hub
from hubmerge.hub.errors import Patience
from hubmerge.output.publish import Published, Shard, Target, publish
from localhub.process import LocalHubProcess

IDENTITY = "5a" * 32


class Watched(Hub):
    """A Hub that counts commits, and on which a test can act before each."""

    def __init__(self, process: LocalHubProcess, user: str = "ada") -> None:
        self.pauses: list[float] = []
        self.commits = 0
        self.before_commit: Callable[[], object] = lambda: None
        super().__init__(process.endpoint, process.tokens[user], patience=Patience(sleep=self.pauses.append))

    def commit(self, *args: Any, **more: Any) -> str:
        self.commits += 1
        self.before_commit()
        return super().commit(*args, **more)


class Publication:
    """Two shards of ada's, with a card and a manifest, on their way to the repo `name`."""

    def __init__(self, process: LocalHubProcess, folder: Path, name: str) -> None:
        self.name = name
        self.hub = Watched(process)
        self.api = HfApi(process.endpoint, token=process.tokens["ada"])
        self.shards = [folder / f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
        self.stated: list[Shard] = []  # as the manifest has them
        for path in self.shards:
            content = (path.name + name).encode() * 7_000
            path.write_bytes(content)
            self.stated.append(Shard(path.name, len(content), hashlib.sha256(content).hexdigest(), path))
        self.files = {
            "README.md": b"---\nlicense: mit\n---\n# A merge\n",
            "licenses/a/LICENSE": b"MIT",
            "hubmerge.json": json.dumps({"identity": IDENTITY}).encode(),
        }

    def publish(self, *, name: str = "", private: bool = False, observer: Observer | None = None) -> Published:
        target = Target(name or self.name, private)
        return publish(self.hub, target, IDENTITY, "Merge", self.stated, self.files, observer or Unobserved())

    def add(self, path: str, content: bytes) -> None:
        """A file of somebody else's."""
        self.api.upload_file(repo_id=self.name, path_or_fileobj=content, path_in_repo=path)

    def head(self) -> str:
        return str(self.api.model_info(self.name).sha)

    def titles(self) -> list[str]:
        return [c.title for c in self.api.list_repo_commits(self.name)]

    def there(self) -> set[str]:
        return set(self.api.list_repo_files(self.name))

    def is_whole_in_one_commit(self) -> bool:
        info = self.api.model_info(self.name, files_metadata=True)
        assert {s.rfilename: s.lfs.sha256 for s in info.siblings or () if s.lfs} == {
            s.name: s.sha256 for s in self.stated
        }
        assert self.there() == {*(s.name for s in self.stated), *self.files, ".gitattributes"}
        assert all(self.hub.read_file(self.name, str(info.sha), path) == data for path, data in self.files.items())
        return self.titles() == [f"Merge [hubmerge {IDENTITY[:16]}]", "initial commit"]
