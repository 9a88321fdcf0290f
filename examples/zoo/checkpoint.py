"""The zoo's model on disk: a Llama of some 170,000 parameters with a tokenizer of whole words, in bfloat16.

Llama and not Qwen2: transformers 5.23 ignores `tokenizer_class` for `model_type: qwen2` and silently loads
another tokenizer. `load` goes through AutoModelForCausalLM and AutoTokenizer, as any user of the zoo would,
and refuses a checkpoint whose keys do not match the architecture, which transformers itself only logs.
"""

import copy
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
)

from examples.zoo.domains import BOS, EOS, PAD, UNKNOWN, vocabulary
from hubmerge.errors import FormatError, SourceNotFoundError

MAX_POSITIONS = 128


def new_model(seed: int) -> Any:
    """A freshly initialised LlamaForCausalLM in float32."""
    words = vocabulary()
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        intermediate_size=192,
        attention_bias=True,
        initializer_range=0.1,  # about 1/sqrt(hidden size); the usual 0.02 learns far slower at this width
        tie_word_embeddings=True,
        max_position_embeddings=MAX_POSITIONS,
        pad_token_id=words.index(PAD),
        bos_token_id=words.index(BOS),
        eos_token_id=words.index(EOS),
    )
    torch.manual_seed(seed)
    return LlamaForCausalLM(config)


def new_tokenizer() -> Any:
    """A PreTrainedTokenizerFast: one token per word, <bos> in front, padding on the left."""
    words = vocabulary()
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A $B:1", special_tokens=[(BOS, words.index(BOS))]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        bos_token=BOS,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )


def save(model: Any, folder: Path) -> None:
    """Write model (rounded to bfloat16) and tokenizer in the transformers format."""
    folder.mkdir(parents=True, exist_ok=True)
    copy.deepcopy(model).to(torch.bfloat16).save_pretrained(folder)
    new_tokenizer().save_pretrained(folder)


def load(path_or_id: str, *, dtype: str = "float32") -> tuple[Any, Any]:
    """(model in eval mode, tokenizer) of a local folder or a Hub repo, safetensors only."""
    try:
        model, report = AutoModelForCausalLM.from_pretrained(
            path_or_id, dtype=getattr(torch, dtype), use_safetensors=True, output_loading_info=True
        )
        tokenizer = AutoTokenizer.from_pretrained(path_or_id)
    except (OSError, ValueError) as error:
        got = str(error).splitlines()[0].rstrip(".")
        if isinstance(error, OSError):
            what, expected = "no model that transformers can read", "a local folder or a Hub id"
            expected += " with config.json, model.safetensors and tokenizer.json"
            raise SourceNotFoundError(what, where=path_or_id, expected=expected, got=got) from error
        what, expected = "not a model of a kind that transformers knows", "a config.json with a known model_type"
        raise FormatError(what, where=path_or_id, expected=expected, got=got) from error
    wrong = {kind: sorted(map(str, report[kind])) for kind in report if report[kind]}
    if wrong:
        raise FormatError(
            "the checkpoint does not fit its own config.json",
            where=path_or_id,
            expected="exactly the tensors of the architecture",
            got="; ".join(f"{kind}: {', '.join(keys[:5])}" for kind, keys in wrong.items()),
            next_step="Write the checkpoint again with save_pretrained.",
        )
    return model.eval(), tokenizer
