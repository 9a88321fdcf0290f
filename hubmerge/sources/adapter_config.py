"""Reads adapter_config.json of a LoRA adapter in PEFT's format: the settings of W + s·B·A, or why they are refused.

    s = lora_alpha / r, or lora_alpha / √r with use_rslora (arXiv:2312.03732)

A setting that changes the result in any other way (DoRA, shared or replicated layers, an initialisation that also
rewrites the base) is refused by its name. So is every setting that is not known here: an adapter with half of its
settings is another model.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import sqrt
from typing import Any, NoReturn, TypeVar

from hubmerge.errors import FormatError
from hubmerge.text.wording import named, shown

Number = TypeVar("Number", int, float)

WITH_PEFT = "Merge the adapter into its base with PEFT and use the result as an agent."
FOUR_BITS = re.compile(r"(?:-unsloth)?-bnb-4bit$", re.ASCII)  # at the end of a copy's name
_MAX_RANK = 65_536
_MAX_PATTERNS = 10_000
# a name, or the end of one, written as a regular expression; a stranger's other expressions are not run
_PATTERN = re.compile(r"\^?(?:[\w\-]|\\?\.)+", re.ASCII)

_READ = frozenset(
    (
        *("peft_type", "r", "lora_alpha", "use_rslora", "fan_in_fan_out", "rank_pattern", "alpha_pattern"),
        *("base_model_name_or_path", "revision", "init_lora_weights"),
    )
)
# how it was trained, or which modules it has, which the stored tensors show
_NEUTRAL = frozenset(
    (
        *("task_type", "inference_mode", "auto_mapping", "peft_version", "runtime_config", "lora_dropout"),
        *("target_modules", "exclude_modules", "layers_to_transform", "layers_pattern", "modules_to_save", "bias"),
        *("megatron_core", "loftq_config", "eva_config", "qalora_group_size", "ensure_weight_tying"),
        "tied_weights_keys",
    )
)
# ways to draw A and B that leave the base's weights alone
_INITIALISATIONS = (True, False, None, "gaussian", "eva", "orthogonal", "mica")


@dataclass(frozen=True)
class AdapterConfig:
    """The settings that it takes to apply a LoRA adapter."""

    rank: int
    alpha: float
    rslora: bool = False
    fan_in_fan_out: bool = False  # weights stored [in, out], as GPT-2's
    # module name, `^` before a whole one, or end of one → its place in the table, its own value; the first counts
    rank_pattern: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    alpha_pattern: Mapping[str, tuple[int, float]] = field(default_factory=dict)
    base_name: str | None = None  # as the author's machine called the base: a Hub id or a path
    base_revision: str | None = None
    of_base: bool = False  # the Hub says that this is the recipe's base under another name, or a copy of it

    def rank_of(self, module: str) -> int:
        return _own(self.rank_pattern, module, self.rank)

    def scale_of(self, module: str) -> float:
        """s of W + s·B·A."""
        alpha, rank = _own(self.alpha_pattern, module, self.alpha), self.rank_of(module)
        return alpha / (sqrt(rank) if self.rslora else rank)


def _own(patterns: Mapping[str, tuple[int, Number]], module: str, default: Number) -> Number:
    parts: list[str] = module.split(".")
    names = [f"^{module}", *(".".join(parts[n:]) for n in range(len(parts)))]
    return min((patterns[name] for name in names if name in patterns), default=(0, default))[1]


def parse_adapter_config(content: Mapping[str, Any], where: str) -> AdapterConfig:
    """The config of a LoRA adapter; FormatError names every setting that cannot be merged."""
    if content.get("peft_type") != "LORA":
        raise FormatError(
            "an adapter of a kind that cannot be merged",
            where=where,
            expected="LORA",
            got=shown(content.get("peft_type")),
            next_step="If PEFT can merge it into its base, use the result as an agent.",
        )
    refused = [
        f"{ascii(key)[1:-1][:80]}: {shown(value)}"
        for key, value in content.items()
        if key not in _READ | _NEUTRAL and value not in (None, False, 0, "", [], {})
    ]
    initialisation = content.get("init_lora_weights", True)
    if not any(initialisation is known or initialisation == known for known in _INITIALISATIONS):
        refused.append(f"init_lora_weights: {shown(initialisation)} (it changes the base's weights, too)")
    if refused:
        raise FormatError(
            "an adapter with settings that cannot be merged",
            where=where,
            expected="plain LoRA",
            got=named(refused),
            next_step=WITH_PEFT,
        )

    def refuse(key: str, expected: str, got: Any, step: str = "") -> NoReturn:
        raise FormatError(f"a wrong {key}", where=where, expected=expected, got=shown(got), next_step=step)

    def rank(key: str, value: Any) -> int:
        if type(value) is not int or not 1 <= value <= _MAX_RANK:
            refuse(key, f"an integer from 1 to {_MAX_RANK}", value)
        return int(value)

    def number(key: str, value: Any) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= 1e9:
            refuse(key, "a number", value)
        return float(value)

    def given(key: str, kind: type, expected: str) -> Any:
        value = content.get(key)
        if value is not None and not isinstance(value, kind):
            refuse(key, expected, value)
        return value

    def patterns(key: str, read: Callable[[str, Any], Number]) -> dict[str, tuple[int, Number]]:
        table = content.get(key) or {}
        if not isinstance(table, dict) or len(table) > _MAX_PATTERNS:
            refuse(key, f"a table of at most {_MAX_PATTERNS} entries", table)
        if unfit := [pattern for pattern in table if len(pattern) > 256 or not _PATTERN.fullmatch(pattern)]:
            refuse(key, "names of modules or ends of names", unfit[0], WITH_PEFT)
        found: dict[str, tuple[int, Number]] = {}
        for place, (pattern, value) in enumerate(table.items()):
            found.setdefault(pattern.replace("\\.", "."), (place, read(key, value)))
        return found

    return AdapterConfig(
        rank=rank("r", content.get("r", 8)),
        alpha=number("lora_alpha", content.get("lora_alpha", 8)),
        rslora=bool(given("use_rslora", bool, "true or false")),
        fan_in_fan_out=bool(given("fan_in_fan_out", bool, "true or false")),
        rank_pattern=patterns("rank_pattern", rank),
        alpha_pattern=patterns("alpha_pattern", number),
        base_name=given("base_model_name_or_path", str, "text") or None,
        base_revision=given("revision", str, "text") or None,
    )
