"""Records of real runs are taken for what they are, and mistakes for mistakes."""

import json
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from layerlab.numerics.profiles.profile import load_profile
from layerlab.numerics.recorded.explain import _find_excess, _list_outliers, _may_be
from layerlab.numerics.recorded.mistakes import changing
from layerlab.numerics.recorded.record import TokenRecord
from layerlab.numerics.recorded.recorded_gap import Cause, ProfileFit, RecordedToken
from layerlab.system.model_cache import cache_of, read_on
from tests.numerics.recorded.recording import (
    CANDIDATES,
    EAGER,
    find,
    load,
    load_shallow,
    record,
    record_model,
    score,
    tell,
)

BEGINNING = 1


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "attention", "dtype"),
    [
        ("torch-eager", "eager", torch.bfloat16),
        ("torch-sdpa", "sdpa", torch.bfloat16),
        ("autocast-bf16", "sdpa", torch.float32),
    ],
)
def test_a_record_is_assigned_to_its_run(model, pieces, name, attention, dtype):
    with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.float32):
        read = record_model(pieces, load_shallow(attention, dtype))
    found = find(model, read, CANDIDATES, real=True)
    assert found.best[0].name == name and found.candidates[0].real == pytest.approx(1, abs=1e-6)
    assert not found.is_bug and found.rest == pytest.approx(0, abs=1e-6)
    assert found.difference.tokens == sum(len(ids) - 1 for ids in pieces)
    missing = {one.name: one.missing for one in found.candidates}
    assert missing["vllm"] == "nothing here runs as vllm does"
    others = [one for one in found.candidates if one.name not in (name, "vllm")]
    # Nothing is run once it is known, as compiling would take minutes.
    assert any(one.missing == f"{name} is what was recorded" for one in others)
    assert f"rounding: {name} explains 100%" in str(found)


@pytest.mark.full
def test_by_emulation_alone_runs_that_round_alike_are_named_together(model, pieces):
    found = find(model, record_model(pieces, load_shallow("sdpa")), CANDIDATES)
    assert {one.name for one in found.best} == {"torch-sdpa", "hf-generate"}
    assert "hf-generate or torch-sdpa" in str(found) or "torch-sdpa or hf-generate" in str(found)
    assert all(one.real is None for one in found.candidates)
    written = found.to_dict()
    assert written["is_bug"] is False and len(written["candidates"]) == len(CANDIDATES)
    assert written["best"] == [one.name for one in found.best]


@pytest.mark.full
def test_errors_that_went_apart_are_told_by_their_size(model, pieces):
    """A float32 run lies nearest to what fits no digit, and has no error at all."""
    generator = torch.Generator().manual_seed(0)
    exact = load_shallow("sdpa", torch.float32)

    def read(ids: Tensor) -> Tensor:
        logits: Tensor = exact(input_ids=ids[None]).logits[0]
        return logits + 0.02 * torch.randn(logits.shape, generator=generator)

    found = find(model, record(pieces, read), CANDIDATES)
    assert not found.is_bug and found.best[0].name != "float32" and found.best[0].share < 0
    assert "no profile fits by its digits" in str(found)
    plain = find(model, record_model(pieces, exact), CANDIDATES)
    assert plain.best[0].name == "float32"


@pytest.mark.full
def test_an_answer_alone_is_compared_and_its_prompt_read_at_once(model, pieces):
    other, prompt = load_shallow("sdpa"), 24

    def read(ids: Tensor) -> Tensor:
        first = other(input_ids=ids[None, :prompt], use_cache=True)
        found, known = [first.logits], cache_of(first)
        for token in ids[prompt:]:
            found.append(read_on(other, token[None, None], known).logits)
        return torch.cat(found, dim=1)[0]

    records = [
        replace(one, logprobs=(*[None] * prompt, *one.logprobs[prompt:]))
        for one in record(pieces, read)
    ]
    found = find(model, records, CANDIDATES, real=True)
    assert [one.name for one in found.best] == ["hf-generate"]
    assert found.difference.tokens == sum(len(ids) - prompt for ids in pieces)


