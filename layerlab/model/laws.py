"""Laws that every variant keeps; `check` tries them on a small model of one.

The model is in float64, with noise on every parameter so that no start hides what a part does.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode
from transformers import DynamicCache

from layerlab.model.build import build
from layerlab.model.cost.cost import account
from layerlab.model.design import SIZES as NAMES
from layerlab.model.modeling import LabForCausalLM
from layerlab.system.model_cache import read_on
from layerlab.variants.registry import variant

SIZES = {"width": 48, "layers": 3, "heads": 4, "vocab": 61, "context": 24}
TIGHT = 1e-11  # float64: logits of size 10 after thousands of operations that round by 1e-16 each


@dataclass(frozen=True, kw_only=True)
class LawResult:
    """The outcome of one law.

    Attributes:
        law: in words.
        found: what speaks against it; empty where it holds.
    """

    law: str
    found: str

    @property
    def holds(self) -> bool:
        """Return whether nothing speaks against the law."""
        return not self.found

    def __str__(self) -> str:
        return f"holds: {self.law}" if self.holds else f"FAILS: {self.law}: {self.found}"


def check(name: str, **options: Any) -> list[LawResult]:
    """Try the laws on a variant.

    Args:
        options: as `build` takes them.

    Raises:
        UserError: an unknown name or option.

    Example:
        >>> all(verdict.holds for verdict in check("llama"))
        True
    """
    declared = variant(name).start == "identity" and set(options) <= set(NAMES)
    laws = {**LAWS, **STARTS} if declared else LAWS
    verdicts = []
    for law, speaks in laws.items():
        model = build(name, **{**SIZES, **options})
        verdicts.append(LawResult(law=law, found=speaks(model)))
    return verdicts


def causality(model: LabForCausalLM) -> str:
    """Check that logits before a changed token stay, and that those from it on do not."""
    _shake(model)
    x = _tokens(model)
    y, half = x.clone(), x.shape[1] // 2
    y[:, half:] = (y[:, half:] + 1) % model.config.vocab_size
    with torch.no_grad():
        before, after = model(x).logits, model(y).logits
    if torch.allclose(before[:, half:], after[:, half:]):
        return "logits do not depend on the tokens at all"
    return _apart(before[:, :half], after[:, :half])


def cache(model: LabForCausalLM) -> str:
    """Check that pieces with a cache give the logits of the whole."""
    _shake(model)
    x, state = _tokens(model), DynamicCache(config=model.config)
    with torch.no_grad():
        # Single tokens and longer pieces, each of them after the other.
        pieces = [x[:, :1], x[:, 1:8], *x[:, 8:10].split(1, 1), *x[:, 10:].split(5, 1)]
        steps = [read_on(model, one, state) for one in pieces]
        return _apart(torch.cat([one.logits for one in steps], 1), model(x, use_cache=False).logits)


def gradient(model: LabForCausalLM) -> str:
    """Check that every parameter has a gradient."""
    _shake(model).train()
    x = _tokens(model)
    model(x, labels=x, use_cache=False).loss.backward()
    missed = [
        name
        for name, one in model.named_parameters()
        if one.grad is None or not one.grad.abs().sum() > 0
    ]
    return f"none at {', '.join(missed)}" if missed else ""


def parameters(model: LabForCausalLM) -> str:
    """Check that the formula of the parameters gives their number."""
    formula = account(model.config.parse_spec(), model.config.shape()).parameters
    there = model.num_parameters()
    return "" if formula == there else f"cost says {formula:,}, there are {there:,}"


def operations(model: LabForCausalLM) -> str:
    """Check that the formula of the FLOPs gives what PyTorch counts with eager attention."""
    model.set_attn_implementation("eager")
    x = _tokens(model)
    formula = account(model.config.parse_spec(), model.config.shape()).forward * x.numel()
    with FlopCounterMode(display=False) as forward:
        logits = model(x, use_cache=False).logits
    with FlopCounterMode(display=False) as backward:
        logits.sum().backward()
    for wanted, counted in ((formula, forward), (2 * formula, backward)):
        there = counted.get_total_flops()
        if wanted != there:
            return f"cost says {wanted:,} for {x.numel()} tokens, counted {there:,}"
    return ""


def identity(model: LabForCausalLM) -> str:
    """Check that the model is its baseline of the same shape at step 0, as a function."""
    sizes, own = vars(model.config.shape()), variant(model.config.variant)
    other = build(own.baseline, seed=model.config.seed, **sizes).double()
    x = _tokens(model)
    with torch.no_grad():
        return _apart(model.double()(x).logits, other(x).logits)


LAWS: Mapping[str, Callable[[LabForCausalLM], str]] = {
    "a token sees nothing that comes later": causality,
    "with a cache it is the same as all at once": cache,
    "gradient reaches every parameter": gradient,
    "parameters are as the formula says": parameters,
    "FLOPs are as the formula says": operations,
}
STARTS = {"it starts as the same function as its baseline": identity}


def _tokens(model: LabForCausalLM) -> Tensor:
    numbers = torch.Generator().manual_seed(0)
    shape = (2, model.config.max_position_embeddings)
    return torch.randint(0, model.config.vocab_size, shape, generator=numbers)


def _shake(model: LabForCausalLM) -> LabForCausalLM:
    numbers = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for one in model.double().parameters():
            one.add_(torch.randn(one.shape, generator=numbers, dtype=one.dtype) * 0.1)
    return model


def _apart(one: Tensor, other: Tensor) -> str:
    far = float((one - other).abs().max())
    return "" if far <= TIGHT else f"logits differ by {far:.2g}"  # a NaN is not small either
