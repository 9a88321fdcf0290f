"""The models of the zoo: what the committed ones are, what is published of them, and how they are trained."""

import json
import random
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from examples.zoo import checkpoint, train
from examples.zoo.domains import DOMAIN_NAMES, MAX_ANSWER_TOKENS, by_name
from examples.zoo.evaluate import Score, complete, evaluate_model, main, read_questions
from examples.zoo.figures import EPSILON
from examples.zoo.train import (
    AGENT_NAMES,
    BASE_NAME,
    Pretraining,
    advantages,
    imitation_batch,
    policy_loss,
    sample,
    shrink_towards,
)
from hubmerge.errors import FormatError

MODELS = (BASE_NAME, *AGENT_NAMES)
pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", MODELS)
def test_a_checkpoint_is_small_in_bfloat16_and_loads_with_exactly_the_tensors_of_its_architecture(zoo, name):
    path = zoo / name / "model.safetensors"
    assert path.stat().st_size <= 1_000_000
    assert {tensor.dtype for tensor in load_file(path).values()} == {torch.bfloat16}
    model, report = AutoModelForCausalLM.from_pretrained(zoo / name, output_loading_info=True)
    assert not any(report.values()), report
    assert type(model).__name__ == "LlamaForCausalLM"
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_all_checkpoints_share_names_shapes_config_and_tokenizer_with_the_base(zoo):
    shapes = {name: {k: t.shape for k, t in load_file(zoo / name / "model.safetensors").items()} for name in MODELS}
    for name in AGENT_NAMES:
        assert shapes[name] == shapes[BASE_NAME]
        for file in ("config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"):
            assert (zoo / name / file).read_bytes() == (zoo / BASE_NAME / file).read_bytes()


def test_the_zoo_stays_below_three_megabytes(zoo):
    files = [path for path in zoo.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert sum(path.stat().st_size for path in files) < 3_000_000


def test_the_tokenizer_gives_back_every_held_out_text(zoo):
    tokenizer = AutoTokenizer.from_pretrained(zoo / BASE_NAME)
    for name in AGENT_NAMES:
        for prompt, answer in read_questions(zoo / "eval" / f"{name}.jsonl"):
            ids = tokenizer(f"{prompt} {answer}")["input_ids"]
            assert ids[0] == tokenizer.bos_token_id
            assert tokenizer.unk_token_id not in ids
            assert tokenizer.decode(ids, skip_special_tokens=True) == f"{prompt} {answer}"
    assert tokenizer("math elephant")["input_ids"][2] == tokenizer.unk_token_id


def test_loading_refuses_a_checkpoint_that_lacks_a_tensor(zoo, tmp_path):
    shutil.copytree(zoo / BASE_NAME, tmp_path / "broken")
    path = tmp_path / "broken" / "model.safetensors"
    tensors = load_file(path)
    del tensors["model.norm.weight"]
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(FormatError, match=r"model\.norm\.weight"):
        checkpoint.load(str(tmp_path / "broken"))


def bfloat16_values(path) -> list[float]:
    """All elements of a checkpoint in file order, decoded without safetensors or torch."""
    raw = path.read_bytes()
    data = raw[8 + struct.unpack("<Q", raw[:8])[0] :]
    return [struct.unpack("<f", b"\0\0" + data[i : i + 2])[0] for i in range(0, len(data), 2)]


def test_the_published_densities_are_those_of_a_count_by_hand(zoo, figures):
    values = {name: bfloat16_values(zoo / name / "model.safetensors") for name in MODELS}
    total = len(values[BASE_NAME])
    density = dict.fromkeys(AGENT_NAMES, 0)
    unique = dict.fromkeys(AGENT_NAMES, 0)
    changed_by = [0] * (len(AGENT_NAMES) + 1)
    for i, origin in enumerate(values[BASE_NAME]):
        changing = [name for name in AGENT_NAMES if abs(values[name][i] - origin) > EPSILON]
        changed_by[len(changing)] += 1
        for name in changing:
            density[name] += 1
        if len(changing) == 1:
            unique[changing[0]] += 1
    assert figures.parameters == total
    assert figures.density == {name: count / total for name, count in density.items()}
    assert figures.unique == {name: count / total for name, count in unique.items()}
    assert figures.changed_by == tuple(count / total for count in changed_by)


def test_task_vectors_are_sparse_and_overlap_in_part(figures):
    for name in AGENT_NAMES:
        assert 0.05 < figures.density[name] < 0.12
        assert 0.2 < figures.unique[name] / figures.density[name] < 0.8


@pytest.mark.parametrize("name", AGENT_NAMES)
def test_an_agent_is_far_better_than_the_base_in_its_own_domain_and_in_no_other(figures, name):
    scores = figures.scores["test"]
    assert scores[name][name].accuracy > scores[BASE_NAME][name].accuracy + 0.4
    for other in AGENT_NAMES:
        if other != name:
            assert scores[name][other].accuracy < scores[other][other].accuracy - 0.3


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
def test_the_published_accuracies_are_reproduced(zoo, figures, name):
    published = figures.scores["test"][name]
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


def test_completions_in_padded_batches_are_those_of_a_loop_over_single_prompts(zoo):
    model, tokenizer = checkpoint.load(str(zoo / "tool"))
    prompts = [prompt for name in DOMAIN_NAMES for prompt, _ in read_questions(zoo / "eval" / f"{name}.jsonl", 5)]
    expected = [greedy_by_hand(model, tokenizer, prompt) for prompt in prompts]
    for batch_size in (7, 250):
        assert complete(model, tokenizer, prompts, batch_size) == expected, batch_size


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
    for text in ('["a"]\n', '{"prompt": "a", "answer": null}\n', ""):
        (tmp_path / "math.jsonl").write_text(text)
        with pytest.raises(FormatError, match=r"math\.jsonl:1"):
            read_questions(tmp_path / "math.jsonl")
    (tmp_path / "math.jsonl").write_text('{"prompt": "one\u2028line", "answer": "b"}\n')
    assert read_questions(tmp_path / "math.jsonl") == [("one\u2028line", "b")]


@pytest.mark.parametrize("option", [("--limit", "0"), ("--limit", "-5"), ("--batch-size", "0")], ids=str)
def test_no_prompt_is_no_measure(zoo, option):
    with pytest.raises(SystemExit) as refusal:
        main([str(zoo / BASE_NAME), *option])
    assert refusal.value.code == 2


def test_the_command_line_prints_json_and_a_table(zoo, capsys):
    model = str(zoo / "math")
    assert main([model, "--limit", "20", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {name: score["total"] for name, score in printed[model].items()} == dict.fromkeys(DOMAIN_NAMES, 20)
    assert main([model, "--limit", "20"]) == 0
    head, line = capsys.readouterr().out.splitlines()
    assert head.split() == ["model", *DOMAIN_NAMES]
    assert line.split()[0] == model


@pytest.fixture(scope="module")
def base(zoo):
    return checkpoint.load(str(zoo / BASE_NAME))


def test_the_script_trains_base_and_agents_into_loadable_folders(tmp_path):
    assert train.main(["--out", str(tmp_path), "--steps", "2"]) == 0
    for name in (BASE_NAME, *AGENT_NAMES):
        model, report = AutoModelForCausalLM.from_pretrained(tmp_path / name, output_loading_info=True)
        assert not any(report.values())
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert all(parameter.isfinite().all() for parameter in model.parameters())


def test_an_agent_without_a_base_is_refused_before_any_training(tmp_path, capsys):
    with pytest.raises(SystemExit) as refusal:
        train.main(["--out", str(tmp_path), "--only", "math"])
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
