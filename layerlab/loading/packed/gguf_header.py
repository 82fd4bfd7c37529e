"""Header of a GGUF file: what it says of its model, where transformers passes over that too."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np

from layerlab.loading.weights.weightless import Outline

# Numbers that transformers leaves as its own configurations have them, by their names there.
FIELDS = {
    "context_length": "max_position_embeddings",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
}
# Models of which llama.cpp knows by their layers alone that scores are scaled by another number.
SCALED = {("gemma2", 46), ("gemma3_text", 62)}
FREQUENCIES, SHORT, LONG = (
    f"rope_{name}.weight" for name in ("freqs", "factors_short", "factors_long")
)
TOKENIZERS = ("llama", "gpt2", "t5", "gemma4")  # that transformers reads


class GgufHeader(gguf.GGUFReader):
    """Header of a file; a claim of more than the file holds costs no memory.

    Raises:
        ValueError: it claims such.
    """

    def __init__(self, file: Path) -> None:
        if not file.stat().st_size:
            raise ValueError("it is empty")
        super().__init__(file)
        if not self.tensors:
            raise ValueError("it holds no weights")
        if sum(one.n_bytes for one in self.tensors) > file.stat().st_size:
            raise ValueError("two of its tensors share their numbers")
        if (parts := self.find("split.count") or 1) > 1:
            raise ValueError(f"it is one of {parts} parts, which llama-gguf-split --merge joins")

    def _get(self, offset: Any, dtype: Any, count: Any = 1, override_order: Any = None) -> Any:
        if offset + int(count) * np.dtype(dtype).itemsize > len(self.data):
            raise ValueError("it ends before what it says that it holds")
        return super()._get(offset, dtype, count, override_order)

    def find(self, name: str) -> Any:
        """Return the value of a field, with or without the architecture before it, or None."""
        own = self.get_field("general.architecture")
        fields = (self.get_field(name), own and self.get_field(f"{own.contents()}.{name}"))
        return next((one.contents() for one in fields if one), None)

    def has_tokenizer(self) -> bool:
        """Return whether there is a tokenizer that transformers reads."""
        return self.find("tokenizer.ggml.model") in TOKENIZERS

    def list_outlines(self) -> dict[str, Outline]:
        """Return the tensors without their numbers."""
        return {
            one.name: Outline(one.tensor_type.name, tuple(reversed(one.shape.tolist())))
            for one in self.tensors
        }

    def complete(self, config: Any) -> None:
        """Set what transformers has passed over in the configuration that it made.

        Raises:
            ValueError: positions are encoded in a way that it cannot say.
        """
        if config.model_type == "llama" and self.find("attention.head_count_kv") is None:
            raise ValueError(
                "it has no attention.head_count_kv, and rows of queries and keys would stay in the "
                "order of llama.cpp"
            )
        if config.model_type == "gemma4_text":  # of which all that differs is transformers' own
            return
        for key, name in FIELDS.items():
            value = self.find(key)
            if value is not None and getattr(config, name, value) != value:
                setattr(config, name, value)
        if (config.model_type, config.num_hidden_layers) in SCALED:
            config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads
        rope = getattr(config, "rope_parameters", None)
        if rope is not None:
            self._complete_positions(config, rope.get("full_attention", rope))

    def _complete_positions(self, config: Any, rope: dict[str, Any]) -> None:
        width = self.find("attention.key_length")
        width = width or config.hidden_size // config.num_attention_heads
        turned = self.find("rope.dimension_count") or width
        if turned < width:
            rope["partial_rotary_factor"] = turned / width
        rope["rope_theta"] = self.find("rope.freq_base") or rope.get("rope_theta")
        kind, factor = self.find("rope.scaling.type"), self.find("rope.scaling.factor")
        before = self.find("rope.scaling.original_context_length")
        before = before or config.max_position_embeddings
        tensors = {one.name: one.data.tolist() for one in self.tensors if one.name in _FACTORS}
        if tensors:  # what divides each frequency
            same = tensors.get(FREQUENCIES)
            rope |= {
                "rope_type": "longrope",
                "short_factor": tensors.get(SHORT, same),
                "long_factor": tensors.get(LONG, same),
                "attention_factor": self.find("rope.scaling.attn_factor") or 1.0,
                "original_max_position_embeddings": before,
            }
        elif kind in ("linear", "yarn") and factor not in (None, 1.0):
            rope |= {"rope_type": kind, "factor": factor}
            if kind == "yarn":
                rope["original_max_position_embeddings"] = before
        elif kind not in (None, "none", "linear", "yarn"):
            raise ValueError(f"its positions are scaled by {kind!r}, with no factors")

    def list_unread(self, model: Any) -> list[str]:
        """Return the tensors for which the model has no place."""
        from transformers import modeling_gguf_pytorch_utils as reader

        kind = reader.TENSOR_PROCESSORS.get(self.find("general.architecture"))
        process = (kind or reader.TensorProcessor)(config=model.config.to_dict())
        read = reader.get_gguf_hf_weights_map(model, process)
        names = [one.name for one in self.tensors if one.name not in _FACTORS]
        return [one for one in names if not {one, one.removesuffix(".weight")} & read.keys()]


_FACTORS = {FREQUENCIES, SHORT, LONG}
