"""One pass over a model: hands each block's tensors to a reader while the block is computed.

Block outputs come from forward hooks, never from `hidden_states` (whose last entry is behind the
final norm). Sequences are run without padding, so nothing has to be cut. Only the block at hand is
kept. The model is left exactly as it was found, also when something raises.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import AttentionPart, ModelStructure, first_tensor
from layerlab.observe.tracing.attention.probe import AttentionCall, probe, replacing_kernels
from layerlab.observe.tracing.attention.record import AttentionRecord
from layerlab.observe.tracing.block_calls import (
    BlockCall,
    find_stream,
    hidden_call,
    one_sequence,
    sublayers,
)
from layerlab.observe.tracing.compiled import run_uncompiled
from layerlab.observe.tracing.gradients import next_token_loss, stream_gradients
from layerlab.observe.tracing.records import Layer
from layerlab.records.layer_names import EMBEDDING
from layerlab.system.torch_settings import evaluation_mode, parameter_gradients


@dataclass(kw_only=True)
class Trace:
    """The findings of a pass besides the layers it handed out.

    Attributes:
        silent: attention layers without a record in some sequence, and why in the first of them.
        no_stream: why only attention was handed out, in layers whose stream has no width.
        no_gradient: why there is no gradient, where one was wanted.
        faults: blocks whose output is not finite: (layer, what).
        loss_nats: mean next-token loss per sequence, where the model gives logits.
    """

    silent: dict[int, str] = field(default_factory=dict)
    no_stream: str | None = None
    no_gradient: str | None = None
    faults: dict[int, str] = field(default_factory=dict)
    loss_nats: list[float] = field(default_factory=list)


def trace(
    model: PreTrainedModel,
    anatomy: ModelStructure,
    sequences: Sequence[Tensor],
    read: Callable[[Layer], None],
    *,
    gradient: bool = False,
    fronts: dict[int, nn.Module] | None = None,
) -> Trace:
    """Run every sequence through the model and hand each layer to `read`.

    Args:
        sequences: token ids, one vector each; never padded.
        gradient: also hand out d loss / d stream (one more forward and a backward per sequence).
        fronts: filled, before a block is handed out, with the norm that ended the block before it
            (post-norm), by the number of the block that reads it.

    Raises:
        NotApplicable: the blocks are not called with features, or more than once in one forward.
    """
    found = Trace()
    with observing(model):
        for number, tokens in enumerate(sequences):
            gradients = _read_gradients(model, anatomy, tokens, found) if gradient else {}
            watcher = _Watcher(anatomy, number, tokens, read, gradients, found)
            watcher.fronts = {} if fronts is None else fronts
            with torch.no_grad(), watcher.listening():
                output = model(input_ids=tokens[None], use_cache=False)
            loss = next_token_loss(output, tokens)
            found.loss_nats.append(float("nan") if loss is None else float(loss))
            watcher.account()
    return found


@contextmanager
def observing(model: PreTrainedModel) -> Iterator[None]:
    """Prepare a model to be traced, and restore it when the context ends.

    It is in evaluation mode, without parameter gradients, with an attention that can be heard, and
    uncompiled.
    """
    with (
        evaluation_mode(model),
        run_uncompiled(model),
        parameter_gradients(model, wanted=False),
        replacing_kernels(model),
    ):
        yield


class _Watcher:
    """Hooks on the blocks and their children during one forward of one sequence."""

    def __init__(
        self,
        anatomy: ModelStructure,
        sequence: int,
        tokens: Tensor,
        read: Callable[[Layer], None],
        gradients: dict[int, Tensor],
        found: Trace,
    ) -> None:
        self.anatomy = anatomy
        self.sequence = sequence
        self.place = f" in sequence {sequence}" if sequence else ""
        self.tokens = tokens
        self.read = read
        self.gradients = gradients
        self.found = found
        self.block_call: BlockCall | None = None
        self.visited: set[int] = set()
        self.quiet = False
        self.aside: list[AttentionCall] | None = None
        self.answered: dict[int, int] = {}
        self.fronts: dict[int, nn.Module] = {}

    @contextmanager
    def listening(self) -> Iterator[None]:
        with ExitStack() as stack:
            for index, block in enumerate(self.anatomy.blocks):
                hooks = (
                    block.register_forward_pre_hook(
                        partial(self.enter, index), with_kwargs=True, prepend=True
                    ),
                    block.register_forward_hook(self.leave),
                    *(
                        child.register_forward_hook(
                            partial(self.hear_child, index, name), with_kwargs=True
                        )
                        for name, child in block.named_children()
                    ),
                )
                for hook in hooks:
                    stack.callback(hook.remove)
            for part in self.anatomy.attentions:
                hook = part.module.register_forward_hook(self.hear_inner, with_kwargs=True)
                stack.callback(hook.remove)
            stack.enter_context(probe(self.anatomy, self.hear_attention))
            yield

    def enter(self, index: int, module: nn.Module, args: Any, options: Any) -> None:
        if self.quiet:
            return
        if index in self.visited:
            raise NotApplicable("it runs its blocks more than once in one forward")
        self.visited.add(index)
        entered = find_stream(args, options)
        self.fit(entered, entered)
        self.block_call = BlockCall(index=index, args=args, options=options, entered=entered)
        if index == 0 and self.found.no_stream is None and self.sound(EMBEDDING, entered):
            number, stream = self.sequence, entered[0]
            self.give(Layer(sequence=number, layer=EMBEDDING, tokens=self.tokens, stream=stream))

    def fit(self, stream: Tensor, entered: Tensor) -> None:
        """Record why what a block passes on is not the stream of this sequence's tokens."""
        if self.found.no_stream is not None:
            return
        if stream.dim() != 3 or len(stream) != 1:
            fault = f"a tensor of shape {tuple(stream.shape)}, not batch x token x width"
        elif stream.shape[1] != len(self.tokens):
            fault = f"{stream.shape[1]} positions for {len(self.tokens)} tokens"
        elif stream.shape != entered.shape:
            fault = f"{entered.shape[2]} channels on as {stream.shape[2]}"
        else:
            return
        self.found.no_stream = f"its blocks pass {fault}"

    def hear_child(
        self, index: int, name: str, module: nn.Module, args: Any, options: Any, output: Any
    ) -> None:
        # One that several blocks share is heard for each of them.
        if not self.quiet and self.block_call is not None and self.block_call.index == index:
            call = hidden_call(name, module, args, options, output, self.block_call.positions)
            self.block_call.calls += [] if call is None else [call]

    def hear_inner(self, module: nn.Module, args: Any, options: Any, output: Any) -> None:
        if not self.quiet and self.block_call is not None:
            call = hidden_call("", module, args, options, output, self.block_call.positions)
            self.block_call.inner |= {} if call is None else {module: call}

    def hear_attention(self, call: AttentionCall) -> None:
        if self.aside is not None:
            self.aside.append(call)
        elif not self.quiet and self.block_call is not None:
            self.block_call.attention_calls.append(call)
            call.part = self.anatomy.find_shared(call.part, self.block_call.index)
            number = call.part.number
            self.answered[number] = self.answered.get(number, 0) + 1

    def leave(self, module: nn.Module, args: Any, output: Any) -> None:
        block_call, stream = self.block_call, first_tensor(output)
        if self.quiet or block_call is None:
            return
        self.block_call = None
        if stream.dim() == 2:  # a few mixture-of-experts blocks give tokens without a batch axis
            stream = stream[None]
        self.fit(stream, block_call.entered)
        if not self.sound(block_call.index, stream):
            return
        last = block_call.calls[-1] if block_call.calls else None
        if last is not None and last.left is first_tensor(output) and not last.heavy:
            self.fronts[block_call.index + 1] = last.module
        parts = [part for part in self.anatomy.attentions if part.block == block_call.index]
        part = parts[0] if len(parts) == 1 else None
        if self.found.no_stream is None:
            self.give_whole(module, block_call, part, stream)
        if self.found.no_stream is not None or part is None:
            for one in parts:
                self.give_attention(module, block_call, one, len(parts) == 1)

    def give_whole(
        self, module: nn.Module, block_call: BlockCall, part: AttentionPart | None, stream: Tensor
    ) -> None:
        """Hand over a block with its stream, and its attention where it has one."""
        self.give(
            Layer(
                sequence=self.sequence,
                layer=block_call.index,
                tokens=self.tokens,
                stream=stream[0],
                entered=block_call.entered[0],
                sublayers=sublayers(block_call, part, stream),
                attention=self.attention_of(block_call, part),
                block=module,
                rerun=partial(self.rerun, module, block_call),
                attend=self.attending(block_call, part),
            )
        )

    def give_attention(
        self, module: nn.Module, block_call: BlockCall, part: AttentionPart, alone: bool
    ) -> None:
        """Hand over an attention whose block has no stream, or several attentions."""
        attention = self.attention_of(block_call, part)
        if attention is not None:
            self.give(
                Layer(
                    sequence=self.sequence,
                    layer=block_call.index,
                    tokens=self.tokens,
                    stream=block_call.entered.new_empty(len(self.tokens), 0),
                    sublayers=sublayers(block_call, part) if alone else {},
                    attention=attention,
                    block=module if alone else None,
                )
            )

    def give(self, layer: Layer) -> None:
        gradient = self.gradients.pop(layer.layer, None) if layer.stream.numel() else None
        self.quiet = True  # measures may run the block again
        try:
            self.read(layer if gradient is None else replace(layer, gradient=gradient))
        finally:
            self.quiet = False

    def sound(self, layer: int, stream: Tensor) -> bool:
        """Return whether the stream is finite, and keep the first fault of a layer."""
        bad = stream.numel() - int(torch.isfinite(stream).sum())
        if bad:
            self.found.faults.setdefault(layer, f"{bad} of {stream.numel()} features not finite")
        return not bad

    def attention_of(
        self, block_call: BlockCall, part: AttentionPart | None
    ) -> AttentionRecord | None:
        calls = [
            item for item in block_call.attention_calls if part is not None and item.part is part
        ]
        if len(calls) != 1 or part is None:
            return None
        if fault := calls[0].fault():  # a longer sequence may be attended to otherwise
            self.found.silent.setdefault(part.number, f"{part.name}{self.place}: {fault}")
            return None
        before = {one.part.number: one.heads for one in block_call.attention_calls}
        first = sum(heads for number, heads in before.items() if number < part.number)
        return replace(calls[0].record(), first=first)

    def rerun(self, block: nn.Module, block_call: BlockCall, stream: Tensor) -> Tensor:
        """Return the block's output for another stream at the same positions and masks."""
        args, options = _replace(
            block_call.args, block_call.options, block_call.entered, stream[None]
        )
        return one_sequence(first_tensor(block(*args, **options)))

    def attending(
        self, block_call: BlockCall, part: AttentionPart | None
    ) -> Callable[[Tensor], tuple[Tensor, AttentionRecord]] | None:
        """Return what runs a block's attention on other features, where it adds no residual."""
        call = None if part is None else block_call.inner.get(part.module)
        if call is None or call.residual is not None:
            return None

        def attend(entered: Tensor) -> tuple[Tensor, AttentionRecord]:
            new = entered[None] if call.entered.dim() == 3 else entered
            args, options = _replace(call.args, call.options, call.entered, new)
            calls: list[AttentionCall] = []
            self.aside = calls
            try:
                left = first_tensor(call.module(*args, **options))
            finally:
                self.aside = None
            if len(calls) != 1 or (fault := calls[0].fault()):
                fault = fault if len(calls) == 1 else f"it was heard {len(calls)} times"
                raise NotApplicable(f"its attention on other features was not heard: {fault}")
            return left.reshape(entered.shape[0], -1), calls[0].record()

        return attend

    def account(self) -> None:
        """Report every attention layer for which the probe did not fire exactly once."""
        for part in self.anatomy.attentions:
            times = self.answered.get(part.number, 0)
            if times != 1:
                name = f"{part.name} ({type(part.module).__name__}){self.place}"
                self.found.silent.setdefault(
                    part.number, f"{name} was heard {times} times in one forward, not once"
                )


def _replace(
    args: tuple[Any, ...], options: dict[str, Any], old: Tensor, new: Tensor
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def swap(value: Any) -> Any:
        return new if value is old else value

    return tuple(map(swap, args)), {name: swap(value) for name, value in options.items()}


def _read_gradients(
    model: PreTrainedModel, anatomy: ModelStructure, tokens: Tensor, found: Trace
) -> dict[int, Tensor]:
    """Return the gradient of the loss by every layer; none, and why, where there is no such."""
    try:
        return stream_gradients(model, anatomy, tokens)
    except NotApplicable as error:
        found.no_gradient = str(error)
        return {}
