"""Files beside the weights, from repos to a repo: nothing lost on the way, and a bomb of them never fetched."""

import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from builders import write_model
from huggingface_hub import HfApi
from safetensors.numpy import save
from test_companions import AGENTS, BASE, DENSE, RICH

from hubmerge.engine.options import StreamOptions
from hubmerge.errors import IncompatibleError
from hubmerge.hub.client import Hub
from hubmerge.line import Prepared, Request, merge_to_hub, prepare
from hubmerge.output.publish import Target
from hubmerge.recipe.recipe import recipe_from_dict
from localhub.process import LocalHubProcess


class Repos:
    """A base and two agents on the embedded Hub, and what was read of them."""

    def __init__(self, hub: LocalHubProcess, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self.api = HfApi(endpoint=hub.endpoint, token=hub.tokens["ada"])
        self.hub = Hub(hub.endpoint, hub.tokens["ada"])
        self.names = [f"ada/{part}-{uuid.uuid4().hex[:12]}" for part in ("base", "one", "two", "merged")]
        self.read: list[str] = []
        whole = Hub.read_file

        def noted(hub: Hub, repo_id: str, sha: str, path: str, *most: int) -> bytes:
            self.read.append(path)
            return whole(hub, repo_id, sha, path, *most)

        monkeypatch.setattr(Hub, "read_file", noted)

    def upload(self, *files: Mapping[str, bytes]) -> None:
        for name, tensors, more in zip(self.names, (BASE, *AGENTS), files, strict=False):
            folder = write_model(self.folder / name, tensors, files=more)
            self.api.create_repo(name)
            self.api.upload_folder(repo_id=name, folder_path=folder)

    def prepare(self) -> Prepared:
        recipe = recipe_from_dict({"base": self.names[0], "agents": self.names[1:3], "method": "ram"})
        return prepare(recipe, self.hub, Request(target=Target(self.names[3], False), license="mit"))


@pytest.fixture
def repos(local_hub: LocalHubProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Repos:
    return Repos(local_hub, tmp_path, monkeypatch)


def dense(value: float) -> bytes:
    return bytes(save({"linear.weight": np.full((4, 16), value, np.float32)}))


FILES = {**RICH, **DENSE, "2_Dense/model.safetensors": dense(1.0), "LICENSE": b"MIT"}


def test_every_companion_of_a_repo_is_in_the_repo_of_the_merge(repos):
    repos.upload(FILES, FILES, FILES)
    work = repos.folder / "work"
    options = StreamOptions(backend="eager")
    published = merge_to_hub(repos.prepare(), repos.hub, work / "out", replace(options, cache=work / "in"))
    result = Path(repos.api.snapshot_download(published.repo, local_dir=repos.folder / "result"))
    assert {name: (result / name).read_bytes() for name in FILES} == FILES
    one = repos.names[1].partition("/")[2]
    assert (result / "licenses" / one / "LICENSE").read_bytes() == b"MIT"
    card = repos.api.model_info(published.repo)
    assert (card.library_name, card.pipeline_tag) == ("sentence-transformers", "sentence-similarity")


def test_another_module_of_an_agent_is_told_by_its_hash_and_not_fetched(repos):
    repos.upload(FILES, FILES, {**FILES, "2_Dense/model.safetensors": dense(2.0)})
    with pytest.raises(IncompatibleError, match="another module beside the model") as caught:
        repos.prepare()
    assert repos.names[2] in str(caught.value)
    assert "2_Dense/model.safetensors" not in repos.read


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("chat_template.jinja", b"{{ %d }}", "chat_template.jinja"),
        ("tokenizer_config.json", b'{"chat_template": "%d"}', "the chat template in tokenizer_config.json"),
    ],
)
def test_another_template_of_the_same_size_is_told(repos, name, content, said):
    """A file of its own by its id."""
    one, two = ({name: content % n} for n in (1, 2))
    repos.upload(one, one, two)
    said = f"{repos.names[2]}: {said} differs from the base's; the merge keeps the base's"
    assert repos.prepare().plan.warnings == (said,)
