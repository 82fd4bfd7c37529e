"""What the caller has set for other work changes no reading, and is as it was afterwards."""

from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch

import layerlab
from layerlab.system.torch_settings import usual_arithmetic


@contextmanager
def default_bfloat16() -> Any:
    torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(torch.float32)


def autocast() -> AbstractContextManager[Any]:
    return torch.autocast("cpu", torch.bfloat16)


@contextmanager
def default_meta() -> Any:
    torch.set_default_device("meta")
    try:
        yield
    finally:
        torch.set_default_device(None)


def meta() -> AbstractContextManager[Any]:
    return torch.device("meta")  # type: ignore[return-value]


def read() -> dict[str, Any]:
    asked = {"measures": ["spectrum", "lipschitz"], "texts": "A text of some words."}
    found = layerlab.inspect("pre-norm", **asked, progress=False)
    return found.to_dict()["frames"]  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def expected() -> dict[str, Any]:
    return read()


@pytest.mark.parametrize("around", [nullcontext, autocast])
def test_weights_that_learn_under_autocast_are_read_anew(around: Any) -> None:
    """A cast that is kept until the outermost block ends would be that of the first update."""
    with around(), usual_arithmetic():
        layer = torch.nn.Linear(4, 1, bias=False)
        before = layer.weight.detach().clone()
        for _ in range(2):
            with autocast():
                found = layer(torch.ones(1, 4))
            found.sum().backward()
            with torch.no_grad():
                layer.weight += 1.0
        assert float(found.detach()) == pytest.approx(float(before.sum()) + 4.0, rel=2**-6)


@pytest.mark.full
@pytest.mark.parametrize("place", [autocast, torch.inference_mode, default_bfloat16])
def test_readings_are_those_of_a_new_process(
    place: Callable[[], AbstractContextManager[Any]], expected: dict[str, Any]
) -> None:
    with place():
        before = (torch.get_default_dtype(), torch.is_autocast_enabled("cpu"))
        assert read() == expected
        assert (torch.get_default_dtype(), torch.is_autocast_enabled("cpu")) == before
        assert torch.is_inference_mode_enabled() == (place is torch.inference_mode)


@pytest.mark.full
@pytest.mark.parametrize("place", [default_meta, meta])
def test_a_default_device_is_put_away(
    place: Callable[[], AbstractContextManager[Any]], tiny: Any
) -> None:
    model, ids = tiny("llama"), torch.arange(8)[None]

    def stream() -> Any:
        found = layerlab.inspect(model, measures=["stream"], input_ids=ids, progress=False)
        return found.to_dict()["frames"]

    expected = stream()
    with place():
        assert stream() == expected
        assert torch.ones(1).device.type == "meta"
