"""Packs the linear layers of a small model as other tools do, each weight rounded to nearest."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel
from transformers.pytorch_utils import Conv1D

GROUP, BLOCK = 32, 8
TOKENS = torch.arange(3, 23)[None]
Pack = Callable[[Tensor], tuple[dict[str, Tensor], Tensor]]


def sizes(width: int = 64) -> dict[str, int]:
    """Sizes of a small model of transformers, as its configuration names them."""
    return {
        **{"hidden_size": width, "intermediate_size": 3 * width // 2, "num_hidden_layers": 2},
        **{"num_attention_heads": 4, "num_key_value_heads": 2},
        **{"vocab_size": 64, "max_position_embeddings": 64},
    }


def small_llama(width: int = 64, *, tied: bool = False) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**sizes(width), tie_word_embeddings=tied)).eval()


def write_packed(
    model: PreTrainedModel,
    folder: Path,
    pack: Pack,
    settings: Mapping[str, Any],
    *,
    field: str = "quantization_config",
) -> dict[str, Tensor]:
    """Write a model, and return the weights that its packed ones stand for, by their names.

    Args:
        pack: makes tensors of a weight, [out, in], and the weight that these stand for.
        settings: of the tool, for the configuration.
    """
    model.save_pretrained(folder)
    (folder / "model.safetensors").unlink()
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, field: dict(settings)}))
    tensors = {name: one.detach().clone() for name, one in model.state_dict().items()}
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | Conv1D) and name != "lm_head":
            turn = isinstance(module, Conv1D)
            weight = tensors.pop(f"{name}.weight")
            parts, stands = pack(weight.T if turn else weight)
            tensors |= {f"{name}.{part}": one.contiguous() for part, one in parts.items()}
            module.weight.data = stands.T if turn else stands
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    kept = {name: one for name, one in tensors.items() if name not in tied}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    return {name: one.detach() for name, one in model.state_dict().items()}


def pack_gptq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Pack in four bits, the inputs of a group lying apart, as GPTQ orders them."""
    rows, columns = weight.shape
    groups = torch.arange(columns) % (columns // GROUP)
    scales = torch.stack([weight[:, groups == one].abs().amax(1) for one in groups.unique()]) / 7
    scales = scales.half()
    spread = scales.T[:, groups].float()
    numbers = (weight.float() / spread).round().clamp(-8, 7).int() + 8
    zeros = torch.full((len(scales), rows), 7)  # one less than it is
    parts = {
        "qweight": _words(numbers.T.unflatten(0, (-1, 8)), 1),
        "qzeros": _words(zeros.unflatten(1, (-1, 8)), 2),
        "scales": scales,
        "g_idx": groups.int(),
    }
    return parts, (numbers - 8).half() * scales.T[:, groups]


def pack_awq(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Pack in four bits from a zero of each group, eight outputs in a word, in AWQ's order."""
    parts = weight.float().unflatten(1, (-1, GROUP))
    low, high = parts.amin(2).clamp(max=0), parts.amax(2).clamp(min=0)
    scales = ((high - low) / 15).half()
    zeros = (-low / scales).round().clamp(0, 15).int()
    numbers = ((parts / scales[..., None]).round().int() + zeros[..., None]).clamp(0, 15)
    stands = (numbers - zeros[..., None]).half() * scales[..., None]
    order = [0, 2, 4, 6, 1, 3, 5, 7]
    packed = {
        "qweight": _words(numbers.flatten(1).T.unflatten(1, (-1, 8))[..., order], 2),
        "qzeros": _words(zeros.T.unflatten(1, (-1, 8))[..., order], 2),
        "scales": scales.T,
    }
    return packed, stands.flatten(1)


def pack_mlx(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Pack in eight bits with a scale and a bias for each group, as MLX does."""
    parts = weight.float().unflatten(-1, (-1, GROUP))
    biases = parts.amin(-1).half()
    scales = ((parts.amax(-1) - biases) / 255).half()
    numbers = ((parts - biases[..., None]) / scales[..., None]).round().clamp(0, 255)
    stands = numbers.half() * scales[..., None] + biases[..., None]
    words = numbers.flatten(-2).to(torch.uint8).view(torch.uint32)
    return {"weight": words, "scales": scales, "biases": biases}, stands.flatten(-2)


def pack_fp8(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Pack in eight bits with one scale, and beside it that of what enters, as ModelOpt does."""
    scale = weight.abs().max().float() / 448
    held = (weight.float() / scale).to(torch.float8_e4m3fn)
    parts = {"weight": held, "weight_scale": scale, "input_scale": torch.tensor(0.1)}
    return parts, held.float() * scale


def pack_fp8_blocks(weight: Tensor) -> tuple[dict[str, Tensor], Tensor]:
    """Pack in eight bits with a scale for each square block, as transformers does."""
    blocks = weight.float().unflatten(1, (-1, BLOCK)).unflatten(0, (-1, BLOCK))
    scales = blocks.abs().amax((1, 3)) / 448
    spread = scales.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
    held = (weight.float() / spread).to(torch.float8_e4m3fn)
    return {"weight": held, "weight_scale_inv": scales}, held.float() * spread


def _words(numbers: Tensor, side: int) -> Tensor:
    """Return words of eight numbers of four bits, which lie along a side."""
    shifts = 4 * torch.arange(8).view(-1, *[1] * (numbers.dim() - 1 - side))
    whole = (numbers.long() << shifts).sum(side)
    return (whole - (whole >> 31 << 32)).int()
