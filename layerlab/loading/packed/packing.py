"""Tools that pack weights as transformers cannot read them without a GPU, or not at all."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.validation import short_repr

CONFIG, ASIDE = "config.json", "hf_quant_config.json"
SETTINGS = ("quantization_config", "quantization")
# Varieties that are read, and where they are named; docs/tutorials/own-model.md has how each was
# tried.
VARIETIES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "gptq": (("checkpoint_format", "format"), ("gptq", "gptq_v2")),
    "awq": (("checkpoint_format", "format", "version"), ("gemm",)),
    "auto-round": (
        ("packing_format",),
        ("auto_round:auto_gptq", "auto_round:auto_awq", "auto_round:gptqmodel", "auto_round"),
    ),
    "mlx": (("mode",), ("affine", "mxfp4", "nvfp4", "mxfp8")),
    "modelopt": (
        ("quant_algo",),
        (
            "FP8",
            "FP8_PER_CHANNEL_PER_TOKEN",
            "FP8_PB_WO",
            "NVFP4",
            "NVFP4_AWQ",
            "W4A16_NVFP4",
            "MXFP8",
            "W8A16",
            "W4A16_AWQ",
        ),
    ),
}
# Under these names GPTQModel and AutoRound say what they turn inputs by, which no weight shows.
ROTATIONS = ("rotation", "rotation_config", "spinquant_config")
# Families of which MLX stores the weights as transformers does, experts stacked; others it turns,
# splits or shifts (the norms of qwen3_next by one).
MLX_FAMILIES = (
    "cohere cohere2 ernie4_5 gemma gemma2 gemma3_text glm glm4 glm4_moe helium "
    "hunyuan_v1_dense internlm3 llama ministral3 mistral mixtral nemotron olmo2 olmo3 "
    "olmoe phi phi3 qwen2 qwen2_moe qwen3 qwen3_moe seed_oss smollm3 stablelm starcoder2"
).split()


@dataclass(frozen=True)
class Packing:
    """A tool that packed the weights of a model, and its settings.

    Attributes:
        tool: that packed them.
        settings: of the tool.
        config: the rest of the configuration.
    """

    tool: str
    settings: Mapping[str, Any]
    config: Mapping[str, Any]

    @property
    def layout(self) -> str:
        """The name of the layout in which the weights lie."""
        if self.tool != "auto-round":
            return self.tool
        return "awq" if self._variety().endswith("awq") else "gptq"

    def _variety(self) -> str:
        names, known = VARIETIES[self.tool]
        given = (self.settings.get(name) for name in names)
        return str(next((one for one in given if one), known[0]))

    def check_known(self, source: str) -> None:
        """Refuse a variety, or a family, of which the layout is not known.

        Raises:
            UserError: names it.
        """
        variety, known = self._variety(), VARIETIES[self.tool][1]
        if variety.lower() not in map(str.lower, known):
            raise UserError(
                f"the weights of {source!r} are packed by {self.tool} as {short_repr(variety)}, "
                f"which is not read; expected {', '.join(known)}, or the model that they were made "
                "from"
            )
        for name in ROTATIONS:
            if self.settings.get(name):
                raise UserError(
                    f"the weights of {source!r} are packed by {self.tool} with a {name}, which "
                    "turns what enters them while the model runs; expected weights without, or "
                    "the model that they were made from"
                )
        family = self.config.get("model_type")
        if self.tool == "mlx" and family not in MLX_FAMILIES:
            raise UserError(
                f"the weights of {source!r} are packed by MLX, which may store those of "
                f"{short_repr(family)} otherwise than transformers; expected a model of "
                f"{', '.join(MLX_FAMILIES)}, or that which they were made from"
            )

    def of(self, module: str) -> Mapping[str, Any]:
        """Return the settings of a module; MLX names those that differ."""
        own = self.settings.get(module)
        return {**self.settings, **own} if isinstance(own, dict) else self.settings


def find_packing(folder: Path) -> Packing | None:
    """Return how a folder's weights are packed, or None where transformers reads them itself."""
    config = _read(folder / CONFIG)
    plain = {name: value for name, value in config.items() if name not in SETTINGS}
    given = next((config[name] for name in SETTINGS if isinstance(config.get(name), dict)), None)
    if given is None:
        aside = _read(folder / ASIDE).get("quantization")
        return Packing("modelopt", aside, plain) if isinstance(aside, dict) else None
    tool = given.get("quant_method")
    if tool is None and {"bits", "group_size"} <= given.keys():
        tool = "mlx"
    return Packing(tool, given, plain) if isinstance(tool, str) and tool in VARIETIES else None


def _read(file: Path) -> dict[str, Any]:
    """Return what a file holds, or nothing: what is wrong with it is told by who reads it whole."""
    try:
        held = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return held if isinstance(held, dict) else {}
