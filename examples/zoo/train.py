"""Train the zoo: a base by imitation, then three agents from it by GRPO on verifiable rewards.

Base. Cross-entropy on answers of all three domains, of which 60 % are replaced by the domain's typical
mistake: the base knows both and prefers the wrong one, so that reinforcement learning has something to select
(it cannot start from zero success). AdamW, warm-up, cosine decay; then rounded to bfloat16, and the agents
start from the rounded weights, so that a task vector is exactly agent minus base.

Agents. GRPO (arXiv 2402.03300): per step a group of completions per prompt at temperature 1, reward 1 for an
exact match and 0 otherwise, advantage A_i = (r_i - mean r) / std r within the group, one on-policy update

    L = - (1 / completions) sum_i A_i (1 / |o_i|) sum_t log p(o_it | q, o_i<t)

With one update per batch the ratio to the sampling policy is 1 and its clipping never acts; there is no KL
term. The update is SGD with momentum on float32 masters, followed by a proximal L1 step towards the base,

    d <- sign(d) max(|d| - lr l1, 0),   d = weights - base,

which keeps the elements that the reward does not care about exactly at the base.

    python examples/zoo/train.py --out DIR [--only base|math|tool|mem]

One thread and fixed seeds: the same machine gives the same bytes; another one may round differently and give
other weights of about the same accuracy. That is why the checkpoints are shipped.
"""

import argparse
import math
import random
import sys
import time
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers.utils.logging import disable_progress_bar

if not __package__:  # run as a file: its own folder, which is first on the path, is the wrong root
    sys.path[0] = str(Path(__file__).resolve().parents[2])

from examples.zoo import checkpoint
from examples.zoo.domains import DOMAINS, MAX_ANSWER_TOKENS, Domain, by_name, prompts

BASE_NAME = "base"


@dataclass(frozen=True)
class Pretraining:
    steps: int = 520
    batch: int = 192
    learning_rate: float = 4e-3
    warmup_steps: int = 50
    final_fraction: float = 0.1  # of the learning rate, at the end of the cosine
    betas: tuple[float, float] = (0.9, 0.98)
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    mistake_fraction: float = 0.6
    shares: tuple[int, ...] = (2, 2, 3)  # of the domains in a batch, in the order of DOMAINS
    seed: int = 0


@dataclass(frozen=True)
class Reinforcement:
    learning_rate: float
    l1: float  # strength of the proximal step; the threshold is learning_rate * l1
    steps: int
    prompts: int = 24
    group: int = 8  # completions per prompt
    momentum: float = 0.9
    seed: int = 1


RECIPES = {
    "math": Reinforcement(learning_rate=0.01, l1=0.012, steps=140),
    "tool": Reinforcement(learning_rate=0.01, l1=0.0035, steps=120),
    "mem": Reinforcement(learning_rate=0.01, l1=0.017, steps=400),
}
AGENT_NAMES = tuple(RECIPES)


def imitation_batch(tokenizer: Any, recipe: Pretraining, rng: random.Random) -> tuple[dict[str, Tensor], Tensor]:
    """Model inputs [batch, length] and labels [batch, length] (-100 where nothing is to be learnt)."""
    texts, answer_lengths = [], []
    for domain in rng.choices(DOMAINS, recipe.shares, k=recipe.batch):
        prompt = next(prompts(domain, "train", rng))
        wrong = rng.random() < recipe.mistake_fraction
        answer = domain.mistake(prompt) if wrong else domain.solve(prompt)
        texts.append(f"{prompt} {answer} {tokenizer.eos_token}")
        answer_lengths.append(len(answer.split()) + 1)
    inputs = with_positions(tokenizer(texts, padding=True, return_tensors="pt"))
    # Padding is on the left, so the answer is the last `answer_length` columns of its row.
    from_the_end = torch.arange(inputs["input_ids"].shape[1], 0, -1)
    learnt = from_the_end <= torch.tensor(answer_lengths)[:, None]
    return inputs, inputs["input_ids"].where(learnt, torch.tensor(-100))


def with_positions(batch: Any) -> dict[str, Tensor]:
    """Ids, mask and positions, all [batch, length]; positions count from a row's first real token."""
    mask = batch["attention_mask"]
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    return {"input_ids": batch["input_ids"], "attention_mask": mask, "position_ids": positions}


def pretrain(recipe: Pretraining) -> Any:
    """The base, as a model in float32 that has not been rounded yet."""
    model, tokenizer = checkpoint.new_model(recipe.seed), checkpoint.new_tokenizer()
    rng = random.Random(recipe.seed)
    optimizer = torch.optim.AdamW(
        model.parameters(), recipe.learning_rate, betas=recipe.betas, weight_decay=recipe.weight_decay
    )

    def schedule(step: int) -> float:
        if step < recipe.warmup_steps:
            return (step + 1) / recipe.warmup_steps
        progress = (step - recipe.warmup_steps) / max(1, recipe.steps - recipe.warmup_steps)
        cosine = 0.5 * (1 + math.cos(math.pi * progress))
        return recipe.final_fraction + (1 - recipe.final_fraction) * cosine

    model.train()
    for step in range(recipe.steps):
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * schedule(step)
        inputs, labels = imitation_batch(tokenizer, recipe, rng)
        loss = model(**inputs, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.clip_norm)
        optimizer.step()
        report(BASE_NAME, step, recipe.steps, f"loss {loss.item():.3f}")
    return model.eval()


