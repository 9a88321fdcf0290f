"""Inputs for any model of transformers, by the names that its forward takes."""

import inspect
from collections.abc import Iterator
from typing import Any

import torch

LENGTH = 6


def candidates(model: Any) -> Iterator[dict[str, Any]]:
    """Keyword arguments that `model` may take, the likeliest first."""
    parameters = inspect.signature(model.forward).parameters
    required = [
        name
        for name, p in parameters.items()
        if p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL) and name in _KNOWN
    ]
    main = getattr(model, "main_input_name", "input_ids")
    mains = main if isinstance(main, list | tuple) else [main]
    first = [*required, *(name for name in mains if name in _KNOWN and name in parameters)]
    extra = [n for n in ("decoder_input_ids", "bbox", "attention_mask") if n in parameters]
    beside = [n for n in ("input_ids", "decoder_input_ids", "bbox") if n in parameters]
    seen: list[set[str]] = []
    for names in (
        [*first, *[e for e in extra if e == "bbox"]],
        [*first, *extra],
        [*first, *beside],
        [*first, *[n for n in ("pixel_values", *extra) if n in parameters]],
        [*beside, *[n for n in ("input_features",) if n in parameters]],
        [n for n in ("input_ids", "attention_mask") if n in parameters],
        [n for n in ("pixel_values",) if n in parameters],
        [n for n in ("input_values",) if n in parameters],
        [n for n in ("input_features", *extra) if n in parameters],
        [n for n in _SERIES if n in parameters],
        [n for n in _STATES if n in parameters],
    ):
        if not names or set(names) in seen or set(names) <= {"attention_mask", "bbox", "decoder_input_ids"}:
            continue
        seen.append(set(names))
        for shape in _SHAPES if {"pixel_values", "input_features", "input_values"} & set(names) else (0,):
            try:
                inputs = {name: _KNOWN[name](model.config, shape) for name in dict.fromkeys(names)}
            except AttributeError:  # the name means something else here
                continue
            yield inputs


_SERIES = ("past_values", "past_time_features", "past_observed_mask")
_STATES = ("states", "actions", "rewards", "returns_to_go", "timesteps", "attention_mask")
_SHAPES = (0, 1, 2, 3)


def _find(config: Any, *names: str, default: Any = None) -> Any:
    """The first of `names` in a configuration or one within it."""
    inner = [v for v in vars(config).values() if hasattr(v, "to_dict")]
    for name in names:
        for at in (config, *inner):
            value = getattr(at, name, None)
            if value is not None:
                return value
    return default


def _ids(config: Any, _shape: int) -> torch.Tensor:
    return torch.arange(20, 20 + LENGTH).unsqueeze(0)


def _image(config: Any, shape: int) -> torch.Tensor:
    size = _find(config, "image_size", "img_size", "input_size", default=32)
    height, width = size if isinstance(size, list | tuple) else (size, size)
    if shape == 1:
        height = width = 64
    channels = _find(config, "num_channels", "in_channels", "in_chans", default=3)
    generator = torch.Generator().manual_seed(1)
    frames = _find(config, "num_frames", "frames_per_clip", default=0)
    if shape == 3:
        height = width = 224
    if shape == 2:
        return torch.randn(1, frames or 2, channels, height, width, generator=generator)
    return torch.randn(1, channels, height, width, generator=generator)


def _features(config: Any, shape: int) -> torch.Tensor:
    names = "num_mel_bins", "n_mels", "input_feat_per_channel", "feature_size", "input_dim", "input_size"
    bins = _find(config, *names, default=80)
    generator = torch.Generator().manual_seed(1)
    length = 2 * _find(config, "max_source_positions", default=32)
    sizes = (1, bins, length), (1, length, bins), (1, bins, 64), (1, 1, 2 * bins, bins)
    return torch.randn(*sizes[shape], generator=generator)


def _values(config: Any, shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    length, bins = _find(config, "max_length", default=32), _find(config, "num_mel_bins", default=80)
    sizes = (1, 4000), (1, 1, 4000), (1, 16, 80), (1, length, bins)
    return torch.randn(*sizes[shape], generator=generator)


def _series(features: int) -> Any:
    def make(config: Any, _shape: int) -> torch.Tensor:
        length = config.context_length + max(config.lags_sequence)
        if features:
            features_of = getattr(config, "num_time_features", 0)
            return torch.ones(1, length, features_of)
        return torch.linspace(0.1, 1, length).unsqueeze(0)

    return make


_KNOWN = {
    "qformer_input_ids": _ids,
    "past_values": _series(0),
    "past_time_features": _series(1),
    "past_observed_mask": _series(0),
    "states": lambda c, s: torch.ones(1, LENGTH, c.state_dim),
    "actions": lambda c, s: torch.ones(1, LENGTH, c.act_dim),
    "rewards": lambda c, s: torch.ones(1, LENGTH, 1),
    "returns_to_go": lambda c, s: torch.ones(1, LENGTH, 1),
    "timesteps": _ids,
    "input_ids": _ids,
    "decoder_input_ids": _ids,
    "attention_mask": lambda c, s: torch.ones(1, LENGTH, dtype=torch.long),
    "bbox": lambda c, s: torch.zeros(1, LENGTH, 4, dtype=torch.long),
    "pixel_values": _image,
    "pixel_values_videos": lambda c, s: _image(c, 2),
    "input_features": _features,
    "input_values": _values,
    "input_audio": _values,
}
