"""Parts that go on side by side, and how often the host waits for them."""

import pytest
import torch

from layerlab.observe.tracing.host_steps import Steps, ask, run_steps, together
from tests.support.host_reads import counted

DEVICE = torch.device("cpu")  # what is made on a device that is named counts as on an accelerator


def count(times: int, name: str) -> Steps[str]:
    """Ask for as many numbers as have been asked for, so many times."""
    seen = list[float]()
    for number in range(times):
        read = yield [torch.full((), float(one), device=DEVICE) for one in range(number + 1)]
        seen += map(float, read)
    return f"{name}: {seen}"


def test_each_part_gets_its_own_numbers_and_all_wait_as_often_as_the_longest():
    with counted() as counts:
        found = run_steps(together(count(1, "a"), count(0, "b"), count(3, "c")))
    assert found == ["a: [0.0]", "b: []", "c: [0.0, 0.0, 1.0, 0.0, 1.0, 2.0]"]
    assert +counts.reads == {"cpu": 3}


def test_parts_within_parts_wait_with_the_others():
    def nested() -> Steps[list[str]]:
        first = yield from count(1, "first")
        return [first, *(yield from together(count(1, "x"), count(2, "y")))]

    with counted() as counts:
        found, one = run_steps(together(nested(), ask([torch.eye(2, device=DEVICE)])))
    assert found == ["first: [0.0]", "x: [0.0]", "y: [0.0, 0.0, 1.0]"]
    assert torch.equal(one[0], torch.eye(2, dtype=torch.float64)) and counts.reads["cpu"] == 3


def test_nothing_to_do_waits_for_nothing():
    with counted() as counts:
        assert run_steps(together()) == []
    assert not +counts.reads


def test_a_part_that_fails_ends_all():
    def fail() -> Steps[None]:
        yield [torch.ones(1)]
        raise ValueError("not finite")

    with pytest.raises(ValueError, match="not finite"):
        run_steps(together(count(5, "a"), fail()))
