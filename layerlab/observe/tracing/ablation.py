"""Parts of a block taken out while the model runs: another head or sublayer in each row of a batch.

What a head gives is A_h v_h, before the output projection; what a sublayer gives is what it adds to
the stream. Both are heard where the model's own code hands them on, and put back changed, for the
length of a context: weights and modules stay what they are. A family that computes its attention by
itself is changed at the input of its output projection, where its weights were recognized.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.qkv_layouts import output_projection
from layerlab.observe.architecture.structure import (
    AttentionPart,
    ModelStructure,
    first_tensor,
    with_first,
)
from layerlab.observe.tracing.attention.probe import AttentionCall, probe
from layerlab.observe.tracing.block_calls import residual_of
from layerlab.observe.tracing.device_schedule import widen
from layerlab.observe.tracing.records import Layer
from layerlab.system.hooks import replacing_forward, temporary_hooks

Component = Literal["head", "attention", "ffn"]
SUBLAYERS: tuple[Component, ...] = ("attention", "ffn")
# Given what a component gave to every row of a batch, change it in place, and return the rows that
# were changed. Heads: row x token x head x value_width; sublayers: row x token x width.
Touch = Callable[["BlockParts", Component, Tensor], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class BlockParts:
    """Parts of one block that can be taken out; of several attentions each has its own.

    Attributes:
        heads: of its attention, 0 where they cannot be told apart.
        first: the number of its first head in the block.
        attention: the module that computes them.
        projection: what reads them, where the attention does not ask the `AttentionInterface`.
        sublayers: the modules whose outputs join the stream, by component.
        refused: why there are no heads, or no sublayer of a kind.
    """

    block: int
    heads: int = 0
    first: int = 0
    attention: AttentionPart | None = None
    projection: nn.Module | None = None
    sublayers: Mapping[Component, nn.Module] = field(default_factory=dict)
    refused: Mapping[Component, str] = field(default_factory=dict)

    @property
    def key(self) -> tuple[int, int]:
        """Block and first head, by which an attention is known."""
        return self.block, self.first

    @property
    def components(self) -> set[Component]:
        """Return the components that can be ablated."""
        return {*self.sublayers, *(("head",) if self.heads else ())}


def find_parts(anatomy: ModelStructure, layer: Layer) -> BlockParts:
    """Return what can be taken out of the block of a traced layer."""
    sublayers: dict[Component, nn.Module] = {}
    refused: dict[Component, str] = {}
    for name in SUBLAYERS:
        found = layer.sublayers.get(name)
        if found is None:
            refused[name] = "the block does not expose it as a module of its own"
        elif found.branch is None or found.joins is None:
            refused[name] = "no sum in the block shows that its output joins the stream"
        else:
            sublayers[name] = found.joins
    if layer.attention is None:
        refused["head"] = "the block has no softmax attention that was heard"
        return BlockParts(block=layer.layer, sublayers=sublayers, refused=refused)
    part = anatomy.attention(layer.attention.name)
    projection = None
    if not part.interface:
        projection = output_projection(anatomy.blocks[part.block], part.module)
        has_output = layer.weights is not None and layer.weights.output is not None
        if projection is None or not has_output:
            refused["head"] = _unknown(layer)
            return BlockParts(block=layer.layer, sublayers=sublayers, refused=refused)
    return BlockParts(
        block=layer.layer,
        heads=layer.attention.heads,
        first=layer.attention.first,
        attention=part,
        projection=projection,
        sublayers=sublayers,
        refused=refused,
    )


def _unknown(layer: Layer) -> str:
    refused = {} if layer.weights is None else layer.weights.refused
    return refused.get("output", "which inputs of the output projection a head gives is not known")


@contextmanager
def touching(
    anatomy: ModelStructure,
    blocks: Sequence[BlockParts],
    components: Sequence[Component],
    touch: Touch,
    rows: int = 1,
) -> Iterator[None]:
    """Hand what components of blocks give to a function that may change it.

    It is called for as long as the context is open.

    Args:
        rows: of the batch; some families give all tokens of all rows one after the other.

    Raises:
        NotApplicable: what an attention gives is not one row per token and head.
    """
    running = set[int]()

    def touch_running(parts: BlockParts, component: Component, given: Tensor) -> Sequence[int]:
        # Other blocks may share a module with the one that is spoken of.
        return touch(parts, component, given) if parts.block in running else ()

    with ExitStack() as stack:
        for one in blocks:
            stack.enter_context(_following(anatomy, one.block, running))
            for name in SUBLAYERS:
                if name in components and name in one.sublayers:
                    hook = partial(_touch_sublayer, one, name, touch_running, rows)
                    handle = one.sublayers[name].register_forward_hook(hook, with_kwargs=True)
                    stack.callback(handle.remove)
            if "head" in components and one.projection is not None:
                enter = partial(_touch_projection, one, touch_running)
                stack.callback(one.projection.register_forward_pre_hook(enter).remove)
        asking = [
            (one, one.attention.module)
            for one in blocks
            if one.attention is not None and one.projection is None
        ]
        if "head" in components and asking:

            def receive(call: AttentionCall) -> None:
                for one, module in asking:
                    if call.part.module is module and one.block in running:
                        touch(one, "head", _by_head(call.output, one.heads))

            stack.enter_context(probe(anatomy, receive))
        yield


@contextmanager
def _following(anatomy: ModelStructure, block: int, running: set[int]) -> Iterator[None]:
    """Have a set hold the number of a block for as long as it runs."""
    module = anatomy.blocks[block]
    enter = module.register_forward_pre_hook(lambda *_: running.add(block))
    leave = module.register_forward_hook(lambda *_: running.discard(block), always_call=True)
    with temporary_hooks([enter, leave]):
        yield


def _by_head(output: Tensor | None, heads: int) -> Tensor:
    if output is None or output.dim() != 4 or output.shape[2] != heads:
        raise NotApplicable("what its attention gives is not one row per token and head")
    return output


def _touch_projection(one: BlockParts, touch: Touch, module: nn.Module, args: Any) -> Any:
    joined = _copy(args[0])
    touch(one, "head", joined.unflatten(-1, (one.heads, -1)))
    return (joined, *args[1:])


def _touch_sublayer(
    one: BlockParts,
    name: Component,
    touch: Touch,
    rows: int,
    module: nn.Module,
    args: Any,
    options: Any,
    output: Any,
) -> Any:
    """Change what a sublayer adds; a residual that it adds inside stays."""
    result = first_tensor(output)
    residual = residual_of(module, args, options)
    added = _copy(result if residual is None else result - residual)
    touched = list(touch(one, name, _rows(added, rows)))
    if not touched:
        return None
    changed = _copy(result)
    given = added if residual is None else residual + added
    _rows(changed, rows)[touched] = _rows(given, rows)[touched]
    return with_first(output, changed)


def _copy(features: Tensor) -> Tensor:
    return features.clone(memory_format=torch.contiguous_format)


def _rows(features: Tensor, rows: int) -> Tensor:
    """Return features as row x token x width: a view, to write into."""
    return features.view(rows, -1, features.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Removal:
    """Part that one row of a batch does without: a head, or a sublayer where `head` is None."""

    component: Component
    head: int | None = None


@dataclass(frozen=True, kw_only=True)
class HeadsGiven:
    """Output of an attention in a forward of one sequence.

    Attributes:
        projection: what made the attention's output of its heads.
        joined: the heads side by side, as the projection read them.
        output: of the attention.
    """

    projection: nn.Module
    joined: Tensor
    output: Any


@contextmanager
def hearing_heads(
    anatomy: ModelStructure, blocks: Sequence[BlockParts]
) -> Iterator[dict[tuple[int, int], HeadsGiven]]:
    """Keep what the attention of blocks gives in the one forward that is made in the context.

    By the key of its parts, once the context ends. Left out is an attention that does anything else
    with its heads than hand them to its projection, or with what that makes of them than give it
    back.
    """
    found: dict[tuple[int, int], HeadsGiven] = {}
    heads: dict[tuple[int, nn.Module], Tensor | None] = {}
    seen: dict[nn.Module, tuple[Any, Any]] = {}

    def keep(module: nn.Module, args: Any, output: Any) -> None:
        seen[module] = (args, output)

    def receive(call: AttentionCall) -> None:
        heads[call.part.block, call.part.module] = call.output

    reading: dict[tuple[int, int], tuple[AttentionPart, nn.Module]] = {}
    for one in blocks:
        if one.heads and one.attention is not None:
            part = one.attention
            projection = one.projection or output_projection(
                anatomy.blocks[part.block], part.module
            )
            if projection is not None:
                reading[one.key] = (part, projection)
    with ExitStack() as stack:
        for part, projection in reading.values():
            for module in (part.module, projection):
                stack.callback(module.register_forward_hook(keep).remove)
        if any(part.interface for part, _ in reading.values()):
            stack.enter_context(probe(anatomy, receive))
        yield found
    for key, (part, projection) in reading.items():
        if part.module not in seen or projection not in seen:
            continue
        ((joined, *_), made), (_, output) = seen[projection], seen[part.module]
        alike = isinstance(joined, Tensor) and joined.dim() == 3 and joined.shape[0] == 1
        if alike and part.interface:
            given = heads.get((part.block, part.module))
            alike = given is not None and torch.equal(given.flatten(2), joined)
        if alike and torch.equal(first_tensor(output), made):
            found[key] = HeadsGiven(projection=projection, joined=joined, output=output)


class Means:
    """The mean over all tokens of what each component gave, to stand in its place."""

    def __init__(self) -> None:
        self.sums: dict[tuple[tuple[int, int], Component], Tensor] = {}
        self.tokens: dict[tuple[tuple[int, int], Component], int] = {}

    def add(self, parts: BlockParts, component: Component, given: Tensor) -> Sequence[int]:
        """Take in one sequence; nothing is changed."""
        key, rows = (parts.key, component), widen(given.flatten(0, 1))
        self.sums[key] = self.sums.get(key, torch.zeros_like(rows[0])) + rows.sum(0)
        self.tokens[key] = self.tokens.get(key, 0) + len(rows)
        return ()

    def mean(self, parts: BlockParts, component: Component) -> Tensor:
        """Return the mean: head x value_width, or of the width of the stream."""
        return self.sums[parts.key, component] / self.tokens[parts.key, component]


@contextmanager
def removing(
    anatomy: ModelStructure,
    parts: BlockParts,
    rows: Sequence[Removal | None],
    means: Means | None = None,
    heads: HeadsGiven | None = None,
) -> Iterator[None]:
    """Take from each row of a batch what it does without; None leaves a row as it is.

    Args:
        parts: of the block that all rows speak of.
        means: what stands in its place; nothing, if left out.
        heads: what its attention gives on the very stream that all rows begin with, and does not
            compute again for each.
    """

    def touch(parts: BlockParts, component: Component, given: Tensor) -> Sequence[int]:
        changed = [n for n, one in enumerate(rows) if one and one.component == component]
        for number in changed:
            one = rows[number]
            assert one is not None
            part = given[number] if one.head is None else given[number, :, one.head]
            if means is None:
                part.zero_()
            else:
                mean = means.mean(parts, component)
                part.copy_((mean if one.head is None else mean[one.head]).expand_as(part))
        return changed

    def stand_in(*args: Any, **options: Any) -> Any:
        assert heads is not None
        made = heads.projection(heads.joined.repeat(len(rows), 1, 1))
        return with_first(heads.output, made)

    components = sorted({one.component for one in rows if one is not None})
    with ExitStack() as stack:
        if heads is not None and parts.attention is not None:
            stack.enter_context(replacing_forward(parts.attention.module, stand_in))
            parts = replace(parts, projection=heads.projection)
        stack.enter_context(touching(anatomy, [parts], components, touch, len(rows)))
        yield
