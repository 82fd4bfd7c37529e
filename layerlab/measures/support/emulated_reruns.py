"""One sequence through one model again and again: in float64, in any format, and predicted."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import nan
from typing import Any

from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.measures.measure import MeasureContext, ModelContext
from layerlab.numerics.emulation.arithmetic import exact, make_arithmetic
from layerlab.numerics.emulation.attribution import clear_masked, outputs, read_outputs
from layerlab.numerics.emulation.emulate import Emulation
from layerlab.numerics.formats.format_list import parse_formats
from layerlab.numerics.prediction.predict import spreads
from layerlab.observe.tracing.block_calls import find_stream
from layerlab.observe.tracing.gradients import are_logits
from layerlab.system.hooks import temporary_hooks


def formats(run: MeasureContext) -> list[str]:
    """Return the requested formats, by name.

    Raises:
        UserError: a name that is no format.
    """
    return parse_formats(run.options["formats"])


@dataclass(frozen=True, kw_only=True)
class Reruns:
    """One sequence through one model, in any arithmetic.

    Attributes:
        blocks: whose outputs are the stream.
        front: the module whose output is the stream in front of the blocks, if one gives it.
        true: the stream in front of the blocks and behind each, and the logits, in float64.
    """

    model: nn.Module
    tokens: Tensor
    blocks: tuple[nn.Module, ...]
    front: nn.Module | None
    true: list[Tensor]

    def call(self) -> Any:
        return forward(self.model, self.tokens)

    def read_emulated(self, format: str, mode: str, read: Callable[[int, Tensor], None]) -> None:
        """Read the same outputs as `true` in a format, by their place there; none is kept."""
        run = Emulation(self.model, make_arithmetic(format, mode))
        read_outputs(run, self.call, self.blocks, lambda index, seen: read(index, seen[0]))

    def predict(self, format: str, kind: str) -> list[float]:
        """Return the predicted or bounded errors, at the places of `true`.

        `kind` is "sampled" or "variance" for a prediction.

        The mean over the tokens of the norm of what is expected, over the norm of the features.

        Raises:
            UserError: an operation that nothing is known of.
        """
        modules = [*([] if self.front is None else [self.front]), *self.blocks]
        true = [one[None] for one in self.true[self.front is None :]]
        values, found = spreads(
            self.model, self.call, make_arithmetic(format), modules, kind, true=true
        )
        means = [_relative(one[0], true[0]) for one, true in zip(found, values, strict=True)]
        return means if self.front is not None else [nan, *means]


def _relative(spread: Tensor, true: Tensor) -> float:
    spread, true = clear_masked(spread, true)
    return float((spread.norm(dim=-1) / true.norm(dim=-1)).mean())


def forward(model: Any, tokens: Tensor) -> Any:
    """Return one forward pass without a cache.

    Raises:
        NotApplicable: it gives no logits, as a model without a head, or with one of labels.
    """
    found = model(input_ids=tokens[None], use_cache=False)
    if not are_logits(getattr(found, "logits", None), tokens):
        raise NotApplicable("it gives no logits")
    return found


def reruns(context: ModelContext, tokens: Tensor) -> Reruns:
    """Return the reference run of one sequence, ready for others beside it.

    Raises:
        NotApplicable: what its blocks pass on is not one vector per token.
    """
    model, stack = context.subject.model, context.subject.stack
    run = Emulation(model, exact(model.dtype))
    with _giving(model, stack.blocks[0]) as given:
        found = outputs(run, lambda: forward(model, tokens), stack.blocks)
    for one in found:
        if one.dim() != 3 or one.shape[:2] != (1, len(tokens)):
            shape = tuple(one.shape)
            raise NotApplicable(f"its blocks pass a tensor of shape {shape}, not one per token")
    true = [one[0] for one in found]
    front = given[0] if given else None
    return Reruns(model=model, tokens=tokens, blocks=stack.blocks, front=front, true=true)


@contextmanager
def _giving(model: nn.Module, block: nn.Module) -> Iterator[list[nn.Module]]:
    """Find the module whose output the block is called with.

    The list is filled once the block was called.
    """
    last: list[tuple[nn.Module, Any]] = []
    found: list[nn.Module] = []

    def leave(module: nn.Module, args: Any, output: Any) -> None:
        last[:] = [(module, output), *last[:3]]

    def enter(module: nn.Module, args: Any, options: Any) -> None:
        entered = find_stream(args, options)
        found[:] = [one for one, output in last if output is entered]

    inside = set(block.modules())
    handles = [m.register_forward_hook(leave) for m in model.modules() if m not in inside]
    handles.append(block.register_forward_pre_hook(enter, with_kwargs=True))
    with temporary_hooks(handles):
        yield found
