"""GPT-1 against GPT-2 in spectral25, on a matched pair; what padding and length do to it."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from layerlab.errors import NotApplicable
from layerlab.studies.engine.pictures import Curve, curves, interval_band
from layerlab.studies.engine.sampling import Arrays, GivenModels, Sampler, StudyContext
from layerlab.studies.engine.scale import BUILT_IN
from layerlab.studies.engine.statistics import bootstrap, bootstrap_each, summary, table
from layerlab.studies.engine.study import Outcome, Picture, Study, StudyVerdict
from layerlab.studies.engine.verdict import above, each, within
from layerlab.studies.support.once import compute_once
from layerlab.studies.support.passages import ALONE, NONE, PASSAGES, excerpts, overlap
from layerlab.system.offload import running_device

# Tokens of a text, as the source has them: its padded batches are as long as the longest.
LENGTHS = {"short": (1, 5), "long": (12, 18)}
PAD = 0
# The placements of the norm that are compared: what each of the two models stands for.
NAMED = ("pre-norm", "post-norm")
HUB = "layerlab study gpt-curves --model gpt2 --model openai-gpt"
# Of a norm between 1 and 4: what is nearer to nothing no figure would show.
EFFECT = 0.01
ArraysByCase = Mapping[tuple[str, str], Arrays]


def norms(draw: Sampler, name: str, texts: str) -> dict[str, Tensor]:
    """Return, for one batch, the mean norm over heads by layer, of texts alone and padded.

    The source's script pads every text to the longest, hands the mask to the model, and takes the
    norm of the whole padded matrix, rows of padding included.
    """
    from layerlab.measures.quantities.spectrum import uniform_norm

    fewest, most = LENGTHS[texts]
    lengths = torch.randint(fewest, most + 1, (draw.count,), generator=draw.generator)
    layers = matrices(name, excerpts(draw, name, most), lengths, draw.given)
    real = torch.arange(most) < lengths[:, None]
    # Rows and columns of zeros leave the norm of a text's own part as it is.
    inside = (real[:, None, :, None] & real[:, None, None, :]).double()
    return {
        "own": torch.stack([_norm(layer * inside) for layer in layers], 1),
        "padded": torch.stack([_norm(layer) for layer in layers], 1),
        "uniform": torch.tensor([uniform_norm(n, n) for n in lengths.tolist()]),
    }


def _norm(attention: Tensor) -> Tensor:
    return torch.linalg.matrix_norm(attention, 2).mean(1)


@compute_once
def eager(name: str) -> Any:
    """Load a model whose attention returns its matrices, as the script does."""
    # Late: the list of studies needs no transformers.
    from layerlab.loading.model import load_model

    model = load_model(name).model
    model.set_attn_implementation("eager")
    return model


@contextmanager
def returning_matrices(model: Any) -> Iterator[None]:
    """Have a model compute its attention so that it returns its matrices, for a while."""
    before = model.config._attn_implementation
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(before)


def matrices(name: str, ids: Tensor, lengths: Tensor, given: GivenModels = NONE) -> list[Tensor]:
    """Return the attention of every layer on texts padded at their end, as the script has it.

    A causal mask keeps padding from the rows of the text, which are what they are without it.

    Raises:
        NotApplicable: the code does not return its attention, or returns that of another model.
    """
    mask = (torch.arange(ids.shape[1]) < lengths[:, None]).long()
    padded = torch.where(mask.bool(), ids, PAD)
    if name not in given:
        return check_matrices(_run(eager(name), padded, mask).attentions, name)
    model = given[name].subject.model
    with ALONE:
        own = _run(model, padded[:1], mask[:1], returned=False)[0]
        with returning_matrices(model):
            found = _run(model, padded, mask)
    check_outputs(found[0][:1, : lengths[0]], own[:, : lengths[0]], name)
    return check_matrices(found.attentions, name)


@torch.no_grad()
def _run(model: Any, ids: Tensor, mask: Tensor, returned: bool = True) -> Any:
    device = running_device(model)
    return model(
        ids.to(device), attention_mask=mask.to(device), output_attentions=returned, use_cache=False
    )


def check_outputs(found: Tensor, own: Tensor, name: str) -> None:
    """Check that a model whose attention returns its matrices is the model itself.

    Asked for its matrices, transformers' Falcon adds its mask as ones and zeros, or ALiBi twice.

    Raises:
        NotApplicable: its outputs are others.
    """
    allowed = torch.finfo(own.dtype).eps ** 0.5 * float(own.abs().max())
    if not float((found - own).abs().max()) <= allowed:
        raise NotApplicable(
            f"the attention that the code of {name} returns is not the one that it runs with"
        )


def check_matrices(found: Sequence[Tensor | None] | None, name: str) -> list[Tensor]:
    """Return the attention of all layers that have some, in float64 on the processor.

    Raises:
        NotApplicable: there is none, or its rows do not sum to 1, as with sinks.
    """
    given = [layer for layer in found or () if layer is not None]
    if not given:
        raise NotApplicable(f"the code of {name} does not return its attention")
    layers = [layer.double().cpu() for layer in given]
    off = max(float((layer.sum(-1) - 1).abs().max()) for layer in layers)
    if not off <= torch.finfo(given[0].dtype).eps ** 0.5:
        raise NotApplicable(f"the rows of its attention do not sum to 1: one is off by {off:.1g}")
    return layers


def run(context: StudyContext) -> Outcome:
    """Compute, judge and draw."""
    cases = [(name, texts) for name in NAMED for texts in LENGTHS]
    models = dict(zip(NAMED, context.models, strict=True))
    asked = [{"name": models[name], "texts": texts} for name, texts in cases]
    gathered = context.sample(norms, asked, batch=32)
    every = dict(zip(cases, gathered, strict=True))
    depths = {name: every[name, "short"]["own"].shape[1] for name in NAMED}
    least = min(depths.values())
    parts = {case: resample(found, least) for case, found in every.items()}
    rows = [
        summary(
            found[quantity][:, layer],
            {"model": name, "texts": texts, "quantity": quantity, "layer": layer + 1},
        )
        for (name, texts), found in every.items()
        for quantity in ("own", "padded")
        for layer in range(found[quantity].shape[1])
    ]
    return Outcome(
        verdicts=(
            judge_placement(parts, context.seed),
            judge_padding(parts, context.seed),
            judge_length(parts, context.seed),
            judge_larger(parts, context.seed),
        ),
        frames={"norms": table(rows)},
        pictures=tuple(plot(parts, texts) for texts in LENGTHS),
        remarks=(
            pair(context, depths),
            "Short texts have 1 to 5 tokens, long ones 12 to 18, as in the source. Every layer's "
            "number is the mean over heads of the spectral norm of the attention matrix.",
            "Intervals are over texts, and there is one model of each placement. What another seed "
            "of training would change is in none of them: no word here is one on placements in "
            "general. Models of several seeds, at one loss: same-loss.",
            f"Norms lie between 1 and 4 here: less than {EFFECT:g} would be within the line of the "
            "figure.",
            overlap(LENGTHS["long"][1], context.given),
        ),
    )


def resample(found: Arrays, layers: int) -> Arrays:
    """Return curves at the relative depths layer / (L - 1) of a model of fewer layers.

    Between two layers of the deeper model a straight line stands.
    """
    asked = np.linspace(0, 1, layers)

    def read(rows: np.ndarray) -> np.ndarray:
        own = np.linspace(0, 1, rows.shape[1])
        return np.array([np.interp(asked, own, row) for row in rows])

    same = found["own"].shape[1] == layers
    return found if same else {**found, **{name: read(found[name]) for name in ("own", "padded")}}


def pair(context: StudyContext, depths: Mapping[str, int]) -> str:
    """Describe which models these are, and what differs between them."""
    if not context.given:
        return (
            "The pair is two built-in models of 8 layers and 4 heads, trained on the same batches "
            "from the same numbers: nothing but the placement of the norm, and the final norm, "
            "differs. GPT-1 and GPT-2 differ in data, vocabulary and initialisation, too; with "
            f"their weights, from the Hub: {HUB}."
        )
    named = ", ".join(f"{name} is {one}" for name, one in zip(NAMED, context.models, strict=True))
    text = f"{named}: more may differ between them than the placement of the norm."
    if len(set(depths.values())) == 1:
        return text
    layers = " and ".join(f"{depth}" for depth in depths.values())
    return (
        f"{text} They have {layers} layers: the deeper one is read at the relative depths "
        "layer / (L - 1) of the other's layers, on a straight line between its own; the table "
        "has its own layers."
    )


def _gaps(parts: ArraysByCase, texts: str, quantity: str = "own") -> np.ndarray:
    """Return the norms of post-norm less those of pre-norm, by text and layer."""
    post, pre = (parts[name, texts][quantity] for name in ("post-norm", "pre-norm"))
    return np.asarray(post - pre)


def judge_placement(parts: ArraysByCase, seed: int) -> StudyVerdict:
    """Judge whether post-norm lies above pre-norm from the second layer on."""
    gaps = {texts: _gaps(parts, texts)[:, 1:] for texts in LENGTHS}
    layers = bootstrap_each(
        {(texts, at + 2): one for texts, gap in gaps.items() for at, one in enumerate(gap.T)},
        np.mean,
        seed,
    )
    means = " and ".join(
        f"{bootstrap(gap.mean(1), np.mean, seed)} for {texts} texts" for texts, gap in gaps.items()
    )
    count = len(layers)
    texts, layer = least = min(layers, key=lambda key: layers[key].high)
    return StudyVerdict(
        claim=STUDY.claim,
        word=each(above(one, 0) for one in layers.values()),
        number=layers[least].value,
        said=f"post-norm less pre-norm is {layers[least]} in layer {layer} for {texts} texts, the "
        f"layer that speaks most against it; above 0 was asked for in each, of {count} "
        "intervals that hold together. In the mean over layers from the second on it is "
        f"{means}; the source reads 0.1 to 0.25 from its figure (mean of {len(gaps[texts])} texts)",
    )


def judge_padding(parts: ArraysByCase, seed: int) -> StudyVerdict:
    """Judge the norm of the padded matrix against that of the text alone."""
    added = {case: (found["padded"] - found["own"]).mean(1) for case, found in parts.items()}
    excess = bootstrap_each(added, np.mean, seed)
    numbers = ", ".join(f"{gap} in {name}, {texts}" for (name, texts), gap in excess.items())
    moved = {
        texts: np.mean(_gaps(parts, texts, "padded")) - np.mean(_gaps(parts, texts))
        for texts in LENGTHS
    }
    return StudyVerdict(
        claim="Norms of a padded batch, rows of padding included, are those of the texts.",
        word=each(within(one, -EFFECT, EFFECT) for one in excess.values()),
        number=excess["pre-norm", "short"].value,
        said=f"padding adds to the mean norm: {numbers}; less than {EFFECT:g} was asked for. It "
        f"moves the difference of post-norm to pre-norm by {moved['short']:+.3f} for short texts "
        f"and {moved['long']:+.3f} for long ones",
        source="spectral25, section 2.3, script",
    )


def growth(found: Mapping[str, Arrays]) -> np.ndarray:
    """Return the log growth of the norm from short to long texts, beside uniform attention's."""
    texts = zip(found["long"]["own"].mean(1), found["short"]["own"].mean(1), strict=True)
    flat = zip(found["long"]["uniform"], found["short"]["uniform"], strict=True)
    return np.array([[*own, *uniform] for own, uniform in zip(texts, flat, strict=True)])


