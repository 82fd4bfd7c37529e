"""Independence of norms from other tokens: layer, RMS and batch norm, and whole models."""

from collections.abc import Callable
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn

from layerlab.errors import NotApplicable
from layerlab.studies.engine.pictures import Gap, gaps
from layerlab.studies.engine.sampling import Sampler, StudyContext
from layerlab.studies.engine.scale import CASES, READ
from layerlab.studies.engine.statistics import bootstrap, maximum, summary, table
from layerlab.studies.engine.study import Outcome, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, decide
from layerlab.studies.support.passages import excerpts, get_model, overlap

WIDTH = 64
BATCHES = (2, 8, 32)
TOKENS = 64
# Passages that are read beside one.
BESIDE = 3
LARGE = 10.0
# A part of the output's length that nobody would call rounding.
MOVED = 0.01
ROUNDING = 64 * torch.finfo(torch.float64).eps
LAYER, RMS, BATCH = "layer norm", "RMS norm", "batch norm"
NORMS: dict[str, Callable[[], nn.Module]] = {
    LAYER: partial(nn.LayerNorm, WIDTH),
    RMS: partial(nn.RMSNorm, WIDTH),
    BATCH: partial(nn.BatchNorm1d, WIDTH),
}
CHANGES = ("other tokens", "evaluation")


def norms(draw: Sampler, batch: int) -> dict[str, Tensor]:
    """Return how far a token's output moves, relatively, with its batch and in evaluation."""
    one, others = draw.normal(1, WIDTH), draw.normal(2, batch - 1, WIDTH)
    others[:, 1] *= LARGE
    made = {
        name: [_moves(norm, *pair) for pair in zip(one, others, strict=True)]
        for name, norm in NORMS.items()
    }
    return {name: torch.stack(rows) for name, rows in made.items()}


def _moves(norm: Callable[[], nn.Module], one: Tensor, others: Tensor) -> Tensor:
    module = norm().double()
    with torch.no_grad():
        first, second = (module(torch.cat([one, beside]))[0] for beside in others)
        evaluated = module.eval()(one)[0]
    return torch.stack([(second - first).norm(), (evaluated - first).norm()]) / first.norm()


@torch.no_grad()
def beside(draw: Sampler, name: str) -> dict[str, Tensor]:
    """Return the largest change of a passage's logits beside others, over the largest of them."""
    found = get_model(name, draw.given)
    passages = excerpts(draw, name, TOKENS, 1 + BESIDE).view(draw.count, 1 + BESIDE, TOKENS)
    changes = []
    for batch in passages.to(found.device):
        alone, within = (
            found.model(input_ids=ids, use_cache=False).logits[0] for ids in (batch[:1], batch)
        )
        # Some families rule out entries by the lowest number there is, or by -inf.
        kept = ~(alone <= torch.finfo(alone.dtype).min / 2)
        alone, within = alone[kept].double(), within[kept].double()
        changes.append((within - alone).abs().max() / alone.abs().max())
        if not changes[-1].isfinite():
            raise NotApplicable("its logits of a passage are not all finite")
    return {"change": torch.stack(changes).cpu()}


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    parts = context.sample(norms, [{"batch": batch} for batch in BATCHES])
    models = context.sample_models(beside, batch=8)
    moved = {name: np.stack([part[name] for part in parts], 1) for name in NORMS}
    logits = {name: part["change"] for name, part in models.items()}
    rows = [
        summary(values[:, number, index], {"of": name, "batch": batch, "change by": change})
        for name, values in moved.items()
        for number, batch in enumerate(BATCHES)
        for index, change in enumerate(CHANGES)
    ]
    rows += [
        summary(values, {"of": f"logits of {name}", "batch": 1 + BESIDE, "change by": CHANGES[0]})
        for name, values in logits.items()
    ]
    drawn = [
        Gap(name=f"{name}, batch of {batch}", middle=middle, low=low, high=high)
        for number, batch in enumerate(BATCHES)
        for name in (BATCH,)
        for low, middle, high in [map(float, np.quantile(moved[name][:, number, 0], [0, 0.5, 1]))]
    ]
    return Outcome(
        verdicts=(
            judge_alone(moved),
            judge_batch_norm(moved, context.seed),
            judge_models(logits, context),
        ),
        frames={"changes": table(rows)},
        pictures=(
            gaps(
                "moved",
                "Change of a token behind batch norm when the others of its batch change",
                drawn,
                x="over the token's length",
            ),
        ),
        remarks=(
            f"Of the other tokens of a batch the first becomes {LARGE:g} times as large. Batch "
            "norm has seen one batch when it is evaluated.",
            overlap(TOKENS, context.given),
        ),
    )


def judge_alone(moved: dict[str, np.ndarray]) -> StudyVerdict:
    """Judge the claim itself, and of RMS norm as well."""
    largest = maximum(np.concatenate([moved[LAYER], moved[RMS]]))
    return StudyVerdict(
        scale=CASES,
        claim=STUDY.claim,
        word=decide(holds=largest.value <= ROUNDING),
        number=largest.value,
        said=f"behind layer norm and RMS norm a token moves by at most {largest.value:.1e} of its "
        f"length when others of its batch change, or in evaluation; up to {ROUNDING:.0e} is "
        "rounding",
        unit=f"{len(moved[LAYER])} random batches of each size",
    )


def judge_batch_norm(moved: dict[str, np.ndarray], seed: int) -> StudyVerdict:
    """Judge what the source says of batch norm."""
    found = [
        bootstrap(moved[BATCH][:, number, index], np.median, seed, comparisons=2 * len(BATCHES))
        for number in range(len(BATCHES))
        for index in range(2)
    ]
    least = min(found, key=lambda one: one.low)
    batches = ", ".join(map(str, BATCHES))
    return StudyVerdict(
        scale=CASES,
        claim="Batch norm makes a token hang on the others of its batch, and tells training from "
        "evaluation.",
        word=above(least, MOVED),
        number=least.value,
        said=f"behind batch norm a token moves by {least} of its length or more (medians at "
        f"batches of {batches}, by other tokens and in evaluation); above {MOVED:g} was asked for",
        unit=f"{len(moved[BATCH])} random batches of each size",
    )


def judge_models(logits: dict[str, np.ndarray], context: StudyContext) -> StudyVerdict:
    """Judge whether whole models are so, but for the rounding of their products."""
    allowed = {
        name: torch.finfo(get_model(name, context.given).model.dtype).eps ** 0.5 for name in logits
    }
    largest = {name: float(values.max()) for name, values in logits.items()}
    numbers = ", ".join(f"{value:.1e} ({name})" for name, value in largest.items())
    return StudyVerdict(
        claim="Models of such norms give a text the same logits alone and beside others.",
        word=decide(holds=all(largest[name] <= allowed[name] for name in logits)),
        number=max(largest.values()),
        said=f"beside {BESIDE} others the logits of a passage move by at most {numbers} of the "
        "largest; up to the root of the precision, "
        f"{max(allowed.values()):.1e}, products that are summed in another order explain it",
        source="Own, of spectral25, section 1.2.1",
    )


STUDY = Study(
    name="batch-independence",
    title="Norms and the batch",
    source="spectral25, section 1.2.1",
    claim="Layer norm looks at the token alone: neither the batch nor training changes it.",
    cost="10 seconds",
    draws=200,
    passage=TOKENS,
    run=run,
    fast={"draws": 16},
    few=8,
    **READ,
)
