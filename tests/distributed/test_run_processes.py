"""`hubmerge run` as two real processes: both upload, one commits, and what a lost one has uploaded is not lost."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from builders import recipe_dict
from huggingface_hub import HfApi
from line import Line, upload
from process_helpers import noted, start
from processes import as_ada
from stream_helpers import write_family

from localhub.process import LocalHubProcess

SHARDS = 8
SIZES = {f"model.layers.{i}.mlp.down_proj.weight": (40, 64) for i in range(SHARDS)}  # 5 kB each
SHARD_BYTES = 7_000
DISK_BYTES = 100_000  # for two shards of every process and inputs of 164 kB
VOLATILE = ("created", "environment", "identity", "target")


@dataclass
class Work(Line):
    """Runs of one recipe by several processes."""

    file: Path = field(kw_only=True)  # of the recipe

    @property
    def notes(self) -> Path:
        return self.folder / "notes"

    def run(
        self, processes: int, trouble: dict[str, Any] | None = None, times: int = 1, **more: Any
    ) -> list[tuple[int, str]]:
        command = ["run", str(self.file), "--to", self.target, "--license", "mit", "--device", "cpu"]
        return start(
            processes,
            [[*command, "--disk-budget", str(DISK_BYTES / 1e9)]] * times,
            trouble,
            environment=as_ada(self.process, self.folder),
            notes=self.notes,
            shard_bytes=SHARD_BYTES,
            **more,
        )

    def published(self) -> dict[str, Any]:
        """And of the manifest what is a function of the inputs."""
        return super().published() | {"manifest": {k: v for k, v in self.report().items() if k not in VOLATILE}}

    def copied_bytes(self, base: str) -> int:
        """Of the files beside the weights that the result has from its base."""
        made_anew = {"README.md", "config.json", ".gitattributes", "model.safetensors.index.json"}
        files = self.hub.repo_state(base).files
        taken = (files.keys() & self.hub.repo_state(self.target).files.keys()) - made_anew
        return sum(files[name].size for name in taken if not name.endswith(".safetensors"))

    def commits(self) -> int:
        return super().commits() if self.api.repo_exists(self.target) else 0


@pytest.fixture(scope="module")
def recipe(local_hub: LocalHubProcess, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("family")
    write_family(folder, sizes=SIZES, shards=SHARDS)
    api = HfApi(local_hub.endpoint, token=local_hub.tokens["ada"])
    names = [upload(api, folder / name, f"ada/shared-{name}") for name in ("base", "agent0", "agent1", "agent2")]
    (folder / "recipe.yaml").write_text(json.dumps(recipe_dict(names[0], names[1:], "ram_plus")), encoding="utf-8")
    return folder / "recipe.yaml"


@pytest.fixture(scope="module")
def alone(local_hub: LocalHubProcess, recipe: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What one process publishes."""
    work = Work(local_hub, tmp_path_factory.mktemp("alone"), {}, "ada/alone", file=recipe)
    [(code, error)] = work.run(1)
    assert code == 0, error
    published = work.published()
    assert len([name for name in published if name.endswith(".safetensors")]) == SHARDS
    return published


@pytest.fixture
def work(local_hub: LocalHubProcess, recipe: Path, tmp_path: Path, name: str) -> Work:
    return Work(local_hub, tmp_path, {}, name, file=recipe)


def input_bytes(recipe: Path) -> int:
    return sum(path.stat().st_size for path in recipe.parent.glob("*/*.safetensors"))


def test_two_processes_upload_their_own_shards_and_make_one_commit_with_the_bytes_of_one(work, alone, recipe):
    finished = work.run(2, times=2)  # the second time they find it published
    assert [code for code, _ in finished] == [0, 0], finished
    assert work.published() == alone
    assert work.commits() == 1
    uploaded = noted(work.notes, "uploaded")
    assert [len(own) for own in uploaded] == [4, 4]
    assert len({name for own in uploaded for name in own}) == SHARDS
    assert max(int(count) for own in noted(work.notes, "lying") for count in own) <= 2 * 2, "two of each process"
    report = work.report()
    fetch, shard_bytes = report["environment"]["fetch"], max(f["size"] for f in report["files"])
    beside = work.copied_bytes("ada/shared-base")
    taken = 2 * shard_bytes + beside
    assert fetch["budget_bytes"] == DISK_BYTES // 2 - taken, "half of the budget, less two shards and the other files"
    assert fetch["high_water_bytes"] <= fetch["budget_bytes"]
    assert report["environment"]["processes"] == fetch["processes"] == 2
    assert fetch["bytes"] >= input_bytes(recipe), "what both have fetched"
    assert fetch["shards"] >= 4 * SHARDS
    assert "resumed" not in report["environment"]
    assert not [*(work.folder / "data" / "runs").iterdir()]


@pytest.mark.parametrize(("lost", "processes"), [(1, 2), (0, 1)])
def test_after_a_kill_the_same_command_goes_on_with_any_number_of_processes(work, alone, recipe, lost, processes):
    first = work.run(2, {"rank": lost, "kind": "die at upload", "times": 2})
    assert first[lost][0] == -9
    assert first[1 - lost][0] == 1
    assert "E_PROCESS" in first[1 - lost][1]
    assert work.commits() == 0
    uploaded, merged = noted(work.notes, "uploaded"), noted(work.notes, "merged")
    assert len(uploaded[lost]) == 1
    assert len(uploaded[1 - lost]) == SHARDS // 2
    kept = {*uploaded[0], *uploaded[1], merged[lost][1]}  # it died when it had noted its second upload
    finished = work.run(processes)
    assert [code for code, _ in finished] == [0] * processes, finished
    assert work.published() == alone
    assert work.commits() == 1
    again = {
        name for own, before in zip(noted(work.notes, "merged"), merged, strict=True) for name in own[len(before) :]
    }
    assert not again & kept
    assert work.report()["environment"]["resumed"] is True
    assert not [*(work.folder / "data" / "runs").iterdir()]


def test_machines_without_a_common_folder_publish_too_and_go_on_after_a_failed_upload(work, alone):
    machines = [work.folder / "one", work.folder / "two"]
    for machine in machines:
        machine.mkdir()
    first = work.run(2, {"rank": 1, "kind": "no upload", "times": 1}, folders=machines)
    assert [code for code, _ in first] == [1, 1]
    assert "E_HUB: out of storage" in first[1][1]
    assert "E_PROCESS" in first[0][1]
    finished = work.run(2, folders=machines)
    assert [code for code, _ in finished] == [0, 0], finished
    assert work.published() == alone
    assert work.commits() == 1
    merged = [name for own in noted(work.notes, "merged") for name in own]
    assert len(merged) == len(set(merged)) == SHARDS
    assert not [*machines[0].rglob("*.safetensors"), *machines[1].rglob("*.safetensors")]
