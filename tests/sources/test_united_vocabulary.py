"""Agents that each add tokens make a model with all of them, which transformers loads, encodes and decodes."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from hubmerge.cli.main import main

TEXT = ["the agent thinks about the tool and calls it", "a merge of models keeps what each has learned"] * 20


def tokenizer_of(kind: str) -> PreTrainedTokenizerFast:
    special = ["<unk>", "<s>", "</s>"]
    made: Any
    if kind == "bpe":
        made = Tokenizer(models.BPE())
        made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer: Any = trainers.BpeTrainer(vocab_size=300, special_tokens=special)
    elif kind == "unigram":
        made = Tokenizer(models.Unigram())
        made.pre_tokenizer = pre_tokenizers.Metaspace()
        trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=special, unk_token="<unk>")
    else:
        made = Tokenizer(models.WordPiece(unk_token="<unk>"))
        made.pre_tokenizer = pre_tokenizers.Whitespace()
        trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=special)
    made.train_from_iterator(TEXT, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


pytestmark = pytest.mark.usefixtures("one_thread")


class Family:
    """A base and agents that transformers made and extended."""

    def __init__(self, folder: Path, kind: str, *, tied: bool, spare: int = 0) -> None:
        self.folder, self.kind = folder, kind
        self.tokenizer = tokenizer_of(kind)
        torch.manual_seed(0)
        self.rows = len(self.tokenizer) + spare
        config = LlamaConfig(
            vocab_size=self.rows, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
            num_key_value_heads=2, tie_word_embeddings=tied,
        )  # fmt: skip
        self.model = LlamaForCausalLM(config)
        self.base = self.saved("base", self.model, self.tokenizer)

    def saved(self, name: str, model: Any, tokenizer: Any) -> Path:
        folder = self.folder / name
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        (folder / "README.md").write_text("---\nlicense: mit\n---\n")
        return folder

    def agent(self, name: str, tokens: list[str], *, special: bool = False, pad_to: int | None = None) -> Path:
        model = AutoModelForCausalLM.from_pretrained(self.base)
        tokenizer = AutoTokenizer.from_pretrained(self.base)
        tokenizer.add_tokens(tokens, special_tokens=special)
        if len(tokenizer) > self.rows or pad_to:
            model.resize_token_embeddings(len(tokenizer), pad_to_multiple_of=pad_to, mean_resizing=False)
        torch.manual_seed(len(name) + sum(map(ord, name)))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += 0.01 * torch.randn_like(parameter) * (torch.rand_like(parameter) < 0.3)
        return self.saved(name, model, tokenizer)

    def merged(self, *agents: Path, **recipe: Any) -> Path:
        path = self.folder / "recipe.yaml"
        content = {"base": str(self.base), "agents": [str(a) for a in agents], "method": "ram", **recipe}
        path.write_text(json.dumps(content))
        assert main(["merge", str(path), "--out", str(self.folder / "out")]) == 0
        return self.folder / "out"


def rows_of(folder: Path, token: str) -> torch.Tensor:
    """A token's rows of embedding and head [2, width], looked up with the folder's own tokenizer."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    return rows_in(model, AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(token))


def rows_in(model: Any, number: int) -> torch.Tensor:
    tables = model.get_input_embeddings(), model.get_output_embeddings()
    return torch.stack([table.weight[number].detach() for table in tables])


