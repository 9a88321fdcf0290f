"""The model under evaluation, in lighteval's model classes. Only the evaluating process imports this.

transformers fills tensors that a checkpoint lacks with random numbers and only logs it; here such a checkpoint does not
load. Decoding is always greedy: of what a repo says of it, only the tokens that end an answer count.
"""

import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from lighteval.models.transformers.transformers_model import TransformersModel, TransformersModelConfig
from lighteval.models.utils import _get_dtype
from lighteval.tasks.prompt_manager import PromptManager
from lighteval.tasks.requests import Doc
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from hubmerge.errors import DeviceError, EvaluationError, HubmergeError
from hubmerge.evaluation.fit import SHARE_OF_CACHE, Weights, fitting_dtype
from hubmerge.evaluation.templates import check_template, rendered
from hubmerge.isolation.in_child import first_line, ran_out_of_memory
from hubmerge.machine.disk_errors import of_disk

MODEL_FOLDER = "model"  # relative: lighteval builds paths from the model's name


class StrictModel(TransformersModel):  # type: ignore[misc]  # lighteval has no types
    """lighteval's model, from a checkpoint that holds every tensor of its architecture."""

    def _create_auto_model(self) -> Any:
        parallel, max_memory, device_map = self.init_model_parallel(self.config.model_parallel)
        self.config.model_parallel = parallel
        model, report = AutoModelForCausalLM.from_pretrained(
            self.config.model_name,
            dtype=_get_dtype(self.config.dtype),
            max_memory=max_memory,
            device_map=device_map,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
        wrong = {kind: sorted(map(str, report[kind])) for kind in ("missing_keys", "mismatched_keys") if report[kind]}
        if wrong:
            raise EvaluationError(
                "the checkpoint does not hold the tensors of its own config.json",
                got="; ".join(f"{kind.replace('_', ' ')}: {', '.join(keys[:5])}" for kind, keys in wrong.items()),
                next_step="Without them the scores would be those of random numbers.",
            )
        return _greedy(model.eval(), self.tokenizer.eos_token_id)


def _greedy(model: Any, end: int | None) -> Any:
    """The model without the penalties, beams and the like that its config.json may name, and with every token at which
    it ends an answer; lighteval asks with the tokenizer's alone."""
    stated = model.generation_config.eos_token_id
    ends = {end, *(stated if isinstance(stated, list) else [stated])} - {None}
    model.generation_config = GenerationConfig()
    generate = model.generate
    model.generate = lambda **asked: generate(**{**asked, "eos_token_id": sorted(ends)})
    return model


def with_fitting_dtype(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """The spec with the dtype in which the model fits on this GPU; on the CPU the parent has chosen it already."""
    if spec["device"] != "cuda" or not torch.cuda.is_available():
        return spec
    weights = Weights(**spec["weights"])
    return {**spec, "dtype": fitting_dtype(weights, spec["dtype"], torch.cuda.mem_get_info()[1], hardware("cuda"))}


def load_model(spec: Mapping[str, Any]) -> Any:
    """The model in MODEL_FOLDER of the working directory; EvaluationError when it cannot be loaded."""
    if spec["device"] == "cuda" and not torch.cuda.is_available():
        raise DeviceError("there is no CUDA device here", next_step="Evaluate on the CPU: --device cpu.")
    try:
        # before the weights, which take long
        check_template(AutoTokenizer.from_pretrained(MODEL_FOLDER, trust_remote_code=False, local_files_only=True))
        model = _transformers(spec)
        if model.tokenizer.eos_token is None:
            raise EvaluationError("the tokenizer has no end-of-sequence token", expected="eos_token", got="none")
    except HubmergeError:
        raise
    except Exception as error:  # a stranger's files: any error of the libraries means the same, but for the machine's
        if ran_out_of_memory(error) or of_disk(error):
            raise
        got = f"{type(error).__name__}: {first_line(error)}"
        raise EvaluationError("the model does not load", got=got, next_step="Check its files.") from error
    return model


def _transformers(spec: Mapping[str, Any]) -> Any:
    config = TransformersModelConfig(
        model_name=MODEL_FOLDER,
        batch_size=spec["batch_size"],
        dtype=spec["dtype"],
        cache_dir=spec["cache"],
        device=spec["device"],
        generation_parameters={"temperature": 0, "seed": 0},
    )
    own = config.get_transformers_config().get_text_config()
    named = (getattr(own, name, None) for name in ("n_positions", "max_position_embeddings", "n_ctx"))
    limits = (n for n in (*named, spec["max_model_len"]) if isinstance(n, int) and n > 0)  # XLNet names -1
    config.max_length = min(limits, default=2048)
    return StrictModel(config)


def batch_tokens(model: Any, spec: Mapping[str, Any]) -> int | None:
    """How many tokens, prompts and answers together, a batch may have; None where the model's config
    does not say what a token takes.

    The limit is the memory for keys and values, which grows with every token. They may take a quarter of the run's
    memory, beside weights, activations and logits. It is computed from the machine's size, not from what is free now,
    so that a resumed run makes the same batches.
    """
    per_token = _bytes_of_a_token(model)
    if per_token is None:
        return None  # the number of prompts alone bounds a batch
    return max(1, int(SHARE_OF_CACHE * _memory_bytes(spec) / per_token))


def require_room_for(tokens: int, model: Any, spec: Mapping[str, Any], where: str) -> None:
    """DeviceError where the keys and values of one prompt with its answer do not fit beside the weights."""
    per_token = _bytes_of_a_token(model)
    if per_token is None:
        return
    most = max(0, _memory_bytes(spec) - model.model.get_memory_footprint()) // per_token
    if tokens > most:
        raise DeviceError(
            "this machine's memory cannot hold a prompt of the task",
            where=where,
            expected=f"at most {most:,} tokens with the answer",
            got=f"{tokens:,}",
            next_step="Evaluate it on a machine with more memory, or by a suite of shorter prompts.",
        )


def _memory_bytes(spec: Mapping[str, Any]) -> int:
    return int(torch.cuda.mem_get_info()[1] if spec["device"] == "cuda" else spec["memory_bytes"])


def _bytes_of_a_token(model: Any) -> int | None:
    """Of its keys and values; None where the model's config does not say it."""
    config = model.model.config.get_text_config()
    layers, width = getattr(config, "num_hidden_layers", None), getattr(config, "hidden_size", None)
    heads = getattr(config, "num_attention_heads", None)
    if not (isinstance(layers, int) and isinstance(width, int)):
        return None
    if isinstance(heads, int) and heads > 0:
        own = getattr(config, "num_key_value_heads", None)
        width = (own if isinstance(own, int) else heads) * (getattr(config, "head_dim", None) or width // heads)
    return max(1, int(2 * layers * width * model.model.dtype.itemsize))


class RenderedPrompts(PromptManager):  # type: ignore[misc]
    """Prompts of one task, each rendered once; by a chat template in a process of its own (templates.py)."""

    def __init__(self, model: Any, *, chat: bool) -> None:
        super().__init__(use_chat_template=chat, tokenizer=model.tokenizer)
        self._texts: dict[str, str] = {}

    def prepare_prompt(self, doc: Doc) -> str:
        return self.prepare_prompts([doc])[doc.id]

    def prepare_prompts(self, docs: Sequence[Doc]) -> dict[str, str]:
        """The prompt of every question by its id."""
        missing = [doc for doc in docs if doc.id not in self._texts]
        prepare = super().prepare_prompt
        texts = rendered(prepare, missing) if self.use_chat_template else list(map(prepare, missing))
        self._texts |= {doc.id: text for doc, text in zip(missing, texts, strict=True)}
        return {doc.id: self._texts[doc.id] for doc in docs}


def hardware(device: str) -> str:
    """The device in words."""
    if device == "cuda":
        names = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        return ", ".join(dict.fromkeys(names)) + (f" × {len(names)}" if len(names) > 1 else "")
    info = Path("/proc/cpuinfo")  # of Linux alone
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return f"CPU: {next(models, platform.machine())}, {torch.get_num_threads()} threads"
