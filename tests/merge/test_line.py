"""The whole line against the embedded Hub, through the command line as a user would run it."""

import hashlib
import json
import re
from pathlib import Path

from processes import act_as_ada, as_ada, python

from hubmerge.output.report import Report

RECIPE = "base: zoo/base\nagents: [zoo/math-agent, zoo/tool-agent, zoo/mem-agent]\nmethod: ram_plus\n"
FILES = {
    *("figures/density_by_layer.svg", "figures/overlap.svg"),
    *("config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"),
    *(".gitattributes", "README.md", "hubmerge.json", "recipe.yaml"),
}


def test_run_publishes_a_complete_model_in_one_commit_pins_its_parents_and_again_is_the_same_commit(
    zoo_hub, api, tmp_path
):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    runs = tmp_path / "data" / "runs"

    def run() -> str:
        """As a user would, in a process of its own."""
        command = ("-m", "hubmerge", "run", str(tmp_path / "recipe.yaml"), "--to", "ada/complete")
        done = python(*command, **as_ada(zoo_hub, tmp_path))
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run()
    took = (
        r"fetched .*shards: 4 whole, 0 by ranges.*found on disk by a later pass or run, disk at most .*, memory at most"
    )
    assert re.match(took, first)
    published = Path(api.snapshot_download("ada/complete", cache_dir=tmp_path / "cache"))
    assert {str(path.relative_to(published)) for path in published.rglob("*") if path.is_file()} == FILES
    titles = [c.title for c in api.list_repo_commits("ada/complete")]
    assert len(titles) == 2  # the Hub's initial one and ours
    report = Report.from_json(json.loads((published / "hubmerge.json").read_text()))
    assert report.identity[:16] in titles[0]
    assert hashlib.sha256((published / "model.safetensors").read_bytes()).hexdigest() == report.files[0].sha256
    assert report.result["nonfinite"] == 0
    parents = [f"zoo/{name}" for name in ("base", "math-agent", "tool-agent", "mem-agent")]
    info, card = api.model_info("ada/complete"), (published / "README.md").read_text()
    assert info.card_data.to_dict()["base_model"] == parents  # type: ignore[union-attr]
    assert "base_model:merge:zoo/math-agent" in (info.tags or [])
    for repo in parents:
        assert f"{zoo_hub.endpoint}/{repo}/tree/{api.model_info(repo).sha}" in card
    assert 'model_id = "ada/complete"' in card
    left = runs / report.identity / "out"
    left.mkdir(parents=True)  # by a kill between the commit and the end
    (left / "README.md").write_text("left")
    assert run().split()[-1] == first.split()[-1]
    assert [c.title for c in api.list_repo_commits("ada/complete")] == titles
    assert not list(runs.iterdir())


def test_a_target_of_somebody_else_or_with_other_content_is_refused_before_any_download(
    zoo_hub, api, tmp_path, monkeypatch, refused
):
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    act_as_ada(monkeypatch, zoo_hub, tmp_path)
    before = api.list_repo_commits("zoo/base")
    for target, code in (("bob/mine", "E_PERMISSION"), ("zoo/base", "E_TARGET_EXISTS"), ("plain", "E_RECIPE")):
        assert code in refused("run", tmp_path / "recipe.yaml", "--to", target)
    assert len(api.list_repo_commits("zoo/base")) == len(before)
    assert not (tmp_path / "data").exists()


def test_kills_at_random_moments_cost_nothing_but_time(tmp_path):
    out = tmp_path / "kills.json"
    command = ["benchmarks.kills", "--kills", "4", "--models", "synthetic", "--out", str(out)]
    done = python("-m", *command, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    figures = json.loads(out.read_text())
    [campaign] = figures["campaigns"]
    assert figures["kills"] == sum(campaign["kills_by_stage"].values()) == 4
    assert campaign["failures"] == []
    assert 0 < campaign["disk_high_water_bytes"] <= campaign["disk_budget_bytes"]
