"""What the caller has set for other work changes no reading, and is as it was afterwards."""

from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import pytest
import torch

import layerlab
from layerlab.system.torch_settings import evaluation_mode, float32_products, usual_arithmetic


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
def test_weights_that_learn_under_autocast_are_read_anew(around):
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


def of_products() -> tuple[str, str]:
    return (
        torch.backends.cuda.matmul.fp32_precision,
        torch.backends.mkldnn.matmul.fp32_precision,
    )


@pytest.mark.parametrize("context", [float32_products, usual_arithmetic])
@pytest.mark.parametrize(
    ("asked", "held"),
    [("highest", ("ieee", "ieee")), ("high", ("tf32", "tf32")), ("medium", ("tf32", "bf16"))],
)
def test_products_of_float32_are_in_float32_whatever_training_allows(asked, held, context):
    before = of_products()
    torch.set_float32_matmul_precision(asked)
    try:
        with pytest.raises(KeyError), context():
            assert of_products() == ("ieee", "ieee")
            assert torch.get_float32_matmul_precision() == "highest"
            raise KeyError
        assert of_products() == held and torch.get_float32_matmul_precision() == asked
    finally:
        torch.set_float32_matmul_precision("highest")
        for kind, precision in zip(("cuda", "mkldnn"), before, strict=True):
            getattr(torch.backends, kind).matmul.fp32_precision = precision


def test_a_precision_that_was_set_for_one_backend_is_put_back():
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        with float32_products():
            assert of_products() == ("ieee", "ieee")
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


@pytest.mark.full
@pytest.mark.parametrize("place", [autocast, torch.inference_mode, default_bfloat16])
def test_readings_are_those_of_a_new_process(place, expected):
    with place():
        before = (torch.get_default_dtype(), torch.is_autocast_enabled("cpu"))
        assert read() == expected
        assert (torch.get_default_dtype(), torch.is_autocast_enabled("cpu")) == before
        assert torch.is_inference_mode_enabled() == (place is torch.inference_mode)


@pytest.mark.full
@pytest.mark.parametrize("place", [default_meta, meta])
def test_a_default_device_is_put_away(place, tiny):
    model, ids = tiny("llama"), torch.arange(8)[None]

    def stream() -> Any:
        found = layerlab.inspect(model, measures=["stream"], input_ids=ids, progress=False)
        return found.to_dict()["frames"]

    expected = stream()
    with place():
        assert stream() == expected
        assert torch.ones(1).device.type == "meta"


def test_a_model_that_was_made_in_the_inference_mode_is_read_and_rebuilt():
    with torch.inference_mode():
        model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
    ids = torch.arange(8)[None]
    found = layerlab.inspect(model, measures=["stream"], input_ids=ids, progress=False)
    assert len(found.frame("stream")) == 2
    assert all(one.requires_grad for one in model.parameters())
    assert layerlab.retrofit(model, "as-32").config.variant == "as-32"


def test_ctrl_c_on_the_way_into_evaluation_leaves_all_modules_in_training():
    model = torch.nn.Sequential(torch.nn.Dropout(), torch.nn.Dropout())

    def interrupt(mode: bool) -> None:
        raise KeyboardInterrupt

    vars(model[1])["train"] = interrupt
    with pytest.raises(KeyboardInterrupt), evaluation_mode(model):
        pass
    assert all(one.training for one in model.modules())
