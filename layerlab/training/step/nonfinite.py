"""Finds the module that made the first number that is not finite, by running the batch again."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd.graph import Node

from layerlab.errors import UserError
from layerlab.observe.tracing.compiled import run_uncompiled
from layerlab.recipes.training_sections import TrainSection

LOSS = "loss"


class Diverged(UserError):
    """The loss of a run is no longer finite; this is recorded as its result."""


@dataclass(frozen=True)
class NonFiniteOrigin:
    """The first tensor that is not finite, and where it was made.

    Attributes:
        name: of a parameter, or of a module; `loss` is what is made of the logits.
        stage: what of it is not finite.
    """

    name: str
    stage: Literal["weight", "forward", "backward"]

    def __str__(self) -> str:
        if self.stage == "weight":
            return f"the weight {self.name} was not finite already, before this update"
        what = "output" if self.stage == "forward" else "gradient"
        if self.name == LOSS:
            return f"every module's {what} is finite; the first {what} that is not is the loss's"
        return f"the first module whose {what} is not finite is {self.name}"


def find_origin(model: nn.Module, again: Callable[[], Tensor]) -> NonFiniteOrigin | None:
    """Find which module made the first number that is not finite.

    Of the forward pass it is the first module to give back such a number. If there is none, the
    backward pass is watched at every node of its graph; a node belongs to the innermost module
    that was running when it was made.

    Args:
        again: runs the batch that failed, and gives its loss.

    Returns:
        None where everything is finite this time.
    """
    for name, weight in model.named_parameters():
        if not _finite(weight):
            return NonFiniteOrigin(name, "weight")
    watch = _Watch()
    with run_uncompiled(model), watch.over(model), torch.enable_grad():
        loss = again()
    if watch.first is None and not _finite(loss):
        watch.first = LOSS
    if watch.first is not None:
        return NonFiniteOrigin(watch.first, "forward")
    watch.claim([loss], LOSS)
    weights = [one for one in model.parameters() if one.requires_grad]
    owner = watch.backward(loss, weights)
    return None if owner is None else NonFiniteOrigin(owner, "backward")


def explain_origin(
    found: NonFiniteOrigin | None,
    loss: float,
    update: int,
    train: TrainSection,
    *,
    sharded: bool = False,
) -> str:
    """Explain the origin in one line for the user.

    Args:
        sharded: the model is, so that no process can run its batch again alone.
    """
    where = str(found) if found else "when the batch was run again, everything was finite"
    if sharded:
        where = "in a sharded model its origin is not looked for"
    what = (
        "the gradient of a finite loss is not finite"
        if abs(loss) < float("inf")
        else (f"loss is {loss:g}")
    )
    precision = (
        ', or write train.mixed_precision = "fp32"' if train.mixed_precision != "fp32" else ""
    )
    sentence = f"{what} at update {update}"
    return (
        f"{sentence}; {where}; lower train.learning_rate (now {train.learning_rate:g}){precision}"
    )


class _Watch:
    """Hooks that note the first output that is not finite, and the module of each graph node."""

    def __init__(self) -> None:
        self.first: str | None = None
        self._running: list[str] = []
        self._owner: dict[Node, str] = {}

    @contextmanager
    def over(self, model: nn.Module) -> Iterator[None]:
        with ExitStack() as stack:
            for name, module in model.named_modules():
                for handle in self._hooks(name, module):
                    stack.callback(handle.remove)
            yield

    def claim(self, values: Iterable[Any], name: str) -> None:
        """Assign to a module every graph node behind these values that has no owner yet."""
        waiting = [one.grad_fn for one in _tensors(values)]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self._owner:
                self._owner[node] = name
                waiting += [before for before, _ in node.next_functions]

    def backward(self, loss: Tensor, weights: list[nn.Parameter]) -> str | None:
        """Return the owner of the first node that makes gradients which are not finite."""
        found: list[str] = []

        def listener(name: str) -> Callable[..., None]:
            def listen(gradients: Any, given: Any) -> None:
                if not found and not all(map(_finite, _tensors(gradients))):
                    found.append(name)

            return listen

        for node, name in self._owner.items():
            node.register_hook(listener(name))
        if loss.requires_grad:
            torch.autograd.grad(loss, weights, allow_unused=True)
        return found[0] if found else None

    def _hooks(self, name: str, module: nn.Module) -> Iterator[Any]:
        def before(_: nn.Module, args: Any, kwargs: Any) -> None:
            # What the surrounding module has done up to here is its own, not its child's.
            if self._running:
                self.claim([args, kwargs], self._running[-1])
            self._running.append(name)

        def after(_: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            self._running.pop()
            self.claim([output], name)
            if self.first is None and not all(map(_finite, _tensors([output]))):
                self.first = name or type(module).__name__

        yield module.register_forward_pre_hook(before, with_kwargs=True)
        yield module.register_forward_hook(after, with_kwargs=True)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _finite(tensor: Tensor) -> bool:
    return bool(torch.isfinite(tensor.detach()).all())
