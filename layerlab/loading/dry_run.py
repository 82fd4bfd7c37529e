"""Calls a model on the meta device, where nothing takes room, and counts what it would take.

Tables of positions, masks, padding up to the length of a chunk: no weights tell of what a model
computes for itself, and no list of fields names it for all families.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import PreTrainedModel

from layerlab.errors import UserError
from layerlab.observe.architecture.structure import text_config
from layerlab.records.parse import one_line
from layerlab.system.hooks import temporary_hooks
from layerlab.system.offload import running_device

# Of an input; as many copies of its weights a mixture of experts may gather.
TOKENS = 4
# Bytes of tables that a model computes for itself, masks and positions; real ones have half of it.
TABLES = 256 << 20
# Operations on tensors in which a model is built, or called, and how many more for each weight of
# it; real ones take a tenth.
STEPS, MORE = 10_000, 100

_ATEN: Any = torch.ops.aten
# What depends on values, which nothing has on the meta device.
_ANSWERS: Mapping[Any, Any] = {
    _ATEN._local_scalar_dense.default: lambda one: 1,
    _ATEN.equal.default: lambda *_: True,
    _ATEN.nonzero.default: lambda one: one.new_empty((0, one.ndim), dtype=torch.long),
    _ATEN._grouped_mm.default: lambda a, b, *_, **__: a.new_empty((*a.shape[:-1], b.shape[-1])),
}
# Whether what was called already came to its end: models of one configuration take the same.
_CALLED: dict[tuple[type, str], bool] = {}


class Footprint(TorchDispatchMode):
    """Counts operations, and holds the bytes of what comes of each against a limit.

    Raises:
        UserError: within, as soon as there are more of either than is allowed.
    """

    def __init__(self, what: str, weights: int, most: float = float("inf")) -> None:
        super().__init__()
        self.what, self.most = what, most
        self.left = STEPS + MORE * weights

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation and count what comes of it."""
        self.left -= 1
        if self.left < 0:
            raise UserError(
                f"{self.what} takes more operations to be built and called than any real model "
                "with weights like those beside it; mend its number of layers or of parts"
            )
        found = _ANSWERS.get(func, func)(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, torch.Tensor):
                self.check(one.untyped_storage().nbytes())
        return found

    def check(self, room: int) -> None:
        """Refuse a tensor of so many bytes, if they are more than is allowed.

        Raises:
            UserError: they are.
        """
        if room > self.most:
            raise UserError(
                f"{self.what} computes tables of {room / 2**30:,.1f} GiB for itself, more than its "
                "weights have; mend the number of positions (max_position_embeddings, n_positions, "
                "max_seq_len) or what inputs are padded to (chunk_size)"
            )


def check_call(model: PreTrainedModel, what: str) -> bool:
    """Refuse a model, on the meta device, for what it would compute for itself in every call.

    What else fails in it may be the meta device's fault: it has to be called with its weights.

    Args:
        what: is called, for the message.

    Returns:
        Whether the call came to its end.

    Raises:
        UserError: a tensor takes more than any real model's does, or there is no end of them.
    """
    key = type(model), model.config.to_json_string(use_diff=False)
    if key in _CALLED:
        return _CALLED[key]
    sizes = [one.numel() * one.itemsize for one in model.parameters()]
    footprint = Footprint(what, len(sizes), max(TABLES, sum(sizes)))
    for one in model.buffers():
        footprint.check(one.numel() * one.itemsize)
    footprint.most = max(TABLES, TOKENS * sum(sizes))
    tokens = torch.ones(1, TOKENS, dtype=torch.long, device="meta")
    called, logits = True, None
    try:
        with warnings.catch_warnings(action="ignore"), footprint, torch.device("meta"):
            with torch.no_grad():
                logits = getattr(model(input_ids=tokens), "logits", None)
    except UserError:
        raise
    except Exception:  # of an operation that the meta device does not have
        called = False
    if logits is not None and logits.shape[:2] != tokens.shape:
        raise UserError(
            f"{what} gives logits of shape {tuple(logits.shape)} for {TOKENS} tokens, and not one "
            "row for each; expected a causal language model"
        )
    _CALLED[key] = called
    return called


def check_real_call(model: PreTrainedModel, source: str) -> None:
    """Refuse a model that cannot be called, whatever its configuration says.

    Args:
        model: with its weights.
        source: that it came from, for the message.

    Raises:
        UserError: what went wrong.
    """
    if fault := _try_call(model):
        raise UserError(
            f"the model of config.json in {source!r} cannot be called: {fault}; mend its numbers, "
            "or put the config.json there that the weights were saved with"
        )


def check_loaded(model: PreTrainedModel, blocks: Sequence[nn.Module]) -> None:
    """Refuse a model in memory that was changed since: in dtypes, or in the layers that it runs.

    It is called only where its weights have several dtypes, or its configuration counts other
    layers than it has.

    Raises:
        UserError: it cannot be called, or not all of its layers run.
    """
    name, layers = type(model).__name__, getattr(text_config(model), "num_hidden_layers", None)
    dtypes = {str(one.dtype).removeprefix("torch.") for one in model.parameters()}
    if len(dtypes) < 2 and layers == len(blocks):
        return
    ran: set[int] = set()
    with temporary_hooks(
        block.register_forward_pre_hook(lambda *_, index=index: ran.add(index))
        for index, block in enumerate(blocks)
    ):
        fault = _try_call(model)
    if fault and len(dtypes) > 1:
        raise UserError(
            f"{name} cannot be called: {fault}; its weights are of {' and '.join(sorted(dtypes))}: "
            "type model.to(...) with one of them"
        )
    if not fault and len(ran) < len(blocks):
        raise UserError(
            f"{name} holds {len(blocks)} layers and runs {len(ran)}: its configuration counts "
            f"{layers}; cut its list of layers to those that run, or set "
            f"num_hidden_layers={len(blocks)}"
        )


def _try_call(model: PreTrainedModel) -> str:
    """Call a model on a few tokens, and return what went wrong in one line; nothing if it ran."""
    tokens = torch.ones(1, TOKENS, dtype=torch.long, device=running_device(model))
    message = ""
    # Some families fail with a cache alone, and some code of a model's own knows none.
    for options in ({"use_cache": False}, {}):
        try:
            with torch.no_grad(), torch.random.fork_rng(devices=[]):
                model(input_ids=tokens, **options)
            return ""
        except Exception as error:  # whatever a family does with what stands in its configuration
            message = message or one_line(error)
    return message