def _explain(table_of: np.ndarray) -> float:
    long, short, flat_long, flat_short = table_of.mean(0)
    return float(np.log(flat_long / flat_short) / np.log(long / short))


def judge_length(parts: ArraysByCase, seed: int) -> StudyVerdict:
    """Judge how much of the growth with length uniform attention, blind to text, shows too."""
    grown = [growth({texts: parts[name, texts] for texts in LENGTHS}) for name in NAMED]
    ratios = [
        bootstrap(both, lambda one: float(one[:, 0].mean() / one[:, 1].mean()), seed, comparisons=2)
        for both in grown
    ]
    word = each(above(ratio, 1) for ratio in ratios)
    numbers = [f"{ratio} in {name}" for name, ratio in zip(NAMED, ratios, strict=True)]
    sentence = (
        f"the mean norm of long texts over that of short ones is {', '.join(numbers)}: not in both "
        "is there a growth that uniform attention could explain"
    )
    if word == "holds":
        shares = [bootstrap(both, _explain, seed) for both in grown]
        numbers = [
            f"{ratio} in {name}, of which uniform attention explains {share}"
            for name, ratio, share in zip(NAMED, ratios, shares, strict=True)
        ]
        sentence = (
            f"the mean norm of long texts over that of short ones is {', '.join(numbers)} of its "
            "logarithm: attention that weighs all tokens alike has a norm that grows with their "
            "number"
        )
    return StudyVerdict(
        claim="Longer texts have larger norms.",
        word=word,
        number=ratios[0].value,
        said=sentence,
        source="spectral25, section 2.3, second figure",
    )


