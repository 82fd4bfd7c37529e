"""Writes a small Llama as llama.cpp's converter does: rotary rows in turns, weights in blocks."""

from collections.abc import Callable, Container
from pathlib import Path

import gguf
import numpy as np
from transformers import LlamaForCausalLM

TOKENS = [*"abcdefghijklmnopqrstuvwxyz", "▁", "ab", "ca"]


def write_gguf(
    model: LlamaForCausalLM,
    file: Path,
    kind: str,
    *,
    without: Container[str] = (),
    change: Callable[[gguf.GGUFWriter], object] | None = None,
) -> dict[str, np.ndarray]:
    """Write a model, and return its weights as their blocks have them, by their names in it.

    Args:
        without: names of tensors that are left out; "tokenizer" leaves that out.
        change: writes more into the file.
    """
    config, heads = model.config, model.config.num_attention_heads
    writer = gguf.GGUFWriter(file, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_dimension_count(config.hidden_size // heads)
    if "tokenizer" not in without:
        _write_tokenizer(writer, config.vocab_size)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    kept = {}
    for name, weight in model.state_dict().items():
        kept[name] = weight.numpy()
        own = names.get_name(name, try_suffixes=(".weight",))
        if own in without:
            continue
        if weight.dim() < 2:
            writer.add_tensor(own, kept[name])
            continue
        blocks = getattr(gguf.GGMLQuantizationType, kind)
        packed = gguf.quants.quantize(kept[name], blocks)
        kept[name] = gguf.quants.dequantize(packed, blocks)
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else config.num_key_value_heads
            halves = packed.reshape(count, 2, -1, packed.shape[-1])
            packed = np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(packed.shape)
        writer.add_tensor(own, packed, raw_dtype=blocks)
    if change is not None:
        change(writer)
    finish(writer)
    return kept


def finish(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_tokenizer(writer: gguf.GGUFWriter, vocab: int) -> None:
    writer.add_tokenizer_model("llama")
    texts = ["<unk>", "<s>", "</s>", *TOKENS]
    texts += [f"<unused{one}>" for one in range(vocab - len(texts))]
    writer.add_token_list(texts)
    writer.add_token_scores([-float(one) for one in range(len(texts))])
    writer.add_token_types([2, 3, 3, *[1] * (len(texts) - 3)])