@pytest.mark.parametrize(("kind", "tied"), [("bpe", True), ("unigram", False), ("wordpiece", False)])
def test_the_tokens_of_all_agents_are_in_the_result_with_their_rows(tmp_path, kind, tied):
    family = Family(tmp_path, kind, tied=tied)
    one = family.agent("one", ["<think>", "</think>", "<both>"], special=True)
    two = family.agent("two", ["<call>", "<both>"])
    out = family.merged(one, two)
    tokenizer = AutoTokenizer.from_pretrained(out)
    names = ["<think>", "</think>", "<both>", "<call>"]
    first = len(family.tokenizer)
    assert tokenizer.convert_tokens_to_ids(names) == [first, first + 1, first + 2, first + 3]
    ids = tokenizer("<think>the tool</think><call>it<both>", add_special_tokens=False).input_ids
    assert [i for i in ids if i >= first] == [first, first + 1, first + 3, first + 2]
    plain = tokenizer("the agent calls it", add_special_tokens=False).input_ids
    assert plain == family.tokenizer("the agent calls it", add_special_tokens=False).input_ids
    assert "<think>" not in tokenizer.decode(ids, skip_special_tokens=True)
    assert "<call>" in tokenizer.decode(ids, skip_special_tokens=True)
    model = AutoModelForCausalLM.from_pretrained(out)
    assert model.config.vocab_size == model.get_input_embeddings().weight.shape[0] == first + 4
    assert model.get_output_embeddings().weight.shape[0] == first + 4
    model(torch.tensor([ids]))
    for token, holder in (("<think>", one), ("</think>", one), ("<call>", two)):
        assert torch.equal(rows_of(out, token), rows_of(holder, token)), token
    assert torch.equal(rows_of(out, "<both>"), (rows_of(one, "<both>") + rows_of(two, "<both>")) / 2)
    warnings = json.loads((out / "hubmerge.json").read_text())["warnings"]
    assert any("several agents add tokens" in w and "1 that several have" in w for w in warnings)
    assert not any("tokenizer.json differs" in w for w in warnings)


def test_tokens_that_fit_into_spare_rows_of_the_base_get_rows_of_their_own(tmp_path):
    family = Family(tmp_path, "wordpiece", tied=False, spare=2)
    first = len(family.tokenizer)
    one = family.agent("one", ["<a>", "<b>", "<c>"])
    two, three = family.agent("two", ["<d>", "<e>", "<f>"]), family.agent("three", ["<z>"])  # three does not grow
    out = family.merged(one, two, three)
    tokenizer = AutoTokenizer.from_pretrained(out)
    names = ["<a>", "<b>", "<c>", "<d>", "<e>", "<f>", "<z>"]
    assert tokenizer.convert_tokens_to_ids(names) == list(range(first, first + 7))
    for token, holder in zip(names, (one, one, one, two, two, two, three), strict=True):
        assert torch.equal(rows_of(out, token), rows_of(holder, token)), token


def test_rows_that_only_pad_are_not_taken_over(tmp_path):
    family = Family(tmp_path, "wordpiece", tied=True)
    out = family.merged(family.agent("one", ["<a>"], pad_to=64), family.agent("two", ["<b>"], pad_to=32))
    assert AutoModelForCausalLM.from_pretrained(out).config.vocab_size == len(family.tokenizer) + 2
    assert len(AutoTokenizer.from_pretrained(out)) == len(family.tokenizer) + 2


@pytest.mark.filterwarnings("ignore:Setting `save_embedding_layers`:UserWarning")
@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize(
    "more",
    [{}, {"modules_to_save": ["embed_tokens", "lm_head"]}, {"target_modules": ["embed_tokens", "lm_head"]}],
    ids=["plain", "saved", "adapted"],
)
@pytest.mark.parametrize("others", [["<call>"], []], ids=["other-rows", "base-rows"])
def test_an_adapter_that_peft_saved_with_its_new_rows_takes_part(tmp_path, more, others):
    peft = pytest.importorskip("peft")
    family = Family(tmp_path, "wordpiece", tied=False)
    tokenizer = AutoTokenizer.from_pretrained(family.base)
    tokenizer.add_tokens(["<tool>"])
    model = AutoModelForCausalLM.from_pretrained(family.base)
    model.resize_token_embeddings(len(tokenizer), mean_resizing=False)
    config = peft.LoraConfig(**{"r": 2, "target_modules": ["q_proj"], "init_lora_weights": False, **more})
    wrapped = peft.get_peft_model(model, config)
    adapter = family.saved("adapter", wrapped, tokenizer)
    rows = rows_in(wrapped.merge_and_unload(), len(tokenizer) - 1)
    out = family.merged(adapter, family.agent("two", others))
    torch.testing.assert_close(rows_of(out, "<tool>"), rows)
