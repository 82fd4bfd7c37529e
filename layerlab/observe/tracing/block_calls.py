"""Calls of one block and its children in a forward pass, and the sublayers read from them."""

import inspect
import re
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import AttentionPart, first_tensor
from layerlab.observe.tracing.attention.probe import AttentionCall
from layerlab.observe.tracing.records import Sublayer
from layerlab.observe.tracing.residual_scale import factor

_MIXER = re.compile("attn|attention|mamba|mixer|conv|recurrent|rnn|norm", re.IGNORECASE)


@dataclass(kw_only=True)
class ChildCall:
    """One child of a block at work.

    `kept` is a copy of what `left` held: some families add to it in place afterwards.
    """

    module: nn.Module
    name: str
    entered: Tensor
    left: Tensor
    kept: Tensor
    residual: Tensor | None
    args: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def heavy(self) -> bool:
        return any(parameter.dim() > 1 for parameter in self.module.parameters())


@dataclass(kw_only=True)
class BlockCall:
    """One block at work: what it was called with and what its children did."""

    index: int
    args: tuple[Any, ...]
    options: dict[str, Any]
    entered: Tensor
    calls: list[ChildCall] = field(default_factory=list)
    inner: dict[nn.Module, ChildCall] = field(default_factory=dict)
    attention_calls: list[AttentionCall] = field(default_factory=list)

    @property
    def positions(self) -> int:
        return self.entered.shape[-2]


def hidden_call(
    name: str, module: nn.Module, args: Any, options: Any, output: Any, tokens: int
) -> ChildCall | None:
    """Return the call of a child that gave features of every token; None of any other child."""
    left = first_tensor(output)
    if not _is_stream(left, tokens):
        return None
    return ChildCall(
        module=module,
        name=name,
        entered=find_stream(args, options),
        left=left,
        kept=left.clone(),
        residual=residual_of(module, args, options),
        args=args,
        options=options,
    )


def find_stream(args: tuple[Any, ...], options: dict[str, Any]) -> Tensor:
    """Return the stream among the arguments of a block: the first floating tensor, by convention.

    Raises:
        NotApplicable: there is none.
    """
    given = [*args, options.get("hidden_states"), *options.values()]
    for value in given:
        if isinstance(value, Tensor) and value.is_floating_point():
            return value
    raise NotApplicable("its blocks are not called with hidden features")


def residual_of(module: nn.Module, args: Any, options: Any) -> Tensor | None:
    """Return the stream that a module is given to add to what it computes, None where it adds none.

    Families that do so call the argument `residual`.
    """
    if not hasattr(module, "forward"):
        return None
    signature = inspect.signature(type(module).forward)
    if "residual" not in signature.parameters:
        return None
    return signature.bind_partial(module, *args, **options).arguments.get("residual")


def sublayers(
    block_call: BlockCall, part: AttentionPart | None, stream: Tensor | None = None
) -> dict[str, Sublayer]:
    """Return what attention and feed-forward saw and gave, where the block exposes them.

    A shortcut beside attention is what else holds matrices and reads what attention reads.

    Args:
        stream: what the block gave; without it no branch is seen to join.
    """
    found: dict[str, Sublayer] = {}
    outer = None if part is None else part.outer
    first = next((i for i, call in enumerate(block_call.calls) if call.module is outer), None)
    if first is not None and part is not None:
        call = block_call.calls[first]
        # Where a norm lies between a child and its attention, theorems speak of the inner one.
        inner = block_call.inner.get(part.module, call)
        found["attention"] = _sublayer(block_call, inner, call, stream)
    heavy = [
        call
        for call in block_call.calls
        if call.module is not outer and call.heavy and not _MIXER.search(call.name)
    ]
    linear = all(isinstance(call.module, nn.Linear) for call in heavy)
    if len(heavy) == 1 or (len(heavy) == 2 and linear):
        found["ffn"] = _sublayer(block_call, heavy[0], heavy[-1], stream)
    beside = [
        call
        for call in block_call.calls
        if first is not None
        and call.module is not outer
        and call.heavy
        and call.entered is block_call.calls[first].entered
        and not ("ffn" in found and any(call is one for one in heavy))
    ]
    if len(beside) == 1:
        found["shortcut"] = _sublayer(block_call, beside[0], beside[0], stream)
    return found


def _sublayer(
    block_call: BlockCall, begin: ChildCall, end: ChildCall, stream: Tensor | None
) -> Sublayer:
    """Return a sublayer from its first child to its last.

    Some families norm (or drop out) the branch before it joins the stream: whatever reads the
    sublayer's very output is part of the branch, unless it adds the residual. Some add the residual
    inside the sublayer: it is taken off again. Some scale the branch by a constant.
    """
    branch, current, joins = _net(end), end.left, end.module
    for call in block_call.calls:
        reads = call.entered is current and call.module is not end.module
        if reads and end.residual is None and call.residual is None:
            branch, current = call.kept, call.left
            # It changes nothing here, and a block may have one dropout for all of its branches.
            joins = joins if isinstance(call.module, nn.Dropout) else call.module
    branch = one_sequence(branch)
    scale = None if stream is None else _factor(block_call, branch, stream)
    nested = begin.module is not end.module and any(m is begin.module for m in end.module.modules())
    left = _net(begin if nested else end)
    return Sublayer(
        entered=one_sequence(begin.entered),
        left=one_sequence(left),
        branch=None if scale is None else branch if scale == 1 else branch * scale,
        joins=joins,
    )


def _factor(block_call: BlockCall, branch: Tensor, stream: Tensor) -> float | None:
    """Return the constant factor with which a branch joins the stream.

    Norms read the stream, and in a post-norm block give it.
    """
    entered = [block_call.entered, *(call.entered for call in block_call.calls)]
    normed = [call.kept for call in block_call.calls if not call.heavy]
    heavy = [_net(call) for call in block_call.calls if call.heavy]
    return factor(
        branch,
        sums=_like(branch, [stream, *entered]),
        bases=_like(branch, [*entered, *normed]),
        beside=_like(branch, heavy),
    )


def _like(branch: Tensor, given: list[Tensor]) -> list[Tensor]:
    """Return the features that could be added to a branch."""
    return [flat for one in given if (flat := one_sequence(one)).shape == branch.shape]


def _net(call: ChildCall) -> Tensor:
    """Return what a module gave, without the residual that some modules add inside."""
    return call.kept if call.residual is None else call.kept - call.residual


def one_sequence(features: Tensor) -> Tensor:
    """Return the features of a batch of one; a few families drop the batch axis themselves."""
    return features[0] if features.dim() == 3 else features


def _is_stream(features: Any, tokens: int) -> bool:
    return (
        isinstance(features, Tensor)
        and features.is_floating_point()
        and features.dim() in (2, 3)
        and features.shape[-2] == tokens
    )
