"""Conclusion 3 of budzinskiy25: layer norm against RMS norm, near a constant and in models."""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from layerlab import builtin
from layerlab.errors import NotApplicable
from layerlab.known_options import study_options
from layerlab.observe.architecture import norms
from layerlab.studies.budzinskiy25.support.random_transformers import NAMES, NORMWISE
from layerlab.studies.budzinskiy25.support.reference_transformer import NORMS, errors
from layerlab.studies.budzinskiy25.support.scalar_arithmetic import Draws, Exact, Strict
from layerlab.studies.engine.pictures import Curve, curves
from layerlab.studies.engine.sampling import GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN, count_models, random_networks
from layerlab.studies.engine.statistics import (
    Interval,
    bootstrap,
    line,
    ratio_of_medians,
    summary,
    table,
)
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, each
from layerlab.studies.support.passages import NONE, get_model, tokens_of
from layerlab.system.hooks import temporary_hooks

if TYPE_CHECKING:
    from layerlab.loading.model import LoadedModel

# How far the entries of an input are from 1; conclusion 3 is about the small ones.
SPREADS = (1.0, 1e-1, 1e-2, 1e-3, 1e-4)
WIDTH = 64
TOKENS = 128
# More than one more rounding can account for: layer norm has one subtraction more than RMS norm.
EFFECT = 1.5


def near(draw: Sampler, spread: float, norm: str, digits: int) -> dict[str, Tensor]:
    """Return the errors of a norm on inputs 1 + spread * N(0, 1), for one batch."""
    x = draw.normal(1, WIDTH, mean=1.0, deviation=spread)
    return {"errors": norm_errors(x, norm, digits)}


def norm_errors(x: Draws, norm: str, digits: int) -> Tensor:
    """Return the errors of a norm, input by input."""
    strict, exact = Strict(digits), Exact()
    held = strict.take(x)
    return errors(NORMS[norm](strict, held), NORMS[norm](exact, exact.take(held)))


def inputs(subject: "LoadedModel", ids: Tensor) -> dict[str, Tensor]:
    """Return what each norm of the stream reads of a passage, token x width, in float64."""
    # Late: the list of studies needs no transformers.
    from layerlab.observe.architecture.structure import has_matrix

    found: dict[str, Tensor] = {}
    width = subject.config.hidden_size
    handles = [
        module.register_forward_pre_hook(
            lambda _, given, name=name: found.__setitem__(name, given[0][0].double().cpu())
        )
        for name, module in subject.model.named_modules()
        if next(module.children(), None) is None and not has_matrix(module)
        if norms.norm(module, width) is not None
    ]
    with temporary_hooks(handles), torch.no_grad():
        subject.model(ids[None].to(subject.device), use_cache=False)
    # Norms of queries and keys read heads, and other branches read a width of their own.
    return {name: rows for name, rows in found.items() if rows.shape == (len(ids), width)}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    digits = context.options["digits"]
    cases: list[dict[str, Any]] = [
        {"spread": spread, "norm": norm, "digits": digits} for norm in NORMS for spread in SPREADS
    ]
    parts = [part["errors"] for part in context.sample(near, cases, batch=1024)]
    count = len(SPREADS)
    synthetic = {
        norm: np.stack(parts[index * count : (index + 1) * count], axis=1)
        for index, norm in enumerate(NORMS)
    }
    own = next((one.source for one in context.given.values()), "")
    models = {name: in_model(name, digits, context.given) for name in context.models}
    rows = [
        summary(
            synthetic[norm][:, index, statistic],
            {"input": f"1 + {spread:g} N(0, 1)", "norm": norm, "statistic": name},
        )
        for norm in NORMS
        for index, spread in enumerate(SPREADS)
        for statistic, name in enumerate(NAMES)
    ]
    rows += [
        summary(found[norm][:, statistic], {"input": model, "norm": norm, "statistic": name})
        for model, found in models.items()
        for norm in NORMS
        for statistic, name in enumerate(NAMES)
    ]
    rows += [
        summary(found["ratio"], {"input": model, "norm": "", "statistic": "||x|| / ||centred x||"})
        for model, found in models.items()
    ]
    lines = [
        Curve(
            name={"layer": "layer norm", "rms": "RMS norm"}[norm],
            x=SPREADS,
            y=[float(n) for n in np.median(found[:, :, NORMWISE], axis=0)],
            kind=kind,
        )
        for kind, (norm, found) in enumerate(synthetic.items())
    ]
    text = own or "the built-in text"
    title = "Median error near a constant input"
    y = "relative error, normwise"
    picture = curves("spread", title, lines, x="deviation from a constant", y=y, log="xy")
    return Outcome(
        verdicts=(
            judge_constant(synthetic, context.seed),
            judge_real(models, context.seed, own or "one text"),
        ),
        frames={"inputs": table(rows)},
        pictures=(picture,),
        remarks=(
            f"Layer norm has one subtraction more than RMS norm, and so a rounding more: up to "
            f"{EFFECT:g} times the error is what that alone can make, and no loss of digits.",
            f"Models: what each norm reads at {TOKENS} tokens of {text}. Intervals are "
            "over these tokens, each with all its norms.",
        ),
    )


