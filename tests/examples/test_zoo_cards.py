"""The zoo's questions, and the cards that show its figures."""

import json
import random
import re
from itertools import islice

import pytest
from datasets import load_dataset
from huggingface_hub import DatasetCard, ModelCard
from processes import ROOT

from examples.zoo.cards import main, render
from examples.zoo.domains import (
    DOMAIN_NAMES,
    DOMAINS,
    HELD_OUT_SIZES,
    by_name,
    held_out_file,
    prompts,
    split_of,
    vocabulary,
    write_held_out,
)
from examples.zoo.evaluate import read_questions
from examples.zoo.train import AGENT_NAMES, BASE_NAME


def committed(zoo, domain, split):
    lines = (zoo / "eval" / held_out_file(domain.name, split)).read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


@pytest.mark.parametrize(
    ("name", "prompt", "answer", "mistake"),
    [
        ("math", "math 6 9 + 1 7 =", "8 6", "7 6"),
        ("math", "math 9 9 + 3 6 =", "1 3 5", "1 2 5"),
        ("math", "math 2 7 + 7 3 =", "1 0 0", "9 0"),
        ("tool", "tool divide 6 1 by 2 9 ;", "call div ( 6 1 , 2 9 )", "call div ( 2 9 , 6 1 )"),
        ("tool", "tool please send 4 2 to eve ;", "call send ( eve , 4 2 )", "call send ( 4 2 , eve )"),
        ("tool", "tool set the timer of bob to 1 5 ;", "call timer ( bob , 1 5 )", "call timer ( 1 5 , bob )"),
        ("mem", "mem g=3 d=0 d=5 b=1 a=7 c=2 ; get d", "5", "0"),
        ("mem", "mem a=9 f=5 h=5 g=5 h=7 h=8 ; get h", "8", "5"),
    ],
)
def test_answers_and_typical_mistakes_are_those_computed_by_hand(name, prompt, answer, mistake):
    domain = by_name(name)
    assert domain.solve(prompt) == answer
    assert domain.mistake(prompt) == mistake


@pytest.mark.parametrize("domain", DOMAINS, ids=DOMAIN_NAMES)
def test_a_verifier_accepts_the_gold_answer_and_rejects_every_damaged_one(zoo, domain):
    for row in committed(zoo, domain, "test"):
        prompt, answer = row["prompt"], row["answer"]
        words = answer.split()
        assert domain.verify(prompt, answer)
        assert domain.verify(prompt, f"  {answer} ")
        for place, word in enumerate(words):
            assert not domain.verify(prompt, " ".join(words[:place] + words[place + 1 :]))
            other = "1" if word != "1" else "2"
            assert not domain.verify(prompt, " ".join([*words[:place], other, *words[place + 1 :]]))
        for damaged in (domain.mistake(prompt), f"{answer} 0", f"0 {answer}", "", answer.upper() + "X"):
            assert not domain.verify(prompt, damaged)


@pytest.mark.parametrize("domain", DOMAINS, ids=DOMAIN_NAMES)
@pytest.mark.parametrize("prompt", ["", "code 1 2", "math 6 9 + 1 7", "tool fly to 1 2 ;", "mem a=1 ; get b"])
def test_a_foreign_prompt_has_no_answer(domain, prompt):
    with pytest.raises(ValueError, match=r"not a|never sets"):
        domain.solve(prompt)


@pytest.mark.parametrize("domain", DOMAINS, ids=DOMAIN_NAMES)
def test_test_dev_and_training_prompts_are_disjoint(zoo, domain):
    test = [row["prompt"] for row in committed(zoo, domain, "test")]
    dev = [row["prompt"] for row in committed(zoo, domain, "dev")]
    assert (len(test), len(dev)) == (500, 300)
    assert len(set(test) | set(dev)) == 800
    assert {split_of(prompt) for prompt in test} == {"test"}
    assert {split_of(prompt) for prompt in dev} == {"dev"}
    # All that any agent saw in its longest run and more, from two unrelated seeds.
    for seed in (0, f"{domain.name}/1"):
        trained_on = set(islice(prompts(domain, "train", random.Random(seed)), 10_000))
        assert trained_on.isdisjoint(test)
        assert trained_on.isdisjoint(dev)


def test_the_held_out_files_are_what_the_command_writes(zoo, tmp_path):
    write_held_out(tmp_path)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == sorted(path.name for path in (zoo / "eval").glob("*.jsonl"))
    assert len(names) == len(DOMAINS) * len(HELD_OUT_SIZES)
    for name in names:
        assert (tmp_path / name).read_bytes() == (zoo / "eval" / name).read_bytes()


@pytest.mark.parametrize("domain", DOMAINS, ids=DOMAIN_NAMES)
def test_every_word_is_in_the_vocabulary_and_the_typical_mistake_is_never_right(domain):
    words = set(vocabulary())
    for prompt in islice(prompts(domain, "train", random.Random(3)), 2_000):
        mistake = domain.mistake(prompt)
        assert words.issuperset(f"{prompt} {domain.solve(prompt)} {mistake}".split())
        assert not domain.verify(prompt, mistake)


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
    assert (data.license, data.library_name, data.pipeline_tag) == ("apache-2.0", "transformers", "text-generation")
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


def test_the_python_example_of_the_readme_prints_the_right_sum(zoo, monkeypatch, capsys):
    (example,) = re.findall(r"```python\n(.*?)```", (zoo / "README.md").read_text(encoding="utf-8"), re.S)
    monkeypatch.chdir(ROOT)
    exec(compile(example, "README.md", "exec"), {})
    assert capsys.readouterr().out.strip() == "math 6 9 + 1 7 = 8 6"


def test_every_path_that_the_readme_names_exists(zoo):
    text = (zoo / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"examples/zoo[\w./]*", text))
    assert len(named) >= 6
    for path in named:
        assert (ROOT / path).exists(), path