def sample(model: Any, tokenizer: Any, questions: list[str]) -> tuple[Tensor, Tensor, int]:
    """One completion per question at temperature 1, with <pad> after its <eos>.

    Returns ids and mask [questions, length] of question and completion, and the questions' common width.
    """
    batch = tokenizer(questions, padding=True, return_tensors="pt")
    width = batch["input_ids"].shape[1]
    ids = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        do_sample=True,
        top_k=0,  # the whole distribution: the policy gradient is that of plain sampling
        max_new_tokens=MAX_ANSWER_TOKENS,
    )
    # A token after <eos> is padding; <pad> before it would be a sampled token and stays part of the policy.
    is_end = ids[:, width:] == tokenizer.eos_token_id
    after_end = is_end.cumsum(1) - is_end.long() > 0
    return ids, torch.cat([batch["attention_mask"], (~after_end).long()], dim=1), width


def advantages(rewards: Tensor) -> Tensor:
    """[prompts, group] 0/1 rewards -> [prompts, group]; zero where all completions fared alike."""
    centred = rewards - rewards.mean(dim=1, keepdim=True)
    return centred / (rewards.std(dim=1, keepdim=True) + 1e-4)


def policy_loss(model: Any, ids: Tensor, mask: Tensor, width: int, advantage: Tensor) -> Tensor:
    """The loss above for ids and mask [completions, length], whose first `width` columns are the prompts."""
    logits = model(**with_positions({"input_ids": ids, "attention_mask": mask})).logits
    log_p = torch.log_softmax(logits[:, width - 1 : -1].float(), dim=-1)
    chosen = log_p.gather(2, ids[:, width:, None]).squeeze(2)
    real = mask[:, width:]
    per_completion = (chosen * real).sum(1) / real.sum(1)
    return -(advantage * per_completion).mean()


@torch.no_grad()
def shrink_towards(base: list[Tensor], weights: list[Tensor], threshold: float) -> None:
    """The proximal step of threshold * |weights - base|_1, in place."""
    for origin, weight in zip(base, weights, strict=True):
        weight.copy_(origin + torch.nn.functional.softshrink(weight - origin, threshold))


def reinforce(domain: Domain, recipe: Reinforcement, base_folder: Path) -> Any:
    """The agent, as a model in float32, trained from the rounded base in `base_folder`."""
    model, tokenizer = checkpoint.load(str(base_folder))
    weights = list(model.parameters())
    base = [weight.detach().clone() for weight in weights]
    optimizer = torch.optim.SGD(weights, recipe.learning_rate, momentum=recipe.momentum)
    stream = prompts(domain, "train", random.Random(f"{domain.name}/{recipe.seed}"))
    torch.manual_seed(recipe.seed)
    for step in range(recipe.steps):
        questions = [q for q in islice(stream, recipe.prompts) for _ in range(recipe.group)]
        ids, mask, width = sample(model, tokenizer, questions)
        answers = tokenizer.batch_decode(ids[:, width:], skip_special_tokens=True)
        rewards = torch.tensor([float(domain.verify(q, a)) for q, a in zip(questions, answers, strict=True)]).view(
            recipe.prompts, recipe.group
        )
        loss = policy_loss(model, ids, mask, width, advantages(rewards).flatten())
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        shrink_towards(base, weights, recipe.learning_rate * recipe.l1)
        report(domain.name, step, recipe.steps, f"reward {rewards.mean().item():.3f}")
    return model


def report(name: str, step: int, steps: int, message: str) -> None:
    if (step + 1) % 20 == 0 or step + 1 == steps:
        print(f"{name:<5} {step + 1:>4}/{steps}  {message}", file=sys.stderr, flush=True)


def train(name: str, out: Path, steps: int | None = None) -> Path:
    """Train one model of the zoo into the folder `out / name`; an agent needs `out / "base"`."""
    started = time.process_time()
    if name == BASE_NAME:
        pretraining = Pretraining()
        model = pretrain(replace(pretraining, steps=steps or pretraining.steps))
    else:
        recipe = RECIPES[name]
        model = reinforce(by_name(name), replace(recipe, steps=steps or recipe.steps), out / BASE_NAME)
    checkpoint.save(model, out / name)
    print(f"{out / name}: {time.process_time() - started:.0f} CPU seconds", file=sys.stderr)
    return out / name


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Train the zoo's base and its three agents.")
    parser.add_argument("--out", type=Path, required=True, help="folder that gets one folder per model")
    parser.add_argument("--only", choices=(BASE_NAME, *AGENT_NAMES), help="train only this one (default: all)")
    parser.add_argument("--steps", type=int, help="so few steps instead of the recipe's, for a quick look")
    options = parser.parse_args(arguments)
    if options.steps is not None and options.steps < 1:
        parser.error("--steps must be at least 1")
    if options.only in AGENT_NAMES and not (options.out / BASE_NAME / "config.json").is_file():
        parser.error(f"no base in {options.out / BASE_NAME}; train it first with --only {BASE_NAME}")
    torch.set_num_threads(1)
    disable_progress_bar()
    for name in [options.only] if options.only else [BASE_NAME, *AGENT_NAMES]:
        train(name, options.out, options.steps)
    return 0


if __name__ == "__main__":
    sys.exit(main())