def in_model(model: str, digits: int, given: GivenModels = NONE) -> dict[str, np.ndarray]:
    """Return the errors of both norms in one model, one row per norm and token.

    Raises:
        NotApplicable: no norm reads its stream.
    """
    read = inputs(get_model(model, given), tokens_of(model, given)[:TOKENS])
    if not read:
        raise NotApplicable(f"{model}: no layer norm or RMS norm reads its stream")
    rows = torch.cat(list(read.values()))[:, None]
    centred = rows - rows.mean(-1, keepdim=True)
    found = {norm: norm_errors(rows, norm, digits).numpy() for norm in NORMS}
    return {**found, "ratio": (rows.norm(dim=-1) / centred.norm(dim=-1)).flatten().numpy()}


def judge_constant(errors_of: dict[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge how much larger the error of layer norm is near a constant."""
    pair = np.stack([errors_of[norm][:, -1, NORMWISE] for norm in ("layer", "rms")], 1)
    found = bootstrap(pair, ratio_of_medians, seed)
    medians = np.median(errors_of["layer"][:, 1:, NORMWISE], axis=0)
    power = line(np.log(SPREADS[1:]), np.log(medians)).slope
    return StudyVerdict(
        claim=STUDY.claim,
        word=above(found, EFFECT, 1),
        number=found.value,
        said=(
            f"at entries 1 + {SPREADS[-1]:g} N(0, 1) the median error of layer norm is {found} "
            f"times that of RMS norm, and above {EFFECT:g} was asked for; it follows the power "
            f"{power:.2f} of the spread (normwise, {len(pair)} draws)"
        ),
    )


def judge_real(models: dict[str, dict[str, np.ndarray]], seed: int, text: str) -> StudyVerdict:
    """Judge which norm is worse, and by how much, on what the norms of trained models read."""
    found: dict[str, Interval] = {}
    for name, read in models.items():
        pair = np.stack([read["layer"][:, NORMWISE], read["rms"][:, NORMWISE]], 1)
        # What the norms of a model read of one token hangs together: it is drawn with all of them.
        tokens = pair.reshape(-1, TOKENS, 2).swapaxes(0, 1)
        found[name] = bootstrap(tokens, ratio_of_medians, seed, comparisons=len(models))
    numbers = ", ".join(
        f"{name} {ratio} (||x|| is {np.median(models[name]['ratio']):.3g} times that of x less its "
        "mean)"
        for name, ratio in found.items()
    )
    low = min(ratio.low for ratio in found.values())
    high = max(ratio.high for ratio in found.values())
    return StudyVerdict(
        scale=BUILT_IN,
        claim="On what the norms of trained models read, layer norm is the less stable one, too.",
        word=each(above(ratio, 1) for ratio in found.values()),
        number=max(ratio.value for ratio in found.values()),
        said=f"median error of layer norm over that of RMS norm on the same inputs: {numbers}; "
        f"above 1 was asked for in each. {_size(low, high)}",
        unit=f"{TOKENS} tokens of {text}, {count_models(len(models))}",
    )


def _size(low: float, high: float) -> str:
    if high < EFFECT:
        return f"In size it is little: below {EFFECT:g}, what one more rounding can account for"
    return (
        f"In size it is more than one more rounding can account for, {EFFECT:g}"
        if low > EFFECT
        else f"Whether it is more than one more rounding can account for, {EFFECT:g}, stays open"
    )


STUDY = Study(
    name="layernorm-against-rmsnorm",
    title="Layer norm against RMS norm",
    source="budzinskiy25, Lemma 4.6, Lemma 4.11 and conclusion 3",
    claim="Layer norm loses its digits where the entries of its input are nearly equal; "
    "RMS norm does not.",
    cost="10 seconds",
    draws=5000,
    models=builtin.NAMES,
    passage=TOKENS,
    scale=random_networks(1, WIDTH),
    run=run,
    fast={"draws": 500},
    **study_options("layernorm-against-rmsnorm"),
)
