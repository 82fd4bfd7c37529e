"""A tiny random model of every family that transformers calls a causal language model.

The recipe knows names of sizes, not families: it asks the family's own configuration which of these
names it has, keeps one layer of each kind that the default configuration lists, and lets the family
fill in the rest. `EXCEPTIONS` is what that leaves open.
"""

import warnings
from copy import deepcopy
from typing import Any

import torch
import transformers
from transformers import PretrainedConfig, PreTrainedModel
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES,
)

FAMILIES: dict[str, str] = dict(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
# Those of images or sounds and text, which read text alone.
MULTIMODAL: dict[str, str] = {
    name: owner
    for name, owner in MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES.items()
    if name not in FAMILIES
}
CLASSES = FAMILIES | MULTIMODAL
TOKENS = 28
SCALE = 4.0

_SIZES = {
    32: "hidden_size d_model n_embd embedding_size embedding_dim word_embed_proj_dim emb_dim "
    "lru_width input_embedding_size output_embedding_size embed_dim hidden_size_global width "
    "adapter_in_dim adapter_out_dim adapter_input_size out_hidden_size text_hidden_size "
    "audio_hidden_size",
    2: "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_blocks "
    "num_decoder_layers num_encoder_layers depth num_key_value_heads kv_n_heads num_kv_heads "
    "swa_num_key_value_heads num_global_key_value_heads index_n_heads indexer_n_heads "
    "indexer_kv_heads num_experts_per_tok moe_topk moe_top_k moe_k num_experts_per_token n_group "
    "num_expert_group",
    4: "num_attention_heads n_head n_heads num_heads decoder_attention_heads n_routed_experts "
    "encoder_attention_heads attention_heads num_decoder_attention_heads num_experts "
    "num_encoder_attention_heads swa_num_attention_heads num_local_experts moe_num_experts "
    "zero_expert_num qk_rope_head_dim qk_nope_head_dim rotary_dim linear_num_key_heads "
    "linear_num_value_heads linear_num_heads mamba_n_heads mamba_num_heads mamba_dt_rank "
    "time_step_rank",
    8: "head_dim v_head_dim dim_head d_head kv_channels swa_head_dim swa_v_head_dim sliding_window "
    "global_head_dim linear_head_dim attention_head_size kv_lora_rank q_lora_rank o_lora_rank "
    "qk_head_dim index_head_dim indexer_head_dim sliding_window_size window_size local_attention "
    "attention_window_size attention_chunk_size local_attention_window_len state_size "
    "hidden_size_per_layer_input linear_key_head_dim linear_value_head_dim mamba_d_state "
    "ssm_state_size",
    16: "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
    "moe_shared_expert_intermediate_size moe_latent_size mamba_d_head mamba_head_dim "
    "mamba_chunk_size chunk_size block_multiple_of index_topk shared_experts_intermediate_size "
    "router_hidden_size",
    48: "intermediate_size ffn_dim encoder_ffn_dim decoder_ffn_dim ffn_hidden_size dff dim_ff "
    "d_inner n_inner dense_intermediate_size intermediate_size_mlp shared_intermediate_size "
    "feed_forward_size",
    64: "max_position_embeddings n_positions max_seq_len n_ctx max_target_positions seq_length "
    "model_max_length context_length mamba_d_ssm",
    256: "vocab_size vocab_size_per_layer_input n_vocab unpadded_vocab_size shape_vocab_size "
    "encoder_hash_byte_group_vocab pronunciation_vocab_size",
    1: "topk_group first_k_dense_replace bos_token_id n_groups mamba_n_groups",
    0: "pad_token_id",
}
_SIZE = {name: size for size, names in _SIZES.items() for name in names.split()}
_SIZE["eos_token_id"] = 2
# Families give these as None and mean "as wide as there are heads" or "no such token".
_OPEN = {"head_dim", "num_key_value_heads", "bos_token_id", "eos_token_id", "pad_token_id"}
# Latent attention has as many keys as queries; its rotary part is what the tables are made for.
_LATENT = {"num_key_value_heads": 4, "head_dim": 4}

_ROPE = {"rope_type": "default", "rope_theta": 10000.0}


def _axes(*pairs: int) -> dict[str, Any]:
    """The rotary pairs of time, height and width: all of a head, or half of them."""
    return {"text_config": {"rope_parameters": {**_ROPE, "mrope_section": [*pairs]}}}


_HYBRID = {"num_hidden_layers": 2, "attn_layer_period": 2, "attn_layer_offset": 1}
_SOUND = {"decoder": {"num_codebooks": 1}}
_ZAMBA = {"num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]}
# Its defaults widen its sliding layers, by their number.
_UNIFORM: dict[str, Any] = {"per_layer_config": {2: {"head_dim": 8}}}
_HASHED = {
    "hc_lowrank": 8,
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": 8,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}

_WAVES = {"num_filters": 4}
# Two of four layers are looped, one of each kind.
_LOOPED = {
    "num_hidden_layers": 4,
    "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
    "n_layers_per_attn_res_block": 1,
    "loop_layer_index_start": 1,
    "loop_layer_index_end": 3,
    "loop_num_passes": 2,
}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "chameleon": {"vocabulary_map": {"<image>": 5}},
    "deepseek_ocr2": {
        "text_config": {"mlp_layer_types": ["dense", "sparse"], "num_experts_per_tok": 2}
    },
    "diffusion_gemma": {
        "text_config": {"num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    },
    "exaone4_5": {"text_config": {"model_type": "exaone4"}},
    "fun_asr_nano": {"adaptor_config": {"intermediate_size": 8}},
    "hy_v4_vl": _axes(1, 1, 0),
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0}},
    "inkling2_loop_text": _LOOPED,
    "inkling2_loop": {"text_config": _LOOPED},
    "janus": {"vq_config": {"base_channels": 32}},
    "molmo2": {"adapter_config": {"vision_feature_layer": [0, 1]}},
    "muse_spark": {"audio_config": {"hidden_sizes": [8, 16, 32, 64]}},
    "nemotron_h_omni": {"vision_config": {"video_temporal_patch_size": 2}},
    "step3p7": {"text_config": {"sliding_window": 8}},
    "unlimited_ocr": {"text_config": {"num_key_value_heads": 4}},
    "apertus1p5": {
        "image_token_offset": 64,
        "audio_token_offset": 128,
        "audio_config": {"codebook_dim": 32, "codebook_size": 64, "num_filters": 4},
        "vision_config": {"base_channels": 32, "codebook_size": 64},
    },
    "bamba": {"attn_layer_indices": [1]},
    # Block-sparse attention replaces itself by this one where a text is short.
    "big_bird": {"attention_type": "original_full"},
    "blt": {"global_config": {"num_hidden_layers": 3}},
    "cohere_compass": {"text_config": {"rope_parameters": {"full_attention": _ROPE}}},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _ROPE}},
    **dict.fromkeys(
        (
            "cosmos3_edge",
            "glm46v",
            "glm4v",
            "glm_ocr",
            "glmga",
            "hunyuan_vl",
            "paddleocr_vl",
            "qwen2_5_omni_thinker",
            "qwen2_5_vl",
            "qwen2_vl",
        ),
        _axes(2, 1, 1),
    ),
    "glm4v_moe": _axes(1, 1, 0),
    "ernie4_5_vl_moe": _axes(1, 1, 2),
    "dbrx": {"attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2, "n_group": 1},
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": _UNIFORM,
    "dots3_note": {"text_config": _UNIFORM},
    "gemma3n_text": {"num_kv_shared_layers": 0, "intermediate_size": 48},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "jamba": _HYBRID,
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "musicgen": _SOUND,
    "musicgen_melody": _SOUND,
    "qwen4_exp_text": _HASHED,
    "qwen4_exp": {"text_config": _HASHED},
    "recurrent_gemma": {"block_types": ["recurrent", "attention"]},
    "reformer": {
        "axial_pos_shape": [8, 8],
        "axial_pos_embds_dim": [16, 16],
        "local_attn_chunk_length": 8,
        "lsh_attn_chunk_length": 8,
        "num_buckets": 4,
        "hash_seed": 0,
    },
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": _WAVES,
        "semantic_tokenizer_encoder_config": _WAVES,
    },
    "xmod": {"languages": ["en_XX"], "default_language": "en_XX"},
    "zamba": _ZAMBA,
    "zamba2": _ZAMBA,
    "zaya": {"num_experts_per_tok": 1},
}

