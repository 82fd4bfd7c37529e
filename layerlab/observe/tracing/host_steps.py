"""Work of several parts that goes on side by side until each needs numbers on the host.

A part yields the tensors that it needs and is sent their numbers. The host waits once for all parts
that have come so far, not once for each.
"""

from collections.abc import Generator, Sequence
from itertools import islice
from typing import Any, TypeVar

from torch import Tensor

from layerlab.observe.tracing.device_schedule import read_host

T = TypeVar("T")
Steps = Generator[Sequence[Tensor], Sequence[Tensor], T]


def ask(tensors: Sequence[Tensor]) -> Steps[Sequence[Tensor]]:
    """Return the numbers of tensors, and nothing else.

    Source: Own.
    """
    return (yield tensors)


def together(*parts: Steps[Any]) -> Steps[list[Any]]:
    """Carry out several parts side by side, and return what each of them returns.

    Source: Own.
    """
    found: list[Any] = [None] * len(parts)
    wanted: dict[int, Sequence[Tensor]] = {}

    def advance(number: int, numbers: Sequence[Tensor] | None) -> None:
        try:
            wanted[number] = parts[number].send(numbers)  # type: ignore[arg-type]
        except StopIteration as end:
            wanted.pop(number, None)
            found[number] = end.value

    for number in range(len(parts)):
        advance(number, None)
    while wanted:
        sent = iter((yield [tensor for each in wanted.values() for tensor in each]))
        for number, each in list(wanted.items()):
            advance(number, list(islice(sent, len(each))))
    return found


def run_steps(steps: Steps[T]) -> T:
    """Carry out work to its end; the host waits for what it needs.

    Source: Own.
    """
    numbers = None
    try:
        while True:
            numbers = read_host(steps.send(numbers))  # type: ignore[arg-type]
    except StopIteration as end:
        return end.value
