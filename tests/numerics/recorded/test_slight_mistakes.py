"""Mistakes no larger than rounding are told from it, and rounding is taken for none of them."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from layerlab import builtin
from layerlab.api.gap import run_model
from layerlab.loading.inputs import passage, sequences
from layerlab.loading.model import load_model
from layerlab.numerics.profiles.lanes import Lane
from layerlab.numerics.profiles.profile import NumericsProfile, load_profile
from layerlab.numerics.profiles.token_scores import TokenScores
from layerlab.numerics.recorded.explain import _tell_temperature
from layerlab.numerics.recorded.logit_mistakes import RecordedLogits, find_cap
from layerlab.numerics.recorded.mistakes import ROUNDED, find_rounded
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import TemperatureFit
from layerlab.numerics.recorded.rounding_limits import LEAST, find_limits
from layerlab.numerics.recorded.slight_mistakes import LogitSlopes, estimate, fit_temperature
from tests.numerics.recorded.recording import (
    CANDIDATES,
    EAGER,
    draw_model,
    find,
    load,
    record,
    record_model,
)

TRIALS = 100
ALL = torch.ones(1, dtype=torch.bool)


@pytest.fixture(scope="module")
def model() -> nn.Module:
    return AutoModelForCausalLM.from_pretrained(builtin.path("llama")).float().eval()


@pytest.fixture(scope="module")
def pieces() -> list[Tensor]:
    return sequences(passage(context=256), load_model("llama"))[:2]


def score(logits: Tensor, targets: Tensor, warmth: float = 1.0) -> Tensor:
    return (logits / warmth).log_softmax(-1).gather(-1, targets[:, None])[:, 0]


def draw(seed: int, tokens: int = 400) -> tuple[Tensor, Tensor, LogitSlopes]:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(tokens, 50, generator=generator, dtype=torch.float64)
    targets = torch.randint(50, (tokens,), generator=generator)
    slopes = LogitSlopes()
    for part in range(0, tokens, 100):
        slopes.add(targets[part : part + 100], [logits[part : part + 100]])
    return logits, targets, slopes


@pytest.mark.parametrize("mask", [-torch.inf, torch.finfo(torch.float32).min])
def test_masked_logits_have_no_slope(mask):
    logits, targets = torch.randn(40, 50), torch.arange(40)
    found = []
    for rows in (logits, torch.cat([logits, torch.full((40, 3), mask)], -1)):
        slopes = LogitSlopes()
        slopes.add(targets, [rows])
        found.append(torch.stack(slopes.select(ALL.expand(40))))
    torch.testing.assert_close(*found)


def test_slopes_are_derivatives_by_one_over_the_temperature():
    logits, targets, slopes = draw(0)

    def read(power: Tensor) -> Tensor:
        return (logits * power).log_softmax(-1).gather(-1, targets[:, None])[:, 0]

    one = torch.ones((), dtype=torch.float64)
    first = torch.func.jacfwd(read)
    slope, curve = slopes.select(ALL.expand(len(targets)))
    torch.testing.assert_close(slope, first(one))
    torch.testing.assert_close(-curve, torch.func.jacfwd(first)(one))


def test_an_estimate_is_the_multiple_and_strays_with_what_is_left():
    direction = torch.tensor([1.0, 2.0, 2.0, 0.0], dtype=torch.float64)
    assert estimate(3 * direction, direction) == (3.0, 0.0)
    # (2, -1, 0, 0) stands at right angles to it; <d, d> is 9, so that the others have 8/9 and 5/9.
    other = torch.tensor([2.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    part, strays = estimate(direction + other, direction)
    assert part == pytest.approx(1.0)
    assert strays == pytest.approx(4 * ((2 * 9 / 8) ** 2 + (2 * 9 / 5) ** 2) ** 0.5 / 9)
    # Of one token alone nothing is known of how far it strays.
    alone = torch.tensor([0.0, 2.0, 0.0], dtype=torch.float64)
    assert estimate(torch.ones(3, dtype=torch.float64), alone) == (0.5, torch.inf)


@pytest.mark.full
@pytest.mark.parametrize("warmth", [0.95, 0.99, 1.0, 1.005, 1.05])
def test_intervals_hold_the_temperature(warmth):
    """Of four standard errors, one in 16,000 would not; and none is seen where none is."""
    seen = 0
    for seed in range(TRIALS):
        logits, targets, slopes = draw(seed)
        generator = torch.Generator().manual_seed(seed + TRIALS)
        noise = 0.02 * torch.randn(2, len(targets), generator=generator, dtype=torch.float64)
        exact = score(logits, targets)
        known = ALL.expand(len(targets))
        recorded = score(logits, targets, warmth) + noise[0]
        found = fit_temperature(recorded, exact, [exact + noise[1]], slopes.select(known))
        assert found is not None and found.low < warmth < found.high
        seen += found.is_applied
    assert seen == (0 if warmth == 1 else TRIALS)


def test_of_a_few_tokens_and_of_certain_ones_no_temperature_is_told():
    logits, targets, slopes = draw(0, LEAST - 1)
    exact = score(logits, targets)
    slope, curve = slopes.select(ALL.expand(len(targets)))
    assert fit_temperature(exact, exact, [exact], (slope, curve)) is None
    flat = torch.zeros(LEAST)
    assert fit_temperature(flat, flat, [flat], (flat, flat)) is None


@pytest.mark.parametrize("warmth", [0.93, 1.07])
def test_a_temperature_without_noise_is_fitted_beside_float32(warmth):
    logits, targets, slopes = draw(0)
    exact, known = score(logits, targets), ALL.expand(len(targets))
    noise = torch.randn(400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    recorded = score(logits, targets, warmth)
    found = fit_temperature(recorded, exact, [exact + 0.1 * noise], slopes.select(known))
    assert found is not None and found.value == pytest.approx(warmth, rel=1e-3)
    assert found.left < 0.01 < found.whole


def test_what_a_profile_makes_of_all_tokens_alike_is_no_temperature():
    logits, targets, slopes = draw(0)
    exact, known = score(logits, targets), ALL.expand(len(targets))
    noise = torch.randn(2, 400, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    slope, _ = slopes.select(known)
    recorded = exact + 0.008 * slope + 1e-3 * noise[0]
    for drift, applied in ((0.01, False), (0.0, True)):
        profile = exact + drift * slope + 0.02 * noise[1]
        found = fit_temperature(recorded, exact, [profile], slopes.select(known))
        assert found is not None and found.is_applied == applied
        assert found.value == pytest.approx(1 / 1.008, abs=5e-4)


@pytest.mark.full
@pytest.mark.parametrize("warmth", [0.99, 1.01])
def test_a_slight_temperature_is_a_bug(model, pieces, warmth):
    engine = load("sdpa")
    read = record(pieces, lambda ids: engine(input_ids=ids[None]).logits[0].float() / warmth)
    found = find(model, read, CANDIDATES[:2])
    assert found.is_bug and found.temperature is not None
    assert found.temperature.low < warmth < found.temperature.high
    assert found.cause is not None
    assert found.cause.name == f"temperature {found.temperature} applied"
    assert "a bug, not rounding: temperature" in str(found) and 0 < found.excess < 1
    assert found.to_dict()["is_bug"] is True
    assert f"no rounding         explains {found.excess:.1%} of it" in str(found)


@pytest.mark.parametrize(
    ("low", "high", "name"),
    [
        (0.9856, 0.9947, "temperature 0.9901 (0.9856 to 0.9947) applied"),
        (0.9933, 0.9984, "logits of another scale, as weights that differ have them"),
        (1.004, 1.01, "temperature 1.007 (1.004 to 1.01) applied"),
        (1.001, 1.004, "logits of another scale, as weights that differ have them"),
    ],
)
def test_a_temperature_that_nobody_types_is_a_scale(low, high, name):
    value = 0.9901 if high < 0.995 else (low + high) / 2
    fit = TemperatureFit(value=value, low=low, high=high, left=0.04, bias=0.0, whole=0.1)
    (cause,) = _tell_temperature(fit)
    assert cause.sure and cause.name.startswith(name)


@pytest.mark.full
@pytest.mark.parametrize("engine", ["float32", "sdpa"])
def test_a_cap_of_logits_is_no_temperature(model, pieces, engine):
    """It draws large logits together as a temperature does, and no more than rounding might."""
    run = model if engine == "float32" else load(engine)
    read = record(pieces, lambda ids: 20 * (run(input_ids=ids[None]).logits[0].float() / 20).tanh())
    found = find(model, read, CANDIDATES[:2])
    assert found.temperature is None and found.is_bug and found.cause is not None
    assert found.cause.name.startswith("logits capped at ")
    assert float(found.cause.name.rpartition(" ")[2]) == pytest.approx(20, rel=0.05)


@pytest.mark.full
def test_a_slight_temperature_is_hardly_ever_a_cap():
    """Beside noise the two differ by little: in a third of these draws a cap leaves less."""
    taken = 0
    for seed in range(TRIALS):
        logits, targets, _ = draw(seed)
        noise = torch.randn(len(targets), generator=torch.Generator().manual_seed(seed))
        values = score(logits, targets, 1.01) + 0.2 * noise
        taken += find_cap(RecordedLogits(logits, targets, values), 1.01) is not None
    assert taken == 0
    capped = score(20 * (logits / 20).tanh(), targets)
    found = find_cap(RecordedLogits(logits, targets, capped), 1.01)
    assert found is not None and found.name == "logits capped at 20" and found.sure


@pytest.mark.full
@pytest.mark.parametrize("name", ["eager", "sdpa"])
def test_no_temperature_is_none(model, pieces, name):
    """Also where the profile of the run is not among the candidates."""
    read = record_model(pieces, load(name))
    for profiles in (CANDIDATES, CANDIDATES[2:3]):
        found = find(model, read, profiles)
        assert found.temperature is not None and not found.temperature.is_applied
        assert not found.is_bug and found.excess == 0
        assert f"temperature         {found.temperature}" in str(found)


@pytest.mark.full
def test_a_model_that_was_cast_whole_is_found_by_its_digits(model, pieces):
    before = {name: one.clone() for name, one in model.named_buffers()}
    cast = load("sdpa", torch.float32).to(torch.bfloat16)  # its frequencies with it
    found = find(model, record_model(pieces, cast), CANDIDATES[1:2], real=True)
    assert found.is_bug and not found.is_beyond and found.cause is not None
    assert found.cause.name == f"rotary frequencies {ROUNDED}"
    assert found.cause.left < found.cause.whole / 10 and found.forwards <= 30
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


@pytest.mark.full
def test_what_float32_makes_is_no_cast(model, pieces):
    """Of no difference every run explains all, or none."""
    scores = TokenScores(model, pieces[:1], run_model)
    exact = scores.read([Lane(profile=load_profile("float32"))] * 2)[0].tolist()
    own = TokenRecord(token_ids=tuple(pieces[0].tolist()), logprobs=(None, *exact))
    found = find(model, [own], [EAGER])
    assert found.rms == 0 and not found.is_bug and not found.causes


def test_of_a_model_that_is_cast_whole_nothing_is_left_to_round():
    model = load("sdpa", torch.float32)
    name, buffers = find_rounded(model)
    assert name.startswith("rotary frequencies") and len(buffers) == 2
    assert find_rounded(model.to(torch.bfloat16))[1] == []
    # What is stored with the weights is loaded in their dtype, whatever rounds it.
    norm = nn.BatchNorm1d(2)
    norm.running_mean.add_(0.1)  # type: ignore[union-attr, operator]
    assert find_rounded(norm)[1] == []
    norm.register_buffer("table", torch.tensor([0.1]), persistent=False)
    assert find_rounded(norm)[0].startswith("buffers (.table) were rounded to bf16")


@pytest.mark.full
def test_what_a_cast_changes_is_found_where_digits_went_apart():
    """An engine elsewhere: its error is as large as what the frequencies make, and its own."""
    own = draw_model()
    # Its frequencies are rounded, and its weights are as they were.
    engine = copy.deepcopy(own).to(torch.bfloat16).float()
    engine.load_state_dict(own.state_dict())
    texts = [torch.randint(3, 300, (256,)) for _ in range(2)]

    def read(ids: Tensor) -> Tensor:
        logits: Tensor = engine(input_ids=ids[None]).logits[0]
        return logits + 0.02 * torch.randn(logits.shape)

    found = find(own, record(texts, read), [EAGER])
    assert not found.is_beyond and found.cause is not None and found.cause.sure
    assert found.cause.name.startswith("rotary frequencies")


def test_what_is_far_out_are_few_tokens_of_many():
    even = torch.full((210,), 0.01, dtype=torch.float64)
    even[::2] *= -1
    limits = find_limits([even], even - 1)
    error = even.clone()
    error[7] = torch.nan
    assert not limits.find_outliers(error).any()
    error[3], error[90] = -9, 0.5
    assert limits.find_outliers(error).nonzero()[:, 0].tolist() == [3, 90] and error[7].isnan()
    error[5] = 9  # three of 209 are more than one in a hundred
    assert not limits.find_outliers(error).any()
    short = error[80 : 80 + LEAST - 1]
    assert limits.are_passed(short) and not limits.find_outliers(short).any()
    assert limits.is_passed(torch.nan, 0.0) and limits.is_passed(0.0, torch.nan)


def change(records: list[TokenRecord], *places: int) -> list[TokenRecord]:
    """Take nine nats from some tokens of the first text."""
    first, *others = records
    values = [
        None if one is None else one - 9 * (at in places) for at, one in enumerate(first.logprobs)
    ]
    return [replace(first, logprobs=tuple(values)), *others]


@pytest.mark.full
def test_one_token_that_is_far_out_is_told_as_such(model, pieces):
    plain = record_model(pieces, load("sdpa"))
    found = find(model, change(plain, 50), CANDIDATES[:2], real=True)
    assert found.is_bug and not found.is_beyond and found.cause is None
    (token,) = found.outliers
    assert (token.text, token.place, token.token) == (1, 50, int(pieces[0][50]))
    assert token.error == pytest.approx(-9, abs=0.5) and found.difference.largest > 8
    assert found.candidates[0].real == pytest.approx(1, abs=1e-6) and 0.9 < found.excess < 1
    said = (
        "at 1 of 510 tokens: token 50 of text 1 differs by -9 nats; without it rounding: torch-sdpa"
    )
    assert said in str(found)
    many = find(model, change(plain, *range(50, 60)), CANDIDATES[:2])
    assert many.is_beyond and not many.outliers


def test_a_head_kept_in_float32_is_told_from_one_in_bf16():
    own = draw_model()
    engine = copy.deepcopy(own).to(torch.bfloat16)
    for one, exact in zip(find_rounded(own)[1], engine.buffers(), strict=True):
        exact.data = one.clone()  # as `from_pretrained` leaves them
    engine.lm_head.weight.data = own.lm_head.weight.data.clone()
    engine.lm_head.register_forward_pre_hook(lambda module, args: (args[0].float(),))
    texts = [torch.randint(3, 300, (48,))]
    read = record_model(texts, engine)
    wide = {"head_weights": "fp32", "head": "fp32"}
    candidates = [
        NumericsProfile(name="own", operations=wide),
        NumericsProfile(name="narrow", operations={"head": "fp32"}),
        EAGER,
    ]
    found = find(own, read, candidates)
    assert found.best[0].name == "own" and found.rest < (1 - found.candidates[1].share) / 4