# Implementations of attention that a family computes as it does the others.
IMPLEMENTATIONS = {
    # Without an image its sdpa attention sees the whole text, and its eager attention does not.
    "paligemma": ("eager",),
    "vibevoice_asr": ("eager",),  # its sounds have no other
    "apertus1p5": ("eager",),  # its images have no other
}
# What no configuration alone can bring to life, and why; a test says that it is still so.
UNBUILT = {
    "gemma3n": "its image tower needs the package timm (the text model `gemma3n_text` is built)",
    **dict.fromkeys(("fast_vlm", "perception_lm"), "its image tower needs the package timm"),
    **dict.fromkeys(
        (
            "blip",
            "blip-2",
            "idefics",
            "instructblip",
            "instructblipvideo",
            "kosmos-2",
            "pi0",
            "voxtral_realtime",
        ),
        "it reads no text without an image or a sound",
    ),
    **dict.fromkeys(
        (
            "florence2",
            "pix2struct",
            "pp_formulanet",
            "t5gemma2",
            "udop",
            "vision-encoder-decoder",
        ),
        "it is an encoder-decoder",
    ),
    "diffusion_gemma": "it writes by diffusion, and its logits are not of the tokens that it reads",
    **dict.fromkeys(
        ("qwen2_5_omni", "qwen3_omni_moe"),
        "its parts are called one by one (that of text, the thinker, is built)",
    ),
    **dict.fromkeys(
        ("granite4_vision", "kyutai_speech_to_text", "nemo_speechlm"),
        "its images or sounds have sizes that the recipe does not know",
    ),
    **dict.fromkeys(
        ("gemma4_assistant", "gemma4_unified_assistant"),
        "it drafts for another model and reads that model's keys and values",
    ),
}