def judge_larger(parts: ArraysByCase, seed: int) -> StudyVerdict:
    """Judge the effect of placement against that of length, in the same unit."""
    place = np.abs(_gaps(parts, "long").mean(1).mean())
    pre = {texts: parts["pre-norm", texts]["own"].mean(1) for texts in LENGTHS}
    both = np.stack([_gaps(parts, "long").mean(1), pre["long"] - pre["short"]], 1)
    found = bootstrap(both, lambda one: float(-np.diff(np.abs(one.mean(0)))[0]), seed)
    return StudyVerdict(
        claim="The placement of the norm moves the curves more than the length of the texts does.",
        word=above(found, 0),
        number=found.value,
        said=f"placement moves the mean norm of long texts by {place:.3g}, length that of pre-norm "
        f"by {abs(both[:, 1].mean()):.3g}: a difference of {found} (mean of {len(both)} pairs)",
        source="Own, after spectral25, section 2.3",
    )


def plot(parts: ArraysByCase, texts: str) -> Picture:
    """Plot the norms by layer, padded and not, of both models."""
    lines = []
    for kind, name in enumerate(NAMED):
        found = parts[name, texts]
        layers = list(range(1, found["own"].shape[1] + 1))
        for quantity, style in (("own", "solid"), ("padded", "dash")):
            ends = [bootstrap(column, np.mean) for column in found[quantity].T]
            label = f"{name}, {'own tokens' if quantity == 'own' else 'padded'}"
            lines.append(interval_band(label, layers, ends, kind=kind, style=style))
    flat = [float(np.mean(parts["pre-norm", texts]["uniform"]))] * len(layers)
    lines.append(Curve(name="uniform attention", x=layers, y=flat, kind=6, style="dot"))
    fewest, most = LENGTHS[texts]
    title = f"Norm of attention, texts of {fewest} to {most} tokens (mean, 95 % interval)"
    return curves(texts, title, lines, x="layer", y="spectral norm, mean over heads", log="")


STUDY = Study(
    name="gpt-curves",
    title="GPT-1 against GPT-2 curves",
    source="spectral25, section 2.3",
    claim="Post-norm attention has a larger norm than pre-norm attention in every layer from the "
    "second on.",
    cost="10 seconds",
    draws=512,
    scale=BUILT_IN,
    models=NAMED,
    roles=NAMED,
    passage=LENGTHS["long"][1],
    attention=True,
    layers=2,
    run=run,
    fast={"draws": 24},
    unit=PASSAGES,
)
