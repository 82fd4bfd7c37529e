"""The bound of spectral25 on the norm of attention, as printed and corrected, and what it tells."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.studies.engine.pictures import band, curves
from layerlab.studies.engine.sampling import Arrays, GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, count_models, random_networks
from layerlab.studies.engine.statistics import (
    Interval,
    bootstrap,
    bootstrap_each,
    maximum,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import below, decide, each
from layerlab.studies.spectral25.drawn_heads import (
    HEAD,
    TOKENS,
    WIDTH,
    aimed_heads,
    attend,
    random_heads,
)
from layerlab.studies.support.attention_scores import check_rows
from layerlab.studies.support.passages import (
    NONE,
    PASSAGES,
    excerpts,
    for_each_attention,
    get_model,
    overlap,
)

# M of the head, the largest score that its weights allow.
LIMITS = (0.01, 0.1, 0.3, 1.0, 2.0, 5.0, 10.0)
PAIR = ("pre-norm", "post-norm")
RANDOM, AIMED = "random", "aimed"
BOUNDS = ("score_bound", "prenorm_bound", "prenorm_printed")
# Of what every attention has, by the names of its readings.
SHARES = {"corrected": "prenorm_bound", "printed": "prenorm_printed"}
QUANTITIES = ("causal", "unmasked", "printed", "corrected")
# Of sqrt(n), which holds for every attention matrix: a bound this near to it tells nothing.
VACUOUS = 0.99
# The source says "very close to 1"; an attention that is this near doubles nothing.
NEAR_ONE = 1.5
ROUNDING = 1 + 1e-9


def heads(draw: Sampler, limit: float, kind: str) -> dict[str, Tensor]:
    """Return the norm of a head's attention and both bounds, a head per draw, for one batch."""
    from layerlab.measures.quantities.spectrum import spectrum
    from layerlab.measures.quantities.weights.querykey import (
        prenorm_bound,
        printed_bound,
        score_bound,
    )

    stream, weights = (random_heads if kind == RANDOM else aimed_heads)(draw, limit)
    found = {
        name: spectrum(attend(stream, weights, causal=causal), dtype=torch.float64).norm
        for name, causal in (("causal", True), ("unmasked", False))
    }
    largest = score_bound(weights, differences=True)
    return {
        **found,
        "printed": printed_bound(weights, TOKENS),
        "corrected": prenorm_bound(largest, TOKENS),
        "unmasked bound": prenorm_bound(largest, TOKENS, causal=False),
    }


