"""A trial of a model: what it makes of a few tokens, by which it is known again.

Code that was put in the place of other code leaves weights and settings as they are.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from layerlab.observe.architecture.structure import context_length, text_config
from layerlab.system.hardware import is_out_of_memory, machine
from layerlab.system.logs import quiet_libraries
from layerlab.system.offload import running_device
from layerlab.system.torch_settings import evaluation_mode

# Tokens that are tried, and how many may be written behind them.
LONG, NEW = 24, 2
# How far logits may be from others that sums in another order gave, as a share of their spread:
# thousands of roundings in wide formats and tens in narrow ones, which are left behind many layers;
# padding that is read leaves 0.1 to 1.
SLACK = {torch.float64: 1e-9, torch.float32: 1e-3, torch.float16: 2**-6, torch.bfloat16: 2**-4}
# The same of one text by itself, on another machine.
ELSEWHERE = SLACK | {torch.float32: 1e-4}
TrialRun = Mapping[str, Any]


def trial_ids(model: Any) -> list[int]:
    """Return the tokens that are tried."""
    config = text_config(model)
    entries = getattr(config, "vocab_size", None) or LONG
    context = context_length(model) or LONG + NEW
    # What is special, and may be no text, comes first or last in most vocabularies.
    return [(16 + 7 * index) % entries for index in range(max(2, min(LONG, context - NEW)))]


def read_texts(model: Any, texts: Sequence[Sequence[int]], fill: int = 0) -> list[Tensor]:
    """Return the logits of each text, in a batch that a token fills up behind them."""
    longest = max(map(len, texts))
    rows = [[*one, *[fill] * (longest - len(one))] for one in texts]
    ids = torch.tensor(rows, device=running_device(model))
    logits = model(input_ids=ids, use_cache=False).logits
    return [row[: len(one)] for row, one in zip(logits, texts, strict=True)]


def distance(found: Tensor, alone: Tensor) -> float:
    """Return how far logits are from others, as a share of the spread of these."""
    one, other = (torch.where(x.isfinite(), x, 0).double().cpu() for x in (found, alone))
    spread = (other - other.mean(-1, keepdim=True)).norm()
    return float((one - other).norm() / spread) if spread else float(one.ne(other).any())


@torch.no_grad()
def try_model(model: Any) -> TrialRun | None:
    """Return what a model makes of the tokens that are tried, and where it did.

    Returns:
        Log-probabilities in nats: of each next token, and of the likeliest; None of a model that
        gives no finite logits, or takes no such tokens.
    """
    ids = trial_ids(model)
    with quiet_libraries(), evaluation_mode(model):
        try:
            found = read_texts(model, [ids])[0][:-1].double().cpu().log_softmax(-1)
            own = found.gather(1, torch.tensor(ids[1:])[:, None])[:, 0]
        except Exception as error:  # of a model that gives no logits, or not of these tokens
            if is_out_of_memory(error):
                raise
            return None
    values = [*own.tolist(), *found.amax(-1).tolist()]
    if not all(map(math.isfinite, values)):
        return None
    where = machine(str(running_device(model)), torch.get_num_threads())
    return {"dtype": str(model.dtype), "where": where, "values": values}


def is_same_trial(one: TrialRun | None, other: TrialRun | None) -> bool:
    """Return whether two trials may be of one model: to the bit where both ran on one processor."""
    if one is None or other is None or len(one["values"]) != len(other["values"]):
        return one is other
    if one["where"] == other["where"] and one["where"]["device"] == "cpu":
        return bool(one["values"] == other["values"])
    known = {str(dtype): slack for dtype, slack in ELSEWHERE.items()}
    found, alone = (torch.tensor(each["values"]) for each in (one, other))
    return one["dtype"] == other["dtype"] and distance(found, alone) <= known.get(
        one["dtype"], 2**-4
    )
