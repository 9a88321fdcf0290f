"""The whole line against the embedded Hub, through the command line as a user would run it."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from pathlib import Path

import pytest
from huggingface_hub import HfApi
from processes import as_ada, python

from hubmerge.output.report import Report
from localhub.process import LocalHubProcess

RECIPE = "base: zoo/base\nagents: [zoo/math-agent, zoo/tool-agent, zoo/mem-agent]\nmethod: {method}\n"
FILES = {
    *("figures/density_by_layer.svg", "figures/overlap.svg"),
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *(".gitattributes", "README.md", "hubmerge.json", "recipe.yaml"),
}


class Shell:
    """`python -m hubmerge` as user ada of an embedded Hub."""

    def __init__(self, hub: LocalHubProcess, folder: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.api = HfApi(endpoint=hub.endpoint, token=hub.tokens["ada"])
        self.runs = folder / "data" / "runs"

    def recipe(self, text: str) -> str:
        path = self.folder / f"{hashlib.sha256(text.encode()).hexdigest()[:8]}.yaml"
        path.write_text(text)
        return str(path)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return python("-m", "hubmerge", *arguments, **as_ada(self.hub, self.folder))

    def done(self, *arguments: str) -> str:
        """What a command that succeeds prints."""
        finished = self.run(*arguments)
        assert finished.returncode == 0, finished.stderr
        return finished.stdout

    def commits(self, repo: str) -> list[str]:
        return [c.title for c in self.api.list_repo_commits(repo)]

    def fetch(self, repo: str, name: str) -> bytes:
        return Path(self.api.hf_hub_download(repo, name, cache_dir=self.folder / "cache")).read_bytes()


@pytest.fixture
def shell(zoo_hub: LocalHubProcess, tmp_path: Path) -> Shell:
    return Shell(zoo_hub, tmp_path)


def test_run_publishes_a_complete_model_in_one_commit_pins_its_parents_and_again_is_the_same_commit(
    shell: Shell,
) -> None:
    recipe = shell.recipe(RECIPE.format(method="ram_plus"))
    first = shell.done("run", recipe, "--to", "ada/complete")
    took = (
        r"fetched .*shards: 4 whole, 0 by ranges.*found on disk by a later pass or run, disk at most .*, memory at most"
    )
    assert re.match(took, first)
    assert set(shell.api.list_repo_files("ada/complete")) == FILES
    titles = shell.commits("ada/complete")
    assert len(titles) == 2  # the Hub's initial one and ours
    report = Report.from_json(json.loads(shell.fetch("ada/complete", "hubmerge.json")))
    assert report.identity[:16] in titles[0]
    weights = shell.fetch("ada/complete", "model.safetensors")
    assert hashlib.sha256(weights).hexdigest() == report.files[0].sha256
    assert report.result["nonfinite"] == 0
    parents = [f"zoo/{name}" for name in ("base", "math-agent", "tool-agent", "mem-agent")]
    info, card = shell.api.model_info("ada/complete"), shell.fetch("ada/complete", "README.md").decode()
    assert info.card_data.to_dict()["base_model"] == parents
    assert "base_model:merge:zoo/math-agent" in (info.tags or [])
    for repo in parents:
        assert f"{shell.hub.endpoint}/{repo}/tree/{shell.api.model_info(repo).sha}" in card
    assert 'model_id = "ada/complete"' in card
    left = shell.runs / report.identity / "out"
    left.mkdir(parents=True)  # by a kill between the commit and the end
    (left / "README.md").write_text("left")
    again = shell.done("run", recipe, "--to", "ada/complete")
    assert again.split()[-1] == first.split()[-1]
    assert shell.commits("ada/complete") == titles
    assert not list(shell.runs.iterdir())


def test_a_target_of_somebody_else_or_with_other_content_is_refused_before_any_download(shell: Shell) -> None:
    recipe = shell.recipe(RECIPE.format(method="ram"))
    before = shell.commits("zoo/base")
    for target, code in (("bob/mine", "E_PERMISSION"), ("zoo/base", "E_TARGET_EXISTS"), ("plain", "E_RECIPE")):
        done = shell.run("run", recipe, "--to", target)
        assert done.returncode == 1
        assert code in done.stderr
    assert shell.commits("zoo/base") == before
    assert not (shell.folder / "data").exists()


def test_kills_at_random_moments_cost_nothing_but_time(tmp_path: Path) -> None:
    out = tmp_path / "kills.json"
    command = ["benchmarks.kills", "--kills", "6", "--models", "synthetic", "--out", str(out)]
    done = python("-m", *command, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    [campaign] = figures["campaigns"]
    assert figures["kills"] == sum(campaign["kills_by_stage"].values()) == 6
    assert campaign["failures"] == []
    assert 0 < campaign["disk_high_water_bytes"] <= campaign["disk_budget_bytes"]
