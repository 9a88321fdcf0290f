from __future__ import annotations

import json

import pytest
import torch

from examples.zoo import checkpoint
from examples.zoo.domains import DOMAIN_NAMES
from examples.zoo.evaluate import Score, complete, evaluate_model, main, read_questions
from examples.zoo.figures import Figures
from examples.zoo.train import AGENT_NAMES, BASE_NAME
from hubmerge.errors import FormatError


def test_a_score_has_the_accuracy_and_the_binomial_standard_error():
    score = Score(correct=9, total=25)
    assert score.accuracy == pytest.approx(0.36)
    assert score.standard_error == pytest.approx(0.096)  # sqrt(0.36 * 0.64 / 25)
    assert str(score) == "36.0 ± 9.6"


@pytest.mark.parametrize(("correct", "total"), [(1, 0), (0, 0), (3, 2), (-1, 2)])
def test_an_impossible_score_is_refused(correct, total):
    with pytest.raises(ValueError, match="no score"):
        Score(correct, total)


@pytest.mark.parametrize("name", [BASE_NAME, *AGENT_NAMES])
def test_the_published_accuracies_are_reproduced(zoo, name):
    published = Figures.from_json((zoo / "figures.json").read_text(encoding="utf-8")).scores["test"][name]
    measured = evaluate_model(str(zoo / name), zoo / "eval")
    for domain in DOMAIN_NAMES:
        assert measured[domain].total == published[domain].total
        # Another processor may round a near tie of two logits the other way.
        assert measured[domain].accuracy == pytest.approx(published[domain].accuracy, abs=0.01)


@torch.no_grad()
def greedy_by_hand(model, tokenizer, prompt: str) -> str:
    """One prompt, no padding, no cache: the whole text goes through the model for every new token."""
    ids = tokenizer(prompt, return_tensors="pt")["input_ids"]
    start = ids.shape[1]
    while ids.shape[1] < start + 12:
        following = model(input_ids=ids).logits[0, -1].argmax()
        ids = torch.cat([ids, following.view(1, 1)], dim=1)
        if following == tokenizer.eos_token_id:
            break
    return tokenizer.decode(ids[0, start:], skip_special_tokens=True)


@pytest.mark.parametrize("batch_size", [1, 7, 250])
def test_completions_in_padded_batches_are_those_of_a_loop_over_single_prompts(zoo, batch_size):
    model, tokenizer = checkpoint.load(str(zoo / "tool"))
    prompts = [prompt for name in DOMAIN_NAMES for prompt, _ in read_questions(zoo / "eval" / f"{name}.jsonl", 5)]
    expected = [greedy_by_hand(model, tokenizer, prompt) for prompt in prompts]
    assert complete(model, tokenizer, prompts, batch_size) == expected


def test_a_limit_takes_the_first_prompts_of_the_split_that_was_asked_for(zoo, tmp_path):
    for name in DOMAIN_NAMES:
        (prompt, answer), *_ = read_questions(zoo / "eval" / f"{name}.jsonl")
        rows = [{"prompt": prompt, "answer": answer}, {"prompt": prompt, "answer": "never this"}]
        (tmp_path / f"dev_{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name in AGENT_NAMES:
        model = str(zoo / name)
        one = evaluate_model(model, tmp_path, split="dev", limit=1)[name]
        two = evaluate_model(model, tmp_path, split="dev")[name]
        assert (one.total, two.total) == (1, 2)
        assert two.correct == one.correct


def test_a_missing_or_damaged_question_file_is_named(zoo, tmp_path, capsys):
    assert main([str(zoo / BASE_NAME), "--eval-dir", str(tmp_path)]) == 1
    told = capsys.readouterr().err
    assert "E_SOURCE" in told
    assert "math.jsonl" in told
    (tmp_path / "math.jsonl").write_text('{"prompt": "a", "answer": "b"}\n{"prompt": "a"}\n')
    with pytest.raises(FormatError, match=r"math\.jsonl:2"):
        read_questions(tmp_path / "math.jsonl")
    (tmp_path / "math.jsonl").write_text('["a"]\n')
    with pytest.raises(FormatError, match=r"math\.jsonl:1"):
        read_questions(tmp_path / "math.jsonl")


def test_the_command_line_prints_json_and_a_table(zoo, capsys):
    models = [str(zoo / BASE_NAME), str(zoo / "math")]
    assert main([*models, "--limit", "20", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert list(printed) == models
    assert {score["total"] for scores in printed.values() for score in scores.values()} == {20}
    assert main([*models, "--limit", "20"]) == 0
    head, *lines = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", *DOMAIN_NAMES]
    assert [line.split()[0] for line in lines] == models
