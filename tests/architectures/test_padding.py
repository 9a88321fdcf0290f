"""Which architectures answer in a padded batch as they do alone, and which see what follows a token, in transformers
with small random weights."""

import random

import pytest
import torch
from tiny import tiny_config
from tiny_exceptions import CHANGES
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.models.auto.configuration_auto import model_type_to_module_name
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from hubmerge.evaluation.runner import ASKED_ALONE, ENCODERS

pytestmark = pytest.mark.usefixtures("one_thread")
# no small configuration, or one that needs more than a prompt
NOT_BUILT = {
    *("blt", "cohere_compass_text", "dots3_note", "gemma3n", "gemma4_assistant", "gemma4_unified_assistant"),
    *("hrm_text", "longcat_flash", "musicgen", "musicgen_melody", "qwen4_exp", "qwen4_exp_text"),
    *("xlstm", "xmod", "zamba", "zamba2"),
}
NEEDED = {"recurrent_gemma": {"num_hidden_layers": 3}, "reformer": {"is_decoder": True}}
LENGTHS = (40, 25, 9, 3)


def answers(model: torch.nn.Module, prompts: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
    """Six tokens for every prompt, and their logits."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    plain = {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    made = model.generate(  # type: ignore[operator]
        input_ids=ids, attention_mask=mask, output_logits=True, return_dict_in_generate=True, **plain
    )
    return made.sequences[:, longest:], torch.stack(made.logits, 1)


def small(model_type: str) -> torch.nn.Module:
    changes = CHANGES.get(model_type_to_module_name(model_type), {})
    config = tiny_config(model_type, changes | NEEDED.get(model_type, {}))
    for part in (config, config.get_text_config()):
        for window in ("sliding_window", "attention_chunk_size", "window_size"):
            if isinstance(getattr(part, window, None), int):
                setattr(part, window, 8)
    torch.manual_seed(0)
    model: torch.nn.Module = AutoModelForCausalLM.from_config(config).eval().float()
    with torch.no_grad():
        for weight in model.parameters():  # so that answers follow from their prompts
            if weight.ndim > 1 and weight.std() < 0.05:
                weight.mul_(4)
        for part in model.modules():
            if isinstance(part, torch.nn.Embedding) and part.padding_idx == 0:
                part.weight[0].normal_(std=float(part.weight.std()))  # which is 0 where nobody trained it
    model.generation_config = GenerationConfig()
    return model


def is_told_from_padding(model_type: str) -> bool:
    model = small(model_type)
    draw = random.Random(1)
    prompts = [[draw.randrange(3, 90) for _ in range(length)] for length in LENGTHS]
    tokens, logits = answers(model, prompts)
    for k, prompt in enumerate(prompts):
        [own], [expected] = answers(model, [prompt])
        same = int((own == tokens[k]).int().cumprod(0).sum()) + 1  # another token makes others of all that follow
        if not torch.allclose(expected[:same], logits[k, :same], atol=0.02 * float(expected.std())):
            return False
    return True


def test_every_architecture_that_padding_changes_is_asked_one_prompt_at_a_time():
    """And no other; a decoder of a model with an encoder has positions that count the padding."""
    types = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - NOT_BUILT
    assert {t for t in types if not is_told_from_padding(t)} == ASKED_ALONE - NOT_BUILT
    assert len(types) > 170


def reads_on(model_type: str) -> bool:
    model, prompts = small(model_type), torch.tensor([[*range(5, 12), last] for last in (20, 40)])
    with torch.no_grad():
        one, other = model(input_ids=prompts, use_cache=False).logits[:, :-1]
    return not torch.allclose(one, other, atol=1e-3 * float(one.std()))


def test_every_architecture_that_reads_what_follows_a_token_is_an_encoder_or_generates_in_a_way_of_its_own():
    types = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - NOT_BUILT
    assert {t for t in types if reads_on(t)} == ENCODERS - NOT_BUILT | {"cpmant", "xlm", "xlnet"}
