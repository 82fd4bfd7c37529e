"""Digits that an engine stores are told by what they leave, and are no bug."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import DynamicCache

from layerlab.api.gap import run_model
from layerlab.errors import NotApplicable
from layerlab.numerics.profiles.profile import NumericsProfile
from layerlab.numerics.profiles.token_scores import TokenScores
from layerlab.numerics.recorded.held_record import EXACT, HeldRecord, _run_all
from layerlab.numerics.recorded.mistakes import changing, find_rounded, round_down
from layerlab.numerics.recorded.recorded_gap import ProfileFit
from tests.numerics.recorded.recording import (
    CANDIDATES,
    draw_model,
    find,
    load_shallow,
    record,
    record_model,
)


def store(values: Tensor) -> Tensor:
    """Values of fp8 with a scale a row."""
    scale = values.float().abs().amax(-1, keepdim=True) / torch.finfo(torch.float8_e4m3fn).max
    return ((values.float() / scale).to(torch.float8_e4m3fn).float() * scale).to(values.dtype)


@pytest.mark.full
def test_weights_in_fp8_are_no_bug_and_their_format_is_named(model, pieces):
    engine = load_shallow("sdpa")
    with torch.no_grad():
        for name, weight in engine.named_parameters():
            if "proj" in name:
                weight.copy_(store(weight))
    found = find(model, record_model(pieces, engine), CANDIDATES[:1])
    assert found.cause is not None and not found.is_bug
    assert found.cause.name == "weights quantized to fp8_e4m3:channel"
    assert str(found).startswith("quantization, no bug: weights quantized to fp8_e4m3:channel")


class CacheInFp8(DynamicCache):
    def update(self, keys, values, *args, **kwargs):
        kept = [one.to(torch.float8_e4m3fn).to(one.dtype) for one in (keys, values)]
        return super().update(*kept, *args, **kwargs)


@pytest.mark.full
def test_a_cache_in_fp8_is_named(model, pieces):
    engine = load_shallow("sdpa")

    def read(ids: Tensor) -> Tensor:
        cache = CacheInFp8(config=engine.config)
        return engine(input_ids=ids[None], past_key_values=cache).logits[0]

    found = find(model, record(pieces, read), CANDIDATES[:1])
    assert found.cause is not None and found.cause.name == "cache quantized to fp8_e4m3"
    assert not found.is_beyond and not found.is_bug


@pytest.mark.full
def test_nothing_is_quantized_where_nothing_was(model, pieces):
    engine = load_shallow("eager")
    with torch.autocast("cpu", torch.bfloat16):
        read = record_model(pieces, engine)
    found = find(model, read, CANDIDATES[:2])
    assert not found.is_bug and found.cause is None and not found.causes


@pytest.mark.full
def test_zeros_of_masked_tokens_are_named(model, pieces):
    plain = record_model(pieces, load_shallow("sdpa"))
    zeros = [0.0] * 20
    records = [
        replace(one, logprobs=(*one.logprobs[:20], *zeros, *one.logprobs[40:])) for one in plain
    ]
    found = find(model, records, CANDIDATES[:1])
    assert found.cause is not None
    assert found.cause.name == "0 recorded of masked tokens or padding (write null there)"
    missing = [
        replace(one, logprobs=tuple(None if value == 0 else value for value in one.logprobs))
        for one in records
    ]
    assert not find(model, missing, CANDIDATES[:1]).is_bug


def test_a_share_is_of_squares_of_what_was_recorded():
    exact = torch.zeros(3)
    held = HeldRecord(None, (), torch.tensor([3.0, torch.nan, 4.0]), exact)  # type: ignore[arg-type]
    assert held.explain(torch.tensor([3.0, 9.0, 4.0])) == 1.0
    assert held.explain(torch.tensor([0.0, 9.0, 4.0])) == pytest.approx(1 - 9 / 25)
    assert held.explain(exact) == 0.0 and held.explain(-held.whole) == pytest.approx(-3)
    assert held.measure(torch.tensor([1.0, 9.0, 1.0])) == 1.0
    # Of no difference a run explains all that has none either.
    same = HeldRecord(None, (), exact, exact)  # type: ignore[arg-type]
    assert same.explain(exact) == 1.0 and same.explain(exact + 1) == 0.0


def test_profiles_are_run_in_the_order_of_their_emulations_until_one_is_the_record():
    shares = {"poor": 0.1, "none": 0.2, "real": 0.3, "best": 0.9}
    profiles = [
        NumericsProfile(name=name, runs="" if name == "none" else "sdpa") for name in shares
    ]
    rows = [ProfileFit(name=name, emulated=one, rms=1.0) for name, one in shares.items()]
    ran = []

    def run(profile: NumericsProfile) -> float:
        ran.append(profile.name)
        if not profile.runs:
            raise NotApplicable("nothing here runs it")
        return {"best": 0.985, "real": 0.995}[profile.name]

    found = {one.name: (one.real, one.missing) for one in _run_all(rows, profiles, run)}
    assert ran == ["best", "real", "none"]
    assert found == {
        "best": (0.985, ""),
        "real": (0.995, ""),
        "none": (None, "nothing here runs it"),
        "poor": (None, "real is what was recorded"),
    }


@pytest.mark.full
def test_a_model_is_cast_where_all_of_what_a_cast_changes_is_in_the_record():
    own = draw_model()
    scores = TokenScores(own, [torch.arange(3, 99)], run_model)
    (exact, _) = scores.read_each((EXACT, EXACT))
    with changing(find_rounded(own)[1], round_down):
        direction = scores.read_each((EXACT, EXACT))[0] - exact
    noise = torch.randn(len(exact), generator=torch.Generator().manual_seed(0)).double()
    size = 0.7 * float(direction.square().mean().sqrt())

    def tell(part: float, drift: float = 0.0) -> int:
        held = HeldRecord(scores, [EXACT], exact + part * direction + size * noise, exact)
        return len(held.try_rounded(0.0, [exact + drift * direction], []))

    assert [tell(part) for part in (-1, 0, 0.5, 1)] == [0, 0, 0, 1]
    assert tell(1, drift=0.9) == 0  # as rounding alone may look like it
