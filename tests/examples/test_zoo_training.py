from __future__ import annotations

import random
import subprocess
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from examples.zoo import checkpoint
from examples.zoo.domains import MAX_ANSWER_TOKENS, by_name
from examples.zoo.train import (
    AGENT_NAMES,
    BASE_NAME,
    Pretraining,
    advantages,
    imitation_batch,
    main,
    policy_loss,
    sample,
    shrink_towards,
)


@pytest.fixture(scope="module")
def base(zoo):
    return checkpoint.load(str(zoo / BASE_NAME))


def test_the_script_trains_base_and_agents_into_loadable_folders(repository, tmp_path):
    script = repository / "examples" / "zoo" / "train.py"
    done = subprocess.run(
        [sys.executable, str(script), "--out", str(tmp_path), "--steps", "2"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    for name in (BASE_NAME, *AGENT_NAMES):
        model, report = AutoModelForCausalLM.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values())
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_an_agent_without_a_base_is_refused_before_any_training(tmp_path, capsys):
    with pytest.raises(SystemExit) as refusal:
        main(["--out", str(tmp_path), "--only", "math"])
    assert refusal.value.code == 2
    assert "--only base" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_imitation_learns_exactly_the_answer_and_the_end_of_text():
    tokenizer = checkpoint.new_tokenizer()
    recipe = Pretraining(batch=64)
    inputs, labels = imitation_batch(tokenizer, recipe, random.Random(0))
    wrong = 0
    for ids, mask, positions, label in zip(
        inputs["input_ids"], inputs["attention_mask"], inputs["position_ids"], labels, strict=True
    ):
        words = tokenizer.convert_ids_to_tokens(ids[mask.bool()])
        learnt = tokenizer.convert_ids_to_tokens(ids[label != -100])
        assert torch.equal(ids[label != -100], label[label != -100])
        assert positions[mask.bool()].tolist() == list(range(len(words)))
        assert (words[0], learnt[-1]) == (tokenizer.bos_token, tokenizer.eos_token)
        prompt, answer = " ".join(words[1 : -len(learnt)]), " ".join(learnt[:-1])
        domain = by_name(words[1])
        assert answer in (domain.solve(prompt), domain.mistake(prompt))
        wrong += answer != domain.solve(prompt)
    # 64 draws at 0.6: 38.4 expected, standard deviation 3.9.
    assert 20 < wrong < 57


def test_advantages_are_normalised_within_the_group_and_vanish_where_all_fare_alike():
    rewards = torch.tensor([[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], [0.0, 0.0, 0.0, 0.0]])
    # Group 1: mean 1/4, standard deviation of the sample sqrt((9 + 3) / 16 / 3) = 1/2.
    expected = torch.tensor([[1.5, -0.5, -0.5, -0.5], [0.0] * 4, [0.0] * 4])
    torch.testing.assert_close(advantages(rewards), expected, rtol=1e-3, atol=1e-6)


def test_the_proximal_step_shrinks_every_difference_and_stops_at_the_base():
    base = [torch.tensor([1.0, 1.0, 1.0, 1.0])]
    weights = [torch.tensor([1.5, 0.5, 1.125, 0.875])]
    shrink_towards(base, weights, 0.25)
    assert weights[0].tolist() == [1.25, 0.75, 1.0, 1.0]


def test_sampled_completions_end_at_their_first_end_of_text(base):
    model, tokenizer = base
    torch.manual_seed(0)
    questions = ["math 6 9 + 1 7 =", "tool divide 6 1 by 2 9 ;"] * 8
    ids, mask, width = sample(model, tokenizer, questions)
    assert ids.shape == mask.shape
    assert ids.shape[1] <= width + MAX_ANSWER_TOKENS
    for row, row_mask, question in zip(ids, mask, questions, strict=True):
        assert tokenizer.decode(row[:width], skip_special_tokens=True) == question
        tokens = row[width:].tolist()
        end = tokens.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in tokens else len(tokens)
        assert row_mask[width:].tolist() == [1] * end + [0] * (len(tokens) - end)


def test_the_policy_loss_is_that_of_a_loop_over_unpadded_completions(base):
    model, tokenizer = base
    torch.manual_seed(1)
    ids, mask, width = sample(model, tokenizer, ["math 6 9 + 1 7 =", "tool divide 6 1 by 2 9 ;"])
    advantage = torch.tensor([1.5, -0.5])
    expected = 0.0
    with torch.no_grad():
        for row, row_mask, weight in zip(ids, mask, advantage, strict=True):
            text = row[row_mask.bool()][None]
            prompt_length = int(row_mask[:width].sum())
            log_p = model(input_ids=text).logits[0].log_softmax(-1)
            steps = [float(log_p[t - 1, text[0, t]]) for t in range(prompt_length, text.shape[1])]
            expected -= float(weight) * sum(steps) / len(steps) / len(ids)
        loss = policy_loss(model, ids, mask, width, advantage)
    assert float(loss) == pytest.approx(expected, rel=1e-4)