def family_config(family: str) -> PretrainedConfig:
    """The tiny configuration of a family."""
    # A configuration writes into the dicts that it is given.
    made = _tiny(CONFIG_MAPPING[family], deepcopy(EXCEPTIONS.get(family, {})))
    wanted = getattr(transformers, CLASSES[family]).config_class
    inner = [getattr(made, name) for name in made.sub_configs]
    return next((config for config in inner if type(config) is wanted), made)


def build(
    family: str, implementation: str | None = None, changes: dict[str, Any] | None = None
) -> PreTrainedModel:
    """A model with random weights, the same at each call; matrices are large: attention is uneven.

    Args:
        implementation: of attention; None is what transformers chooses.
        changes: what its configuration says otherwise.
    """
    owner = getattr(transformers, CLASSES[family])
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.manual_seed(0)
        options = {} if implementation is None else {"attn_implementation": implementation}
        config = family_config(family)
        for name, value in (changes or {}).items():
            setattr(config, name, value)
        model: PreTrainedModel = owner._from_config(config, **options).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(SCALE)
    return model


def _tiny(owner: type[PretrainedConfig], exceptions: dict[str, Any]) -> PretrainedConfig:
    return owner(**_options(owner(), exceptions))


def _options(default: PretrainedConfig, exceptions: dict[str, Any]) -> dict[str, Any]:
    """What the configuration is asked to be, by the names that it has itself."""
    known = default.to_dict()
    options: dict[str, Any] = {n: size for n, size in _SIZE.items() if _is_size(n, known)}
    if "qk_rope_head_dim" in known:
        options |= _LATENT
    if "is_decoder" in known:
        options["is_decoder"] = True
    options |= _kinds(default, known)
    options = {name: value for name, value in options.items() if _settable(default, name)}
    for name in default.sub_configs:
        inner = getattr(default, name, None)
        if isinstance(inner, PretrainedConfig):
            options[name] = _options(inner, exceptions.get(name, {}))
    plain = {name: value for name, value in exceptions.items() if name not in default.sub_configs}
    return {**options, **plain}


def _is_size(name: str, known: dict[str, Any]) -> bool:
    value = known.get(name)
    return (isinstance(value, int) and not isinstance(value, bool)) or (
        value is None and name in _OPEN
    )


def _settable(default: PretrainedConfig, name: str) -> bool:
    """Whether a name is a field; some families compute what others store."""
    place = getattr(type(default), name, None)
    return not isinstance(place, property) or place.fset is not None


def _kinds(default: PretrainedConfig, known: dict[str, Any]) -> dict[str, Any]:
    """Lists with an entry per layer, cut to one layer of each kind (and at least two layers)."""
    depth = getattr(default, "num_hidden_layers", None)
    lists = {
        name: value
        for name, value in known.items()
        if isinstance(value, list) and value and len(value) == depth and value != [*range(depth)]
    }
    if not lists:
        return {}
    rows = list(zip(*lists.values(), strict=True))
    kinds = [row for place, row in enumerate(rows) if row not in rows[:place]]
    kinds += rows[-1:] * (2 - len(kinds))
    columns = zip(lists, zip(*kinds, strict=True), strict=True)
    return {"num_hidden_layers": len(kinds), **{name: list(column) for name, column in columns}}
