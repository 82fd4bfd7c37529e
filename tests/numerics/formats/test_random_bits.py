"""A generator of any device draws for any other; its seed alone decides."""

from types import SimpleNamespace

import pytest
import torch

import layerlab
from layerlab.numerics.formats import random_bits as module
from layerlab.numerics.formats.random_bits import generator_on, seed_on
from layerlab.numerics.formats.round import round_to

CPU, CUDA = torch.device("cpu"), torch.device("cuda:0")


def seeded(seed: int = 5) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_what_draws_there_already_is_taken_as_it_is():
    generator = seeded()
    assert generator_on(CPU, generator) is generator
    assert generator_on(CPU, None) is None and generator_on(CUDA, None) is None


def test_a_generator_of_another_device_gives_the_seed_of_one(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "_make", lambda device, seed: asked.append((device, seed)))
    generator = seeded()
    generator_on(CUDA, generator)
    generator_on(CUDA, generator)
    generator_on(CUDA, seeded())
    (one, two, three) = asked
    assert one == three and one[0] == CUDA
    assert one != two, "each call draws anew"


def test_a_generator_of_the_second_device_is_not_that_of_the_first():
    given = SimpleNamespace(device=torch.device("cuda:1"))
    assert not module._is_on(CUDA, given) and module._is_on(torch.device("cuda:1"), given)
    assert module._is_on(CUDA, SimpleNamespace(device=torch.device("cuda")))
    assert not module._is_on(CPU, given)


def test_a_seed_lies_on_the_device_and_is_that_of_the_generator():
    one, two = seed_on(CPU, seeded()), seed_on(CPU, seeded())
    assert torch.equal(one, two) and one.dtype == torch.int64 and one.shape == (1,)
    assert not torch.equal(one, seed_on(CPU, seeded(6)))
    # No generator of the device is needed: `meta` has none.
    meta = torch.device("meta")
    generator = seeded()
    before = generator.get_state()
    assert seed_on(meta, generator).device == meta
    assert not torch.equal(generator.get_state(), before), "drawn from the generator given"


FORMATS = ("fp8_e4m3", "mxfp4", "nvfp4", "int8")


@pytest.mark.gpu
@pytest.mark.parametrize("kernel", ["0", "1"])
@pytest.mark.parametrize("name", FORMATS)
def test_a_generator_of_the_cpu_rounds_what_lies_on_a_gpu(name, kernel, monkeypatch):
    monkeypatch.setenv("LAYERLAB_KERNEL", kernel)
    x = torch.randn(64, 64, device="cuda")
    one, two, three = (round_to(x, name, "stochastic", seeded(seed)) for seed in (5, 5, 6))
    assert torch.equal(one, two) and not torch.equal(one, three)
    own = torch.Generator("cuda").manual_seed(5)
    assert not torch.equal(round_to(x, name, "stochastic", own), x)


@pytest.mark.gpu
def test_a_model_on_a_gpu_is_emulated_in_stochastic_rounding():
    model = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8).cuda()
    ids = torch.arange(8, device="cuda")[None]
    found = []
    for seed in (1, 1, 2):
        with layerlab.emulate(model, "bf16", rounding="stochastic", seed=seed):
            found.append(model(ids).logits)
    assert torch.equal(found[0], found[1]) and not torch.equal(found[0], found[2])