def shift(model: Any, ids: Tensor) -> Tensor:
    """Logits of which each says the log-probability of the token behind its own."""
    logits: Tensor = model(input_ids=ids[None]).logits[0]
    wrong = torch.full_like(logits, -100.0)
    right = logits[:-1].float().log_softmax(-1).gather(-1, ids[1:, None])[:, 0]
    later = torch.cat([right[1:], right[-1:]])
    for place, value in enumerate(later):
        # The token's own, and another that takes what is left.
        wrong[place, ids[place + 1]] = value
        wrong[place, ids[place + 1] - 1] = torch.log1p(-value.exp())
    return wrong


def begin(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model(input_ids=torch.cat([torch.tensor([BEGINNING]), ids])[None]).logits
    return logits[0, 1:]


def turn(model: Any, ids: Tensor) -> Tensor:
    buffers = [one for name, one in model.named_buffers() if name.endswith("inv_freq")]
    with changing(buffers, lambda before: before / 4):
        logits: Tensor = model(input_ids=ids[None]).logits[0]
    return logits


MISTAKES: dict[str, tuple[Callable[[Any, Tensor], Tensor], str]] = {
    "shift": (shift, "each recorded a token too early"),
    "temperature": (
        lambda model, ids: model(input_ids=ids[None]).logits[0] / 0.8,
        "temperature 0.8",
    ),
    "beginning": (begin, "the token of the beginning added"),
    "rotation": (turn, "rotations at positions divided by 4"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_called_a_bug_and_named(model, pieces, name, monkeypatch):
    make, cause = MISTAKES[name]
    monkeypatch.setattr(model.config, "bos_token_id", BEGINNING)
    before = {key: one.clone() for key, one in model.named_buffers()}
    engine = load_shallow("sdpa")
    found = find(model, record(pieces, lambda ids: make(engine, ids).float()), CANDIDATES[:2])
    assert found.is_bug and found.cause is not None and found.cause.name.startswith(cause)
    assert found.cause.left < found.most_rms < found.rms and found.forwards <= 30
    assert "a bug, not rounding" in str(found) and found.to_dict()["cause"] == found.cause.name
    torch.testing.assert_close(dict(model.named_buffers()), before, rtol=0, atol=0)


@pytest.mark.full
def test_a_few_tokens_are_assigned_to_no_profile(model, pieces):
    found = find(model, record_model([pieces[0][:6]], load_shallow("sdpa")), CANDIDATES[:2])
    assert not found.is_bug
    assert "5 tokens are too few to tell whose (24 are needed)" in str(found)


@pytest.mark.full
def test_another_checkpoint_is_a_bug_that_nothing_tried_explains(model, pieces):
    other = load_shallow("sdpa")
    with torch.no_grad():
        for one in other.parameters():
            one.mul_(1.1)
    found = find(model, record_model(pieces, other), CANDIDATES[:2])
    assert found.is_bug and found.cause is None
    assert "none that was tried explains it: another checkpoint" in str(found)
    assert "comes nearest" not in str(found)


@pytest.mark.full
def test_a_beginning_left_out_is_named(pieces):
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(vocab_size=500, num_attention_heads=4, **sizes, initializer_range=0.2)  # type: ignore[arg-type]
    own = LlamaForCausalLM(config).eval()
    texts = [torch.cat([torch.tensor([BEGINNING]), torch.randint(3, 500, (64,))]) for _ in range(2)]

    def read(ids: Tensor) -> Tensor:
        logits: Tensor = own(input_ids=ids[None, 1:]).logits[0]
        return torch.cat([logits[:1], logits])

    found = find(own, record(texts, read), CANDIDATES[:2])
    assert found.cause is not None and found.cause.name == "the token of the beginning missing"


CUTS: dict[str, tuple[dict[str, float], str]] = {
    "top-k": ({"top_k": 5}, "top-k 5 applied"),
    "top-p": ({"top_p": 0.8}, "top-p 0.8 applied"),
    "both": ({"top_p": 0.9, "temperature": 0.7}, "and top-p 0.9 applied"),
}


@pytest.mark.full
@pytest.mark.parametrize("name", CUTS)
def test_what_a_sampler_cuts_off_is_named(model, name):
    given, cause = CUTS[name]
    torch.manual_seed(0)
    options: dict[str, Any] = {"top_k": 0, "temperature": 1.0, **given}
    start = torch.tensor([[7], [19]])
    made = model.generate(
        start,
        max_new_tokens=80,
        min_new_tokens=80,
        do_sample=True,
        return_dict_in_generate=True,
        output_scores=True,
        **options,
    )
    pieces = list(made.sequences)
    steps = torch.stack(made.scores, 1).float().log_softmax(-1)
    records = [
        TokenRecord(
            token_ids=tuple(ids.tolist()),
            logprobs=(None, *rows.gather(-1, ids[1:, None])[:, 0].clamp(max=0).tolist()),
        )
        for ids, rows in zip(pieces, steps, strict=True)
    ]
    found = find(model, records, CANDIDATES[:2])
    assert found.is_bug and found.cause is not None and found.cause.name.endswith(cause)
    assert ("temperature 0.7" in found.cause.name) == (name == "both")


def wrong_best(logits: Tensor, ids: Tensor) -> list[float]:
    return logits[:-1].float().log_softmax(-1).amax(-1).tolist()


def wrong_base(logits: Tensor, ids: Tensor) -> list[float]:
    return [one / math.log(10) for one in score(logits, ids)]


@pytest.mark.full
@pytest.mark.parametrize(
    ("wrong", "cause"),
    [
        (wrong_best, "that of the most probable token each time"),
        (wrong_base, "logarithms to the base of 10"),
    ],
)
def test_other_numbers_than_log_probabilities_are_named(model, pieces, wrong, cause):
    engine = load_shallow("sdpa")
    with torch.no_grad():
        records = [
            TokenRecord(
                token_ids=tuple(ids.tolist()),
                logprobs=(None, *wrong(engine(input_ids=ids[None]).logits[0], ids)),
            )
            for ids in pieces
        ]
    found = find(model, records, CANDIDATES[:2])
    assert found.is_bug and found.cause is not None and found.cause.name == cause


def keep(records: list[TokenRecord], change: Callable[[float], float]) -> list[TokenRecord]:
    """Change what was recorded of the last token of each text."""
    return [
        replace(one, logprobs=(*one.logprobs[:-1], change(one.logprobs[-1] or 0.0)))
        for one in records
    ]


@pytest.mark.full
def test_one_profile_alone_is_held_against_what_rounding_makes(pieces):
    model, low = (load("sdpa", kind) for kind in (torch.float32, torch.bfloat16))
    plain, rounded = (record_model(pieces, engine) for engine in (model, low))
    short = [
        replace(one, logprobs=(None, *[round(value or 0.0, 3) for value in one.logprobs[1:]]))
        for one in plain
    ]
    alone = [load_profile("float32")]
    own = find(model, plain, alone, real=True)
    assert not own.is_bug and own.fits and own.candidates[0].share > 0.9
    # By its size alone, too, and where most of its digits were left out.
    assert all(find(model, one, alone).fits for one in (plain, short))
    other = find(model, rounded, alone, real=True)
    assert not other.is_bug and not other.fits and other.candidates[0].real is not None
    assert "but not that of float32" in str(other) and "a format of fewer digits" in str(other)
    wide = find(model, plain, [EAGER])
    assert not wide.is_bug and not wide.fits and "a format of more digits" in str(wide)
    # Shares of thousands of millions say nothing.
    row = next(one for one in str(wide).splitlines() if one.startswith("torch-eager"))
    assert row.split()[-1] == "–"


@pytest.mark.full
def test_no_mistake_explains_a_record_by_leaving_the_worst_token_out(model, pieces, monkeypatch):
    monkeypatch.setattr(model.config, "bos_token_id", BEGINNING)
    plain = record_model(pieces, load_shallow("sdpa"))
    wrong = keep(plain, lambda value: value - 1000.0)
    found = find(model, wrong, CANDIDATES[:2])
    assert found.is_bug and found.cause is None
    added = next(one for one in found.causes if one.name.endswith("beginning added"))
    assert added.left < found.rms / 10 and added.part > 1


@pytest.mark.full
def test_no_more_texts_are_read_than_tell_something(model, monkeypatch):
    most = 4
    monkeypatch.setattr("layerlab.numerics.recorded.explain.TEXTS", most)
    one = TokenRecord(token_ids=(5, 6), logprobs=(None, -50.0))
    found = find(model, [one] * (most + 1500), CANDIDATES[:2])
    assert found.left_out == 1500 and found.difference.tokens == most
    assert "4, of the first texts; 1,500 more were not read" in str(found)
    # Nothing is known of a shift where a text has but one token.
    written = json.dumps(found.to_dict(), allow_nan=False)
    assert any(one.left == math.inf for one in found.causes) and '"Infinity"' in written


@pytest.mark.full
def test_what_explains_half_is_told_where_something_else_is_left(model, pieces):
    """As a shift of an answer whose first token has another value."""
    early = record(pieces, lambda ids: shift(model, ids).float())
    wrong = [replace(one, logprobs=(None, -4.0, *one.logprobs[2:])) for one in early]
    found = find(model, wrong, CANDIDATES[:1])
    assert found.is_bug and found.cause is None
    assert "each recorded a token too early leaves" in str(found).splitlines()[0]
    assert "and comes nearest; none that was tried explains it" in str(found)


FAR = tuple(RecordedToken(text=1, place=at, token=3, error=-10.0) for at in (1, 2))
WARM = Cause(name="warm", left=1.0, whole=2.0, sure=True)


@pytest.mark.parametrize(
    ("given", "size", "excess"),
    [
        ({"outliers": FAR}, 2.0, 200 / (98 * 4 + 200)),
        ({}, 2.0, 0),
        ({"is_beyond": True}, 1.0, 3 / 4),
        ({"is_beyond": True, "share": 0.3}, 1.0, 0.7),
        ({"is_beyond": True, "share": 0.1}, 1.0, 3 / 4),
        # Its size is that of rounding, and its mean is not.
        ({"is_beyond": True, "bias": -1.0}, 4.0, 1 / 4),
        ({"is_beyond": True, "bias": 0.05}, 4.0, 0),
        ({"causes": (WARM,)}, 2.0, 3 / 4),
        ({"rms": 0.0}, 2.0, 0),
    ],
)
def test_the_excess_is_the_share_of_squares_that_no_rounding_makes(given, size, excess):
    found = tell(tokens=100, **{"rms": 2.0, "share": -5.0, **given})
    assert _find_excess(found, size) == pytest.approx(excess)


@pytest.mark.parametrize(
    ("made", "size", "share", "may"),
    [
        (1.0, 0.6, 0.0, True),
        (1.0, 0.4, 0.0, False),
        (1.0, 1.9, 0.0, True),
        (1.0, 2.1, 0.0, False),
        (1.0, 9.0, 0.06, True),  # by its digits
        (1e-3, 0.0, 0.0, True),  # below the floor nothing is seen
        (1e-3, 0.019, 0.0, True),
        (1e-3, 0.021, 0.0, False),
    ],
)
def test_a_profile_may_have_made_what_is_as_large_as_its_own(made, size, share, may):
    assert _may_be(ProfileFit(name="", emulated=share, rms=made), size, floor=0.01) == may


def test_tokens_that_are_far_out_are_told_with_their_places():
    records = [
        TokenRecord(token_ids=ids, logprobs=(None, *[0.0] * (len(ids) - 1)))
        for ids in ((5, 6, 7), (8, 9))
    ]
    recorded = [torch.tensor([-1.0, -3.0]), torch.tensor([-9.0])]
    exact, outliers = torch.tensor([-1.0, -1.0, -4.0]), torch.tensor([False, True, True])
    found = _list_outliers(records, recorded, exact, outliers)
    assert [(one.text, one.place, one.token, one.error) for one in found] == [
        (2, 1, 9, -5.0),
        (1, 2, 7, -2.0),
    ]
