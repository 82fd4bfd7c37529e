"""The configuration of a layerlab model: sizes, and the whole variant as JSON."""

import json
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from layerlab.blocks.shape import Shape
from layerlab.blocks.spec import Spec
from layerlab.errors import UserError


@strict
class LabConfig(PreTrainedConfig):
    """Sizes under the names that the Hugging Face world reads, and the spec of the variant.

    Attributes:
        variant: the name it was built under.
        spec: what `Spec.to_dict` wrote.
        seed: from which every parameter is drawn, each from its own stream.
        files: files from outside the package that the variant needs: name and SHA-256.
        mup_base_width: width from which muP scales; None: the standard parametrization.
        mup_base_head_width: width of a head there.
        logit_factor: on logits; under muP a head that is the embedding starts and moves as that
            does.
    """

    model_type = "layerlab"
    keys_to_ignore_at_inference = ["past_key_values", "cache"]
    __no_type_check__ = True  # a file holds more than the fields: transformers checks them itself

    vocab_size: int = 8192
    hidden_size: int = 256
    intermediate_size: int = 688
    num_hidden_layers: int = 6
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 64
    max_position_embeddings: int = 256
    initializer_range: float = 0.02
    rope_parameters: dict | None = None
    use_cache: bool = True
    tie_word_embeddings: bool = False
    pad_token_id: int | None = None
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    variant: str = "llama"
    spec: dict | None = None
    seed: int = 0
    files: dict | None = None
    mup_base_width: int | None = None
    mup_base_head_width: int | None = None
    logit_factor: float = 1.0

    def __post_init__(self, **kwargs: Any) -> None:
        if self.spec is None:
            self.spec = Spec().to_dict()
        if self.files is None:
            self.files = {}
        super().__post_init__(**kwargs)
        if self.parse_spec().stack.position != "rotary":
            self.rope_parameters = None  # the line above fills it in for every model

    def save_pretrained(
        self, save_directory: Any, push_to_hub: bool = False, **kwargs: Any
    ) -> None:
        """Write the configuration, and beside it the code that its model runs on."""
        from layerlab.model.ecosystem.export import (  # late: loading needs none of it
            AUTO,
            code_files,
        )

        files = code_files(self)
        _refuse_others(Path(save_directory), files)
        self.auto_map = dict(AUTO)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **kwargs)
        for name, content in files.items():
            (Path(save_directory) / name).write_bytes(content)

    def parse_spec(self) -> Spec:
        """Return the spec as a `Spec`."""
        return Spec.from_dict(self.spec or {})

    def shape(self) -> Shape:
        """Return the sizes under their own names."""
        return Shape(
            width=self.hidden_size,
            layers=self.num_hidden_layers,
            heads=self.num_attention_heads,
            kv_heads=self.num_key_value_heads,
            head_width=self.head_dim,
            inner=self.intermediate_size,
            vocab=self.vocab_size,
            context=self.max_position_embeddings,
        )


def _refuse_others(folder: Path, files: Mapping[str, bytes]) -> None:
    """Refuse to replace what no earlier save wrote, such as a variant that was edited since."""
    try:
        kept = json.loads((folder / "config.json").read_bytes())["files"].values()
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        kept = ()
    for name, content in files.items():
        path = folder / name
        if not path.is_symlink() and not path.exists():
            continue
        plain = path.is_file() and not path.is_symlink()
        found = path.read_bytes() if plain else b""
        made = found.startswith(b"# layerlab.") and b" wrote it beside the weights" in found
        if not plain or not (found == content or made or sha256(found).hexdigest() in kept):
            raise UserError(
                f"{path} is not what an earlier save wrote there, and saving would replace it; "
                "save the model into another folder"
            )
