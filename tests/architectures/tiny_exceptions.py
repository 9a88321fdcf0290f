"""What shrinking by names does not reach."""

from typing import Any

_MROPE = {"text_config.rope_parameters.mrope_section": [2, 1, 1]}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 16, "mamba_chunk_size": 8}
_SWIN = {"embed_dim": 16, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4, "patch_size": 4}
_FOUR_STAGES = {
    "backbone_config.num_hidden_layers": 4,
    "backbone_config.out_features": ["stage1", "stage2", "stage3", "stage4"],
}
_FEW_BLOCKS = {"width_coefficient": 1.0, "depth_coefficient": 1.0}
_FIVE_STAGES = [[[3, width, 2 * width, 2, width == 32]] for width in (4, 8, 16, 32, 64)]
_LENGTHS = {"prediction_length": 4, "context_length": 8, "lags_sequence": [1, 2]}

# path of a key → what it becomes; `...` takes it away
CHANGES: dict[str, dict[str, Any]] = {
    # no default, though the model needs it
    "autoformer": _LENGTHS,
    "informer": _LENGTHS,
    "time_series_transformer": _LENGTHS,
    "chameleon": {"vocabulary_map": {"<image>": 150, "IMGIMGA": 151}},
    "emu3": {"vocabulary_map": {"<image>": 150}},
    "esm": {"vocab_size": 33, "pad_token_id": 1, "mask_token_id": 32},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "hunyuan_vl": {"text_config.head_dim": 8},
    "ministral": {"head_dim": 8},
    "nemotron": {"num_key_value_heads": 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "deepseek_ocr2": {"text_config.mlp_layer_types": ["dense", "sparse"], "text_config.num_experts_per_tok": 2},
    "wav2vec2_bert": {"vocab_size": 32},
    "wav2vec2_conformer": {"vocab_size": 32},
    "dbrx": {"attn_config.rope_theta": 10000.0, "attn_config.clip_qkv": 8},
    "deepseek_v2": {"n_routed_experts": 4, "num_experts_per_tok": 2},
    **dict.fromkeys(
        ("glm4v", "glm46v", "glm_ocr", "glmga", "glm_image", "paddleocr_vl", "qwen2_vl", "qwen2_5_vl", "qwen2_5_omni"),
        _MROPE,
    ),
    "glm4v_moe": {"text_config.rope_parameters.mrope_section": [1, 1, 0]},
    "colqwen2": {"vlm_config.text_config.rope_parameters.mrope_section": [2, 1, 1]},
    "d_fine": {"backbone_config.out_features": ["stage2", "stage3", "stage4"]},
    "upernet": {"backbone_config.out_features": ["stage1", "stage2", "stage3", "stage4"]},
    "lw_detr": {"backbone_config.image_size": 64, "backbone_config.num_windows": 4},
    # numbers that must fit others
    "reformer": {"axial_pos_embds_dim": [16, 16], "axial_pos_shape": [8, 8]},
    "mobilebert": {"true_hidden_size": 32, "intra_bottleneck_size": 32},
    "lilt": {"hidden_size": 96},
    "bamba": {**_MAMBA, "attn_layer_indices": [1]},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    **dict.fromkeys(("chmv2", "depth_anything", "prompt_depth_anything", "zoedepth", "tipsv2_dpt"), _FOUR_STAGES),
    "falcon_h1": {**_MAMBA, "mamba_d_ssm": 64},
    "granitemoehybrid": {**_MAMBA, "layer_types": ["linear_attention", "full_attention"]},
    "mamba2": {"head_dim": 16, "state_size": 16, "n_groups": 2},
    "nemotron_h": {"n_groups": 2},
    "nemotron_h_omni": {"text_config.n_groups": 2},
    "esmc": {"num_key_value_heads": 4},
    "glm5_next": {"text_config.num_key_value_heads": 4},
    "xlnet": {"d_head": ...},
    "bit": {"num_groups": 4},
    # hundreds of tensors or millions of elements that show no more than a few do
    "efficientnet": _FEW_BLOCKS,
    "align": {f"vision_config.{key}": value for key, value in _FEW_BLOCKS.items()},
    "vits": {"flow_size": 32, "upsample_initial_channel": 32},
    "pp_ocrv5_mobile_det": {"backbone_config.block_configs": _FIVE_STAGES, "backbone_config.conv_symmetric_num": 1},
    "slanext": {"max_text_length": 20},
    "cvt": {"depth": [1, 2, 3], "num_heads": [1, 2, 4], "embed_dim": [16, 32, 32]},
    "hiera": {"embed_dim": 8, "num_heads": [1, 2, 4, 8], "depths": [1, 1, 1, 1]},
    "swinv2": _SWIN,
    "donut": _SWIN,
    "granite_speech5": {"encoder_config.context_size": 16},
    "neomme": {"head_dim": 16},
    "bridgetower": {"vision_config.hidden_size": 64, "num_attention_heads": 4},
    "fun_asr_nano": {"adaptor_config.intermediate_size": 8},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0]},
}

# the class of a family whose automatic one does not load what it saves
CLASSES: dict[str, str] = {"shieldgemma2": "ShieldGemma2ForImageClassification"}

# tensors that are not merged
IGNORED: dict[str, tuple[str, ...]] = {
    "oneformer": ("criterion.logit_scale",),  # float64, of the loss
}

_TIMM = (
    *("conditional_detr", "dab_detr", "deformable_detr", "detr", "edgetam", "fast_vlm", "gemma3n", "omdet_turbo"),
    *("pe_video", "table_transformer", "timm_wrapper"),
)
# "needs X" alone: with X it merges, which the tests try wherever there is X
NOT_BUILT: dict[str, str] = {
    **dict.fromkeys(_TIMM, "needs timm"),
    "pe_audio_video": "needs timm; transformers does not load what it saves of it",
    "perception_lm": "needs timm; its defaults lack what its vision model is",
    "timm_backbone": "needs timm; its defaults name no backbone",
    "dinat": "needs natten",
    "higgs_audio_v2_tokenizer": "needs torchaudio",
    "layoutlmv2": "needs detectron2",
    **dict.fromkeys(
        ("blt", "perceiver", "vibevoice", "vibevoice_acoustic_tokenizer", "vibevoice_asr"),
        "too large: its size does not follow from its configuration's numbers",
    ),
    "cohere_compass": "no small configuration: its defaults lack rope parameters for its kinds of layers",
    "diffusion_gemma": "no small configuration: its defaults lack the numbers of its experts",
    "dots3_note": "no small configuration: its parts check one another's sizes",
    "efficientloftr": "no small configuration: its width must be that of its last stage",
    "ernie4_5_vl_moe": "no small configuration: its experts come in unequal groups",
    "gemma4_assistant": "its own check refuses its own defaults",
    "gemma4_unified_assistant": "no small configuration: it shares caches with a larger model's layers",
    "granite4_vision": "no small configuration: the heads of a part that has no key of its own are divided to none",
    "hiera": "no small configuration: its decoder's sizes have no defaults",
    "moonshine_streaming": "its encoder's configuration lacks what its model reads",
    "pp_ocrv5_server_det": "its defaults lack the sizes of its kernels",
    "pp_ocrv6_medium_det": "its defaults lack the sizes of its kernels",
    "qwen4_exp": "its defaults lack the sizes of its index",
    "sapiens2": "its defaults lack a head",
    "zamba": "two layers are too few for the block that it shares",
}
