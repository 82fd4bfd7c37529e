"""Builds the model of a configuration without weights, and checks it against stored ones.

On the meta device nothing takes room, so that what no machine could hold is refused in a moment.
"""

import re
import sys
from collections.abc import Mapping, Sequence
from math import inf, prod
from typing import Any, NamedTuple

import torch
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForMultimodalLM,
    PreTrainedModel,
)
from transformers.models.auto import modeling_auto
from transformers.quantizers.auto import AUTO_QUANTIZER_MAPPING, AutoHfQuantizer

from layerlab.errors import UserError
from layerlab.loading.dry_run import Footprint, check_call
from layerlab.records.parse import one_line
from layerlab.system.untrusted.trust import build_configured
from layerlab.validation import short_repr

# Sizes that every model has, under the names by which transformers answers for all families.
COUNTS = (
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "hidden_size",
    "intermediate_size",
    "head_dim",
    "vocab_size",
)
LEAST, MOST, COUNTED = 5e-324, sys.float_info.max, 10**6
# What numbers a model can compute with, by the name of their field: in words, from, up to. Of time
# steps a limit may be infinite; where each layer has a theta of its own, one of 0 stands for none.
RANGES = (
    (re.compile(r"_limit$"), "a number", -inf, inf),
    (re.compile(r"[._](eps|epsilon)$"), "a number from 0 to 1", 0.0, 1.0),
    (re.compile(r"drop(out)?(_prob|_p|_rate)?$"), "a share from 0 to 1", 0.0, 1.0),
    (re.compile(r"(?<!layer_)rope_theta$"), "a number above 0", LEAST, MOST),
    (re.compile(r"(max_position_embeddings|n_positions|max_seq_len)$"), "a number from 1", 1, MOST),
    (re.compile(r"\.rope_.*\.factor$"), "a number from 1", 1.0, MOST),
    # Of many families the configuration itself has a list with an entry for each.
    (
        re.compile(r"(layers?|blocks|cycles|iters|states|chunks_(before|after))$"),
        f"a number up to {COUNTED:,}",
        -MOST,
        COUNTED,
    ),
    (re.compile(""), "a finite number", -MOST, MOST),
)
# Weights may be shared by layers; no more of these are built before the weights were counted.
LAYERS = 1000
# How many times the stored elements a model may have: a tied head is stored once.
SHARED = 4
# How many elements one that is stored may hold, of a quantized model: eight of four bits.
PACKED = 8
# By how much a model reads beside text.
LANGUAGE: tuple[Any, ...] = (AutoModelForCausalLM, AutoModelForMultimodalLM)
# Of safetensors' names.
WHOLE_NUMBERS = ("I", "U", "BOOL")
EIGHT_BITS = ("I8", "U8", "BOOL")


class Outline(NamedTuple):
    """A stored tensor without its numbers.

    Attributes:
        kind: as safetensors writes it, such as "BF16" or "I8".
    """

    kind: str
    shape: tuple[int, ...]


def empty(config: Any, place: str, stored: Mapping[str, Outline] | None = None) -> PreTrainedModel:
    """Return the model of a configuration, on the meta device.

    Args:
        place: that the configuration came from, for the message.
        stored: the weights beside it by name, where they are known.

    Raises:
        UserError: it describes no model, or one that the weights cannot be those of.
    """
    what = f"the model of config.json in {place!r}"
    try:
        check_counts(config, place)
        _check_layers(config, place, stored or {})
        with Footprint(what, len(stored or {})), torch.device("meta"):
            model: PreTrainedModel = build_configured(auto_class(config), config).eval()
    except UserError:
        raise
    except Exception as error:  # whatever a family does with what stands there
        raise UserError(
            f"config.json in {place!r} describes no model: {_unknown_name(error, config)}"
        ) from error
    asked = sum(parameter.numel() for parameter in model.parameters())
    check_call(model, what)
    if stored:
        held = sum(prod(one.shape) for one in stored.values())
        packed = PACKED if is_quantized(config) else 1
        if asked > SHARED * packed * held:
            raise UserError(
                f"config.json in {place!r} describes {asked:,} parameters, and the weights beside "
                f"it hold {held:,}; put the config.json there that they were saved with"
            )
    return model