def norms(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return, for one batch, the norm and the column bound of every head of a model."""
    from layerlab.measures.quantities.spectrum import spectrum

    found: dict[str, list[Tensor]] = {"norm": [], "column": []}

    def read(layer: Any) -> None:
        check_rows(layer.attention)
        layer_spectrum = spectrum(layer.attention)
        found["norm"].append(layer_spectrum.norm)
        found["column"].append(layer_spectrum.column_bound)

    for_each_attention(get_model(name, draw.given), excerpts(draw, name, TOKENS), read)
    return {key: torch.cat(rows).view(draw.count, -1) for key, rows in found.items()}


def limits(name: str, given: GivenModels = NONE) -> dict[str, np.ndarray]:
    """Return M and both bounds of every head of a model that stands behind a norm.

    A share is a bound over the root of the tokens that see a key, of which no window lets pass more
    than it is wide: at 1 the bound is what every attention has.
    """
    from layerlab.measures.quantities.weights.querykey import MEASURES
    from layerlab.measures.runner import readings
    from layerlab.studies.support.passages import tokens_of
    from layerlab.studies.support.theory_block import weights_of

    subject = get_model(name, given)
    assert not isinstance(subject.stack, str), subject.stack
    ids = tokens_of(name, given)[:TOKENS].to(subject.device)
    rows = readings(subject, [ids], MEASURES).rows.get("querykey", [])
    windows = {part.block: weights_of(part, subject).window for part in subject.stack.attentions}
    seen = np.array([min(windows[row["layer"]] or TOKENS, TOKENS) for row in rows])
    found = {column: np.array([row[column] for row in rows]) for column in BOUNDS}
    shares = {name: found[column] / np.sqrt(seen) for name, column in SHARES.items()}
    read = {**found, **shares, "seen": seen}
    return {column: values[np.isfinite(values)] for column, values in read.items()}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [{"limit": limit, "kind": kind} for kind in (RANDOM, AIMED) for limit in LIMITS]
    parts = context.sample(heads, cases)
    single = {
        kind: dict(zip(LIMITS, parts[index * len(LIMITS) :], strict=False))
        for index, kind in enumerate((RANDOM, AIMED))
    }
    models = context.sample_models(norms, () if context.given else PAIR, batch=16)
    every = {name: limits(name, context.given) for name in context.models}
    bounds = {name: found for name, found in every.items() if found["prenorm_bound"].size}
    rows = [
        summary(found[quantity], {"heads": kind, "M": limit, "quantity": quantity})
        for kind, by_limit in single.items()
        for limit, found in by_limit.items()
        for quantity in QUANTITIES
    ]
    rows += [
        summary(found["norm"].ravel(), {"heads": name, "M": np.nan, "quantity": "causal"})
        for name, found in models.items()
    ]
    rows += [
        summary(values, {"heads": name, "M": np.nan, "quantity": quantity})
        for name, found in bounds.items()
        for quantity in BOUNDS
        if (values := found[quantity]).size
    ]
    return Outcome(
        verdicts=(
            judge_masked(single[RANDOM], context.seed),
            judge_scale(single[AIMED], context.seed),
            judge_corrected(single, context.seed),
            *([judge_tells(bounds)] if bounds else []),
            *(
                [judge_columns(models, context.seed)]
                if context.given
                else [judge_separates(bounds), judge_near_one(models, context.seed)]
            ),
        ),
        frames={"norms": table(rows)},
        pictures=(plot(single[RANDOM]),),
        remarks=(
            f"Random heads: width {WIDTH}, head width {HEAD}, {TOKENS} tokens behind a layer norm "
            "with gain 1, weights scaled to the given M; the scores are divided by sqrt(d_h), as "
            "models do. Aimed heads give the first token all the weight that M allows.",
            f"{'Models' if context.given else 'Built-in models'}: passages of {TOKENS} tokens. "
            f"{overlap(TOKENS, context.given)}",
            *(
                f"No head of {name} has the bound: it stands behind no norm that can be read, or "
                "its scores are normed themselves."
                for name in every.keys() - bounds.keys()
            ),
            f"The source says 'very close to 1' of a column sum: up to {NEAR_ONE:g} would pass for "
            f"it. A bound above {VACUOUS:g} sqrt(n) tells no more than sqrt(n), which holds for "
            "every attention.",
        ),
    )


def largest(found: Arrays, norm: str, bound: str) -> np.ndarray:
    """Return the norm over its bound, draw by draw; above 1 the bound is false."""
    return np.asarray(found[norm] / found[bound])


def _worst(found: Mapping[float, Arrays], norm: str, bound: str) -> tuple[float, np.ndarray]:
    ratios = {limit: largest(one, norm, bound) for limit, one in found.items()}
    limit = max(ratios, key=lambda one: float(np.median(ratios[one])))
    return limit, ratios[limit]


def judge_masked(found: Mapping[float, Arrays], seed: int) -> StudyVerdict:
    """Judge the bound as printed, for the causal attention of a GPT."""
    limit, ratios = _worst(found, "causal", "printed")
    above = sum(int((largest(one, "causal", "printed") > ROUNDING).sum()) for one in found.values())
    ratio = bootstrap(ratios, np.median, seed)
    return StudyVerdict(
        claim=STUDY.claim,
        word=decide(fails=above > 0),
        number=ratio.value,
        said=f"the norm of causal attention is {ratio} times the printed bound at M = {limit:g} "
        f"(median of {len(ratios)} random heads); it is above it in {above} of "
        f"{len(found) * len(ratios)} heads, M from {LIMITS[0]:g} to {LIMITS[-1]:g}",
    )


def judge_scale(found: Mapping[float, Arrays], seed: int) -> StudyVerdict:
    """Judge the printed bound without a mask, where its argument is right but for the scale."""
    limit, ratios = _worst(found, "unmasked", "printed")
    ratio = bootstrap(ratios, np.median, seed)
    right = max(largest(one, "unmasked", "unmasked bound").max() for one in found.values())
    return StudyVerdict(
        claim="Without a mask the printed bound holds for multi-head attention, though it divides "
        "scores by sqrt(d) where models divide by sqrt(d_h).",
        word=decide(fails=ratios.max() > ROUNDING),
        number=ratio.value,
        said=f"aimed heads have {ratio} times the printed bound at M = {limit:g} (median of "
        f"{len(ratios)}); with the scale that the head has, norm over bound is at most {right:.3g}",
    )


def judge_corrected(found: Mapping[str, Mapping[float, Arrays]], seed: int) -> StudyVerdict:
    """Judge the corrected bound, which sums over rows of i keys."""
    ratios = {
        kind: np.stack([largest(one, "causal", "corrected") for one in by_limit.values()], 1)
        for kind, by_limit in found.items()
    }
    top = maximum(np.concatenate(list(ratios.values()), 1))
    share = bootstrap(ratios[RANDOM], np.median, seed)
    return StudyVerdict(
        claim="Under a causal mask the norm stays below sqrt(sum_i 1 / (1 + (i-1) e^(-2M))).",
        word=decide(fails=top.value > ROUNDING),
        number=top.value,
        said=f"norm over bound is at most {top}, over random and aimed heads; of random heads it "
        f"is {share} in the median: the bound is not attained",
        source="Own, after spectral25, section 2.2",
    )


def judge_tells(bounds: Mapping[str, Mapping[str, np.ndarray]]) -> StudyVerdict:
    """Judge what is left of the bound at the weights of trained models."""
    shares = {name: float((found["corrected"] > VACUOUS).mean()) for name, found in bounds.items()}
    every = np.concatenate([found["corrected"] for found in bounds.values()])
    printed = np.concatenate([found["printed"] for found in bounds.values()])
    narrow = sorted({int(n) for found in bounds.values() for n in found["seen"]} - {TOKENS})
    windows = "".join(f", or {n} in a window of as many" for n in narrow)
    middle = np.median(np.concatenate([found["score_bound"] for found in bounds.values()]))
    vacuous = bootstrap(every, lambda one: float((one > VACUOUS).mean()))
    by_model = ", ".join(f"{share:.0%} in {name}" for name, share in shares.items())
    # Behind a norm of their own, queries and keys have a bound, and none as it is printed.
    as_printed = f"; as printed {(printed > VACUOUS).mean():.0%}" if printed.size else ""
    return StudyVerdict(
        scale=BUILT_IN,
        claim="In trained models the bound is a constant well below sqrt(n).",
        word=below(vacuous, 0.5),
        number=vacuous.value,
        said=f"the bound is vacuous, that is above {VACUOUS:g} sqrt(n), for a share {vacuous} of "
        f"the heads ({by_model}{as_printed}): the median M is "
        f"{middle:.3g}, n = {TOKENS}{windows}; fewer than half of the heads were asked for",
        unit=f"{len(every)} heads of {count_models(len(bounds))}",
    )


def judge_separates(bounds: Mapping[str, Mapping[str, np.ndarray]]) -> StudyVerdict:
    """Judge whether the bound separates pre-norm from post-norm, which also reads a norm."""
    pre, post = (bounds[name]["prenorm_bound"] for name in PAIR)
    ratio = Interval(
        float(np.median(post) / np.median(pre)),
        float(post.min() / pre.max()),
        float(post.max() / pre.min()),
    )
    lone = bounds["post-norm"]["score_bound"]
    return StudyVerdict(
        scale=BUILT_IN,
        claim="The bound tells pre-norm from post-norm: without it the norm may rise to sqrt(n).",
        word=decide(holds=ratio.value > NEAR_ONE),
        number=ratio.value,
        said=f"the median bound of a post-norm head is {ratio.value:.4g} times that of a pre-norm "
        f"head, and between any two of them {ratio.low:.3g} to {ratio.high:.3g} times; above "
        f"{NEAR_ONE:g} was asked for. Post-norm attention reads a "
        f"layer norm from its second layer on, and {len(lone)} of its heads have the bound, too "
        f"(median M {np.median(bounds['pre-norm']['score_bound']):.3g} pre, "
        f"{np.median(lone):.3g} post)",
        unit=f"{len(pre)} and {len(post)} heads of one model each",
    )


def judge_near_one(models: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge whether the largest column sum of a pre-norm model is near 1."""
    columns = {n: bootstrap(found["column"] ** 2, np.median, seed) for n, found in models.items()}
    measured = {n: bootstrap(found["norm"], np.median, seed) for n, found in models.items()}
    pre, post = (columns[name] for name in PAIR)
    return StudyVerdict(
        scale=BUILT_IN,
        claim="Pre-norm presses the largest column sum of attention to very near 1.",
        word=below(pre, NEAR_ONE),
        number=pre.value,
        said=f"the largest column sum is {pre} in the trained pre-norm model and {post} in the "
        f"post-norm one (median over heads and {len(models[PAIR[0]]['column'])} passages; 1 is "
        f"the least, {TOKENS} the most); below {NEAR_ONE:g} was asked for. The norm is "
        f"{measured[PAIR[0]]} and {measured[PAIR[1]]}",
        source="spectral25, section 2.2, conclusion",
        unit=f"{len(models[PAIR[0]]['column'])} {PASSAGES}",
    )


def judge_columns(models: Mapping[str, Arrays], seed: int) -> StudyVerdict:
    """Judge whether the largest column sum is near 1 in models that the user named."""
    columns = bootstrap_each(
        {name: found["column"] ** 2 for name, found in models.items()}, np.median, seed
    )
    numbers = ", ".join(
        f"{one} in {name} (norm {np.median(models[name]['norm']):.3g})"
        for name, one in columns.items()
    )
    draws = len(next(iter(models.values()))["column"])
    return StudyVerdict(
        scale=BUILT_IN,
        claim="The largest column sum of attention is very near 1.",
        word=each(below(one, NEAR_ONE) for one in columns.values()),
        number=max(one.value for one in columns.values()),
        said=f"it is {numbers}, the median over heads and passages; 1 is the least, {TOKENS} the "
        f"most, and below {NEAR_ONE:g} was asked for in each",
        source="spectral25, section 2.2, conclusion",
        unit=f"{draws} {PASSAGES}",
    )


def _ends(values: np.ndarray) -> list[float]:
    low, high = np.percentile(values, [5, 95])
    return [low, np.median(values), high]


def plot(found: Mapping[float, Arrays]) -> Picture:
    """Plot the norms of random heads and the bounds, by M."""
    names = {
        "causal": "norm, causal mask",
        "unmasked": "norm, no mask",
        "printed": "bound as printed",
        "corrected": "bound for a causal mask",
    }
    lines = [
        band(
            names[quantity],
            list(found),
            np.transpose([_ends(one[quantity]) for one in found.values()]),
            kind=kind % 2 if quantity != "printed" else 1,
            style="solid" if quantity in ("causal", "unmasked") else "dash",
        )
        for kind, quantity in ((0, "causal"), (1, "unmasked"), (1, "printed"), (0, "corrected"))
    ]
    title = "Norm of attention and its bounds, random heads (median, 5 to 95 %)"
    return curves(
        "bounds", title, lines, x="M, largest score of the head", y="spectral norm", log="xy"
    )


STUDY = Study(
    name="attention-gain",
    title="Bounds on attention's gain",
    source="spectral25, section 2.2",
    claim="Behind a layer norm the norm of attention is at most sqrt(n / (1 + (n-1) e^(-2M))), "
    "M = Gamma^2 sigma_Q sigma_K sqrt(d).",
    cost="2 minutes",
    draws=200,
    models=builtin.NAMES,
    passage=TOKENS,
    attention=True,
    scale=random_networks(1, WIDTH),
    run=run,
    fast={"draws": 8},
)
