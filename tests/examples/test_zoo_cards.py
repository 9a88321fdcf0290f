from __future__ import annotations

import re

import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard, ModelCard

from examples.zoo.cards import main, render
from examples.zoo.domains import DOMAIN_NAMES
from examples.zoo.evaluate import read_questions
from examples.zoo.figures import Figures
from examples.zoo.train import AGENT_NAMES, BASE_NAME


@pytest.fixture(scope="module")
def figures(zoo) -> Figures:
    return Figures.from_json((zoo / "figures.json").read_text(encoding="utf-8"))


def test_figures_survive_the_way_through_their_file(figures):
    assert Figures.from_json(figures.to_json()) == figures


def test_the_committed_cards_are_what_the_command_writes_from_the_figures(zoo, figures, tmp_path):
    cards = render(figures)
    assert set(cards) == {str(path.relative_to(zoo)) for path in zoo.rglob("README.md")}
    for path in cards:
        (tmp_path / path).parent.mkdir(exist_ok=True)
    (tmp_path / "figures.json").write_text(figures.to_json(), encoding="utf-8")
    assert main(["--zoo", str(tmp_path)]) == 0
    for path in cards:
        assert (tmp_path / path).read_text(encoding="utf-8") == (zoo / path).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", [BASE_NAME, *AGENT_NAMES])
def test_a_model_card_carries_license_lineage_and_scores(zoo, figures, name):
    data = ModelCard.load(zoo / name / "README.md").data
    assert (data.license, data.library_name, data.pipeline_tag) == (
        "apache-2.0",
        "transformers",
        "text-generation",
    )
    assert data.language is None
    if name == BASE_NAME:
        assert data.tags == ["hubmerge-zoo"]
        assert data.base_model is None
    else:
        assert data.tags == ["hubmerge-zoo", "reinforcement-learning", "grpo"]
        assert (data.base_model, data.base_model_relation) == ("zoo/base", "finetune")
    scores = {result.dataset_config: result.metric_value for result in data.eval_results}
    assert scores == {domain: figures.scores["test"][name][domain].accuracy for domain in DOMAIN_NAMES}


@pytest.mark.parametrize("name", DOMAIN_NAMES)
def test_the_dataset_card_lets_datasets_load_both_splits_of_a_domain(zoo, tmp_path, name):
    assert DatasetCard.load(zoo / "eval" / "README.md").data.license == "apache-2.0"
    loaded = load_dataset(str(zoo / "eval"), name, cache_dir=str(tmp_path))
    assert {split: len(rows) for split, rows in loaded.items()} == {"test": 500, "validation": 300}
    assert loaded["test"].column_names == ["prompt", "answer"]
    questions = [(row["prompt"], row["answer"]) for row in loaded["test"]]
    assert questions == read_questions(zoo / "eval" / f"{name}.jsonl")


def test_the_python_example_of_the_readme_prints_the_right_sum(repository, zoo, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (zoo / "README.md").read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(repository)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "math 6 9 + 1 7 = 8 6"


def test_every_path_that_the_readme_names_exists(repository, zoo):
    text = (zoo / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"examples/zoo[\w./]*", text))
    assert len(named) >= 6
    for path in named:
        assert (repository / path).exists(), path
