"""Every architecture that transformers builds from a configuration, small: a few thousand to a few hundred thousand
parameters.

A default configuration is shrunk by the names of its keys, nested tables too; what that does not reach stands in
tiny_exceptions.py, with the reason.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from transformers.models.auto import modeling_auto
from transformers.models.auto.configuration_auto import CONFIG_MAPPING, model_type_to_module_name

WIDTH = 32
HEADS = 4
VOCABULARY = 160

# what a family is known by, first
TASKS = (
    *("IMAGE_TEXT_TO_TEXT", "SPEECH_SEQ_2_SEQ", "SEQ_TO_SEQ_CAUSAL_LM", "TEXT_TO_WAVEFORM", "TEXT_TO_SPECTROGRAM"),
    *("MASKED_LM", "CAUSAL_LM", "MULTIMODAL_LM", "CTC", "RNNT", "TDT", "PRETRAINING", "ZERO_SHOT_IMAGE_CLASSIFICATION"),
    *("ZERO_SHOT_OBJECT_DETECTION", "IMAGE_CLASSIFICATION", "OBJECT_DETECTION", "UNIVERSAL_SEGMENTATION"),
    *("SEMANTIC_SEGMENTATION", "INSTANCE_SEGMENTATION", "DEPTH_ESTIMATION", "MASK_GENERATION", "IMAGE_TO_IMAGE"),
    *("IMAGE_MATTING", "KEYPOINT_DETECTION", "KEYPOINT_MATCHING", "POSE_ESTIMATION", "VIDEO_CLASSIFICATION"),
    *("AUDIO_CLASSIFICATION", "TABLE_RECOGNITION", "TEXT_RECOGNITION", "TIME_SERIES_PREDICTION"),
    *("TIME_SERIES_CLASSIFICATION", "RETRIEVAL", "SEQUENCE_CLASSIFICATION", "QUESTION_ANSWERING", "", "BACKBONE"),
)


def families() -> dict[str, tuple[str, str, str]]:
    """Family (transformers' folder) → its model type, the name of its class, and the task of that."""
    found: dict[str, tuple[str, str, str]] = {}
    for task in TASKS:
        mapping = f"MODEL_FOR_{task}_MAPPING_NAMES" if task else "MODEL_MAPPING_NAMES"
        for model_type, names in getattr(modeling_auto, mapping).items():
            family = model_type_to_module_name(model_type)
            name = names[0] if isinstance(names, tuple | list) else names
            known = found.get(family)
            # of several model types of one folder, the one that has its name
            better = known is not None and known[2] == task and model_type.replace("-", "_") == family
            if known is None or better:
                found[family] = (model_type, name, task)
    return dict(sorted(found.items()))


_LEFT = r"num_feat_extract_layers|num_adapter_layers|vision_feature_layer|num_conv_layers"
_RULES: tuple[tuple[str, Any], ...] = (
    (r"(num_)?(kv|key_value)_heads|num_key_value_heads|.*num_key_value_heads|.*_kv_heads|n_kv_heads", 2),
    (r".*heads?|n_head|.*num_heads|.*attention_heads", HEADS),
    (r"(.*_)?head_dim|d_kv|.*_head_size|head_size|attention_head_dim|.*head_dim|rotary_dim|rope_dim", 8),
    (r"(.*_)?vocab_size|vocab_size_.*|num_embeddings", VOCABULARY),
    (r"(.*_)?(max_position_embeddings|n_positions|max_source_positions|max_target_positions|n_ctx|max_seq_len)", 64),
    (r"(.*_)?(num_hidden_layers|n_layers?|num_layers|num_blocks|depth|n_blocks)|(.*_)?layers", 2),
    (r"(.*_)?(num_experts|n_routed_experts|num_local_experts|moe_num_experts|num_total_experts)", 4),
    (r"(.*_)?(num_experts_per_tok|moe_topk|num_selected_experts|top_k_experts|moe_top_k|experts_per_token|moe_k)", 2),
    (r"n_group|topk_group|num_expert_group", 1),
    (r".*upsample_groups", WIDTH),
    (
        r"(.*_)?(intermediate_size|ffn_dim|d_ff|ffn_hidden_size|inner_dim|mlp_dim|n_inner|.*intermediate_size)",
        2 * WIDTH,
    ),
    (
        r"(.*_)?(hidden_size|d_model|embed_dim|embedding_size|hidden_dim|n_embd|width|projection_dim|dim|d_embed"
        r"|embedding_dim|proj_dim|channels|hidden_channels|conv_dim|feature_size|d_proj|projector_dim|out_dim|hidden_sizes"
        r"|embed_dims|output_dim|input_dim|in_features|dims|feature_dim|latent_dim|num_feature|size_per_layer_input"
        r"|proj_size|codebook_dim|emb_dim|dim_.*|.*_rank|lora_rank|lru_width)",
        WIDTH,
    ),
    (r"num_filters", 8),
    (r"base_channels", WIDTH),
    (r"image_size|img_size|input_size|.*_image_size", 32),
    (r"(.*_)?patch_size", 8),
    (r"(.*_)?sliding_window|attention_window|.*_window_size|window_size", 8),
)


# lists of this many layers or more have an entry for each layer
_MANY = 3
# these follow from others, and are filled in again
_DERIVED = ("out_features", "out_indices", "_out_features", "_out_indices", "stage_names", "per_layer_config")


def shrunk(table: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration's table with small numbers; lists with an entry for each layer are cut as the layers are."""
    layers = next((table[k] for k in ("num_hidden_layers", "n_layer", "num_layers") if type(table.get(k)) is int), 0)
    kept = _kept_layers(table, layers)
    small: dict[str, Any] = {}
    for key, value in table.items():
        if key in _DERIVED:
            continue
        if key == "mrope_section":
            small[key] = [2, 1, 1]  # half of what a head has
        elif kept and isinstance(value, list) and len(value) == layers:
            small[key] = [_small(key, value[i]) for i in kept]
        elif kept and value == layers and key in ("num_hidden_layers", "n_layer", "num_layers"):
            small[key] = len(kept)
        else:
            small[key] = _small(key, value)
    heads = table.get("num_attention_heads")
    if heads and table.get("num_key_value_heads") == heads:  # some need as many
        small["num_key_value_heads"] = small["num_attention_heads"]
    ids = 3
    for key, value in small.items():
        if (
            re.fullmatch(r".*token_(id|index|ids)|.*_(id|idx|index)", key)
            and type(value) is int
            and value >= VOCABULARY
        ):
            small[key] = VOCABULARY - ids
            ids += 1
        if re.fullmatch(r".*token_ids?", key) and isinstance(value, list):
            small[key] = [v if type(v) is not int or v < VOCABULARY else VOCABULARY - 3 for v in value]
    return small


def _kept_layers(table: Mapping[str, Any], layers: int) -> list[int]:
    """Two layers, or one of each kind that the lists of layers tell; none where nothing has to be cut."""
    if layers < _MANY:
        return []
    first: dict[tuple[str, ...], int] = {}
    lists = [v for v in table.values() if isinstance(v, list) and len(v) == layers]
    for i in range(layers):
        first.setdefault(tuple(str(v[i]) for v in lists), i)
    kept = sorted(first.values())[:4]
    return sorted({*kept, *range(2)} if len(kept) < 2 else kept)


def _small(key: str, value: Any) -> Any:
    if isinstance(value, dict):
        return shrunk(value)
    for pattern, number in _RULES:
        if re.fullmatch(pattern, key) and not re.fullmatch(_LEFT, key):
            if type(value) is int:
                return min(value, number)
            if isinstance(value, list) and value and all(type(v) is int for v in value):
                return [min(v, number) for v in value]
    return value


def tiny_config(model_type: str, changes: Mapping[str, Any] | None = None) -> Any:
    kind = CONFIG_MAPPING[model_type]
    table = shrunk(kind._decode_special_floats(json.loads(kind().to_json_string(use_diff=False))))
    for path, value in (changes or {}).items():
        *parents, key = path.split(".")
        at = table
        for parent in parents:
            at[parent] = at.get(parent) or {}
            at = at[parent]
        at[key] = value
        if value is ...:
            del at[key]
    return kind.from_dict(table)
