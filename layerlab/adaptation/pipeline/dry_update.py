"""One update of a stage on tensors without numbers: what it takes, before any weight is read.

The very model with its adapters, precision and recomputation runs forward and backward on fake
tensors; every storage is counted while it is alive, every matrix product by its shape.
"""

import time
import warnings
import weakref
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import cross_entropy
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from layerlab.adaptation.trainer.lora import add_adapters, check_mergeable
from layerlab.errors import NotApplicable
from layerlab.observe.architecture.structure import anatomy
from layerlab.recipes.adaptation_sections import StepSection

_ATEN: Any = torch.ops.aten
_ATTENTION = _ATEN._scaled_dot_product_flash_attention_for_cpu
_ATTENTION_BACKWARD = _ATEN._scaled_dot_product_flash_attention_for_cpu_backward


@dataclass(frozen=True, kw_only=True)
class DryUpdate:
    """Memory and compute of an update in one process, in bytes and FLOPs.

    Attributes:
        parameters: of the model, adapters apart.
        weights: of the model and its adapters.
        learned: of those that learn, which is what their gradients take.
        layer: of the largest block.
        edge: of what lies outside the blocks, such as embedding and head.
        learned_edge: of what learns among it.
        shared: of what learns there and is used twice, as embedding and as head.
        peak: the most that is alive at once, moments of AdamW included.
        inside: the most beside weights, moments and gradients.
        flops: of a pass forward and backward.
        forward: of it, forward alone.
        tokens: of that pass.
        build: seconds in which the model was put together, adapters and all.
    """

    parameters: int
    weights: int
    learned: int
    layer: int
    edge: int
    learned_edge: int
    shared: int
    peak: int
    inside: int
    flops: int
    forward: int
    tokens: int
    build: float

    @property
    def moments(self) -> int:
        """Bytes of both moments of AdamW."""
        return 2 * self.learned

    @property
    def standing(self) -> int:
        """Bytes of weights, gradients and moments."""
        return self.weights + self.learned + self.moments

    def memory(self, processes: int, sharding: str) -> int:
        """Return the bytes that tensors take in each of several processes at the peak."""
        if processes == 1:
            return self.peak
        if sharding == "none":  # what they exchange lies in buckets beside the gradients
            return self.peak + self.learned
        own = -(-(self.weights + self.moments) // processes)
        early = self.inside + 2 * self.layer
        # Of what is used twice there are the gradients of each use, and their sum.
        late = 2 * (self.layer + self.shared) + self.learned_edge + self.learned // processes
        return own + self.edge + max(early, late)


def dry_update(make: Any, section: StepSection, rows: int, block: int) -> DryUpdate:
    """Carry out an update of a model on the meta device.

    Args:
        make: makes the model.
        rows: of a pass forward and backward.
        block: tokens of each.

    Raises:
        UserError: adapters could not be merged into the model.
    """
    begun = time.process_time()
    model = make()
    parameters = sum(one.numel() for one in model.parameters())
    blocks = _blocks(model)
    if section.lora is not None:
        check_mergeable(model, section.lora)  # as every stage of a recipe does
        model = add_adapters(model, section.lora, 0)
    build = time.process_time() - begun
    model.train()
    with warnings.catch_warnings(action="ignore"), ExitStack() as stack:
        stack.enter_context(FakeTensorMode())
        ledger = stack.enter_context(_Ledger())
        _fill(model)
        learned = [one for one in model.parameters() if one.requires_grad]
        moments = [torch.empty_like(one) for one in learned for _ in range(2)]
        prepare_recomputation(model, section)
        for one in learned:
            one.register_post_accumulate_grad_hook(ledger.keep)
        standing = ledger.now
        tokens = torch.zeros(rows, block, dtype=torch.long)
        loss = pass_forward(model, tokens, section.mixed_precision, "cpu")
        forward = ledger.flops
        loss.backward()
    del moments
    weights = _bytes(model.parameters())
    inside = {id(one) for block in blocks for one in block.parameters()}
    outside = [one for one in model.parameters() if id(one) not in inside]
    return DryUpdate(
        parameters=parameters,
        weights=weights,
        learned=_bytes(learned),
        layer=max((_bytes(one.parameters()) for one in blocks), default=weights),
        edge=_bytes(outside),
        learned_edge=_bytes(one for one in outside if one.requires_grad),
        shared=_bytes({model.get_input_embeddings().weight} & _heads(model) & set(learned)),
        peak=ledger.peak,
        inside=ledger.beside - standing,
        flops=ledger.flops,
        forward=forward,
        tokens=rows * block,
        build=build,
    )


def prepare_recomputation(model: Any, section: StepSection) -> None:
    """Let activations be computed again, as the stage's Trainer does, where it is asked for."""
    if section.gradient_checkpointing:
        model.activation_checkpointing_enable({"use_reentrant": False})
        if section.lora is not None:
            model.enable_input_require_grads()
    model.config.use_cache = False


def pass_forward(model: Any, tokens: Tensor, precision: str, device: str) -> Tensor:
    """Return the loss of a pass in a precision, as a stage computes it."""
    with torch.autocast(device, torch.bfloat16, enabled=precision == "bf16"):
        logits = model(input_ids=tokens, use_cache=False).logits
    found: Tensor = cross_entropy(logits.flatten(0, 1).float(), tokens.flatten(), reduction="sum")
    return found


class _Ledger(TorchDispatchMode):
    """Counts what is alive, at the most, and FLOPs.

    Attributes:
        now: bytes alive.
        peak: the most that were.
        beside: the most that were beside gradients that are kept.
        flops: of matrix products and attention.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.peak = self.beside = self.flops = self._kept = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Carry out an operation and count what comes of it."""
        found = func(*args, **(kwargs or {}))
        self.flops += _count_flops(func, args, kwargs or {}, found)
        for one in found if isinstance(found, tuple | list) else (found,):
            if isinstance(one, Tensor):
                self.take(one)
        return found

    def keep(self, parameter: Tensor) -> None:
        """Count a gradient that is whole by now as one that stays."""
        assert parameter.grad is not None
        self._kept += parameter.grad.nbytes

    def take(self, tensor: Tensor) -> None:
        """Count a tensor's storage, once, while it is alive."""
        storage = tensor.untyped_storage()
        if storage in self._known:
            return
        self._known.add(storage)
        room = storage.nbytes()
        weakref.finalize(storage, self._drop, room)
        self.now += room
        self.peak = max(self.peak, self.now)
        self.beside = max(self.beside, self.now - self._kept)

    def _drop(self, room: int) -> None:
        self.now -= room


def _count_flops(func: Any, args: Any, kwargs: Any, found: Any) -> int:
    packet = func._overloadpacket
    if packet is _ATTENTION:
        return int(sdpa_flop_count(*_repeat_heads(*args[:3])))
    if packet is _ATTENTION_BACKWARD:
        return int(sdpa_backward_flop_count(args[0].shape, *_repeat_heads(*args[1:4])))
    count = flop_registry.get(packet)
    return 0 if count is None else int(count(*args, **kwargs, out_val=found))


def _repeat_heads(query: Tensor, key: Tensor, value: Tensor) -> Iterator[torch.Size]:
    """Return the shapes of an attention whose heads have keys of their own.

    As it computes when several share one, which torch counts since 2.13 only.
    """
    for one in (query, key, value):
        batch, _, *rest = one.shape
        yield torch.Size((batch, query.shape[1], *rest))


def _fill(model: nn.Module) -> None:
    """Put a fake tensor in the place of each that lies on the meta device; ties stay."""
    copies: dict[int, tuple[Tensor, Tensor]] = {}
    for module in model.modules():
        for table in (module._parameters, module._buffers):
            for name, one in table.items():
                if one is None:
                    continue
                if id(one) not in copies:
                    made: Tensor = torch.empty(one.shape, dtype=one.dtype)
                    if isinstance(one, nn.Parameter):
                        made = nn.Parameter(made, requires_grad=one.requires_grad)
                    copies[id(one)] = one, made
                table[name] = copies[id(one)][1]  # type: ignore[assignment]


def _blocks(model: Any) -> tuple[nn.Module, ...]:
    try:
        return anatomy(model).blocks
    except NotApplicable:
        return ()


def _heads(model: Any) -> set[Tensor]:
    head = model.get_output_embeddings()
    return set() if head is None else {head.weight}


def _bytes(tensors: Any) -> int:
    return sum(one.nbytes for one in tensors)