def _unknown_name(error: Exception, config: Any) -> str:
    """Return what an error says; of a name that a family does not know, also the field it is in."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], str):
        for name, value in config.to_dict().items():
            parts = value.items() if isinstance(value, dict) else [(name, value)]
            for field, one in parts:
                if one == error.args[0]:
                    return f"{field} is {short_repr(one)}, which transformers does not know"
    return one_line(error)


def auto_class(config: Any) -> Any:
    """Return the class of transformers that builds the language model of a configuration.

    One of images or sounds reads text without them; not so one whose text is its decoder's alone.

    Returns:
        None of another kind of model.
    """
    if "AutoModelForCausalLM" in (getattr(config, "auto_map", None) or {}):
        return AutoModelForCausalLM
    found = (one for one in LANGUAGE if one._model_mapping.get(type(config), None) is not None)
    kind = next(found, None)
    return None if kind is AutoModelForMultimodalLM and config.is_encoder_decoder else kind


def check_causal(config: Any, name: str) -> None:
    """Refuse what is not a causal language model.

    Raises:
        UserError: it is an encoder, or another kind of model, or of two families at once.
    """
    kinds = config.architectures or []
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        raise UserError(
            f"architectures is {short_repr(kinds)} in config.json of {name!r}; expected a list of "
            'names: write for example ["LlamaForCausalLM"]'
        )
    causal = auto_class(config)
    right = causal and causal._model_mapping.get(type(config), None)
    own = getattr(right, "__name__", "")
    other = [kind for kind in kinds if not re.search("CausalLM|LMHead|ForConditional", kind)]
    other = [kind for kind in other if kind != own]
    if causal and not (kinds and len(other) == len(kinds)):
        _check_family(config, kinds, name)
        return
    what = kinds[0] if kinds else config.model_type
    raise UserError(
        f"{name!r} is a {what}, not a causal language model; expected a decoder "
        "such as GPT-2, Llama or Qwen"
    )


def _check_family(config: Any, kinds: Sequence[str], name: str) -> None:
    """Refuse classes of another family than model_type, which alone decides what is computed.

    Classes that transformers does not list, as code of a model's own, say nothing of that.
    """
    parts = [config, config.get_text_config(), *config.sub_configs.values()]
    own = {getattr(part, "model_type", None) for part in parts}
    listed = {kind: found for kind in kinds if (found := _families(kind))}
    for families in listed.values():
        inner = [one for family in families for one in CONFIG_MAPPING[family].sub_configs.values()]
        if own & families or any(isinstance(config, one) for one in inner):
            return
    if not listed or getattr(config, "auto_map", None):
        return
    kind, families = next(iter(listed.items()))
    right: Any = auto_class(config)._model_mapping[type(config)]
    raise UserError(
        f"model_type is {short_repr(config.model_type)} and architectures is {short_repr(kinds)} "
        f"in config.json of {name!r}, and {kind} is of another family; expected one: write "
        f'"architectures": ["{right.__name__}"], or the model_type that is meant '
        f"({', '.join(sorted(families))})"
    )


def _families(kind: str) -> set[str]:
    """Return the values of model_type for which transformers has a class of this name."""
    tables = [
        table for name, table in vars(modeling_auto).items() if name.endswith("MAPPING_NAMES")
    ]
    return {
        family
        for table in tables
        for family, classes in table.items()
        if family in CONFIG_MAPPING and kind in ([classes] if isinstance(classes, str) else classes)
    }


def check_kinds(bare: PreTrainedModel, source: str, stored: Mapping[str, Outline]) -> None:
    """Refuse whole numbers where the model has weights; a quantized model may pack them so.

    Of eight bits, they are refused under other names too: those of experts one by one are joined to
    the model's own while they are loaded.

    Raises:
        UserError: names the first.
    """
    prefix = f"{bare.base_model_prefix}."
    names = {name.removeprefix(prefix) for name, _ in bare.named_parameters()}
    buffers = {name.removeprefix(prefix) for name, _ in bare.named_buffers()}
    unread = bare._keys_to_ignore_on_load_unexpected or ()
    for name, one in stored.items():
        own = name.removeprefix(prefix)
        joined = one.kind in EIGHT_BITS and own not in buffers
        joined = joined and not any(re.search(key, name) for key in unread)
        if joined or (own in names and one.kind.startswith(WHOLE_NUMBERS)):
            raise UserError(
                f"{short_repr(name)} in the weights of {source!r} holds whole numbers "
                f"({one.kind}), and its config.json has no quantization_config; expected floating "
                "point: save the model with both"
            )


def is_quantized(config: Any) -> bool:
    """Return whether a configuration says that the stored weights are quantized."""
    return getattr(config, "quantization_config", None) is not None


def check_method(config: Any, source: str) -> None:
    """Refuse a quantization that transformers does not know: it would pass over it.

    Raises:
        UserError: names it.
    """
    if not is_quantized(config):
        return
    given = config.quantization_config
    try:
        known = AutoHfQuantizer.supports_quant_method(given)
    except (ValueError, AttributeError):  # no method is named; no table of settings
        known = False
    if not known:
        method = given.get("quant_method") if isinstance(given, dict) else given
        raise UserError(
            f"config.json in {source!r} says that its weights are quantized by "
            f"{short_repr(method)}, which this transformers does not know; expected a quant_method "
            f"of {', '.join(AUTO_QUANTIZER_MAPPING)}, or a model in floating point without a "
            "quantization_config"
        )


def check_unpacked(model: PreTrainedModel, source: str, stored: Mapping[str, Outline]) -> None:
    """Refuse a quantized model of which whole numbers were taken for weights, without a scale.

    Args:
        model: with its weights.

    Raises:
        UserError: names the first.
    """
    plain = {
        name
        for name, one in model.named_parameters(remove_duplicate=False)
        if type(one) is torch.nn.Parameter  # and none of a quantizer's own
    }
    beside: dict[str, set[str]] = {}
    for name in stored:
        module, _, last = name.rpartition(".")
        beside.setdefault(module, set()).add(last)
    for name, one in stored.items():
        module, _, last = name.rpartition(".")
        scaled = beside[module] - {last, "bias"}
        if name in plain and one.kind.startswith(WHOLE_NUMBERS) and not scaled:
            raise UserError(
                f"{short_repr(name)} in the weights of {source!r} holds whole numbers "
                f"({one.kind}), and the quantization_config of its config.json unpacks them by no "
                "scale; expected floating point, or a scale beside it"
            )


def check_blocks(bare: PreTrainedModel, source: str, stored: Mapping[str, Outline]) -> None:
    """Refuse weights that transformers would unpack in other blocks than they were packed in.

    Without a GPU that knows fp8 (compute capability 8.9) it takes blocks that divide a side by its
    scales: 86 of 172 = 128 + 44.

    Args:
        bare: the model without weights, whose configuration says how they are quantized.

    Raises:
        UserError: names the first.
    """
    given = getattr(bare.config, "quantization_config", None) or {}
    settings = given if isinstance(given, Mapping) else vars(given)
    blocks = settings.get("weight_block_size")
    packed = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 9)
    if packed and not settings.get("dequantize"):
        return
    if not isinstance(blocks, list | tuple) or len(blocks) != 2:
        return
    for name, one in stored.items():
        scales = stored.get(f"{name}_scale_inv")
        if scales is None or len(scales.shape) < 2 or len(one.shape) < 2:
            continue
        for side, count, block in zip(one.shape[-2:], scales.shape[-2:], blocks, strict=True):
            if 1 < count == -(-side // block) and side != count * block:
                raise UserError(
                    f"{short_repr(name)} in the weights of {source!r} is quantized in blocks of "
                    f"{block}, and {count} of them are not a side of {side}: transformers would "
                    f"unpack it here in blocks of {side / count:g}, to other weights; use a GPU of "
                    "compute capability 8.9 or more, or save it unpacked"
                )


def check_number(path: Sequence[str], value: float, source: str) -> None:
    """Refuse a number of a configuration that no model computes with: its outputs would be NaN.

    Raises:
        UserError: names it.
    """
    name = ".".join(path)
    expected, least, most = next(one[1:] for one in RANGES if one[0].search(name))
    if not least <= value <= most:
        raise UserError(f"{path[-1]} is {short_repr(value)} in {source!r}; expected {expected}")


def check_counts(config: Any, source: str) -> None:
    """Refuse a configuration with impossible sizes.

    Raises:
        UserError: names the first.
    """
    inner = config.get_text_config(decoder=True)
    for name in COUNTS:
        try:
            value = getattr(inner, name, None)
        except Exception:  # of a size that differs by layer; each family has its own kind
            continue
        least = int(name != "head_dim" or not hasattr(inner, "qk_rope_head_dim"))  # 0: none rotate
        if isinstance(value, int) and value < least:
            own = inner.attribute_map.get(name, name)
            raise UserError(f"{own} is {value} in config.json in {source!r}; expected at least 1")
    for part in (config, inner):
        if part.dtype is not None and not isinstance(part.dtype, torch.dtype):
            raise UserError(
                f"dtype is {short_repr(part.dtype)} in config.json in {source!r}; expected a dtype "
                "of torch: write for example float32"
            )


def _check_layers(config: Any, source: str, stored: Mapping[str, Outline]) -> None:
    layers = getattr(config.get_text_config(decoder=True), "num_hidden_layers", None)
    numbers = {int(one) for name in stored for one in re.findall(r"\.(\d+)\.", name)}
    held = max(numbers, default=0) + 1
    if isinstance(layers, int) and layers > max(LAYERS, held):
        holds = f"the weights beside it hold {held:,}" if stored else f"{LAYERS:,} is the most"
        raise UserError(
            f"config.json in {source!r} says {layers:,} layers, and {holds}; put the config.json "
            "there that they were saved with"
        )
