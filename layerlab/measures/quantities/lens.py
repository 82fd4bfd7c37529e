"""Predictions from the stream behind each layer: logit lens, and a tuned one.

The logit lens gives the stream behind a layer to what stands behind the last block: the final norm
and the head. A layer may write in a basis of its own, which this reads as noise; the tuned lens
first maps the layer's stream to that of the last by an affine map. It is fitted by ridge regression
in closed form, so that it takes seconds, and read on tokens that it was not fitted to.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import nan

import torch
from jaxtyping import Float
from torch import Tensor

from layerlab.known_options import measure_options
from layerlab.measures.measure import Bound, Measure, MeasureContext, ModelContext, Row
from layerlab.observe.tracing.device_schedule import widen
from layerlab.observe.tracing.readout import Answer, Logits, answer, reading_out, spread
from layerlab.records.layer_names import EMBEDDING
from layerlab.shapes import Hidden, States

# Penalties that are tried, in units of the mean squared singular value of the stream.
RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 10.0)
# Rows of logits at once: what is read several times stays in the cache.
_ROWS = 16
COLUMNS = ("kl", "agreement", "nats", "rank", "entropy")
TUNED = ("kl", "agreement", "nats")
USE = """\
Type `layerlab inspect MODEL --measures lens`, or with the tuned lens, of at least two texts,
`layerlab inspect MODEL --measures 'lens(tuned=True)'`.

The blocks are stepped over, and everything behind them is the model's own code, so that scales and
soft caps of the logits are those of the model; a model whose logits need more than the last stream
is refused. It costs one product with the head per text and layer, twice that with the tuned lens;
of a text it reads `samples` positions, spread evenly, of the first `tokens`.
The tuned lens of a text is fitted to half of the others, by ridge regression. It wants
more tokens than the model is wide, and is not the one of belrose23, which is trained on the
divergence over millions of tokens."""


@dataclass(frozen=True, kw_only=True)
class Translator:
    """An affine map x -> x + x A + b from the stream of one layer to that of the last."""

    matrix: Float[Tensor, "width width"]
    bias: Float[Tensor, " width"]

    def __call__(self, x: States) -> States:
        wide = widen(x).flatten(1)
        return (wide + wide @ self.matrix + self.bias).to(x.dtype).view_as(x)


def fit_translator(x: Hidden, y: Hidden) -> Translator:
    """Fit the affine map from one layer's stream to the last, near to the identity.

    A, b = argmin sum_t ||y_t - x_t - x_t A - b||^2 / ||y_t||^2 + lambda ||A||_F^2

    Errors count relative to the token's norm, as the final norm sees them; the penalty is the one
    of the least generalized cross-validation.

    Source: din23, section 3, without norms and penalty; golub79, equation 1.4, for the penalty.
    """
    x, y = widen(x), widen(y)
    change = y - x
    weight = y.norm(dim=-1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) ** -1
    share = weight[:, 0].square() / weight.square().sum()
    means = share @ x, share @ change
    x, change = weight * (x - means[0]), weight * (change - means[1])
    squares, directions = torch.linalg.eigh(x.T @ x)
    squares = squares.clamp(min=0)
    target = directions.T @ (x.T @ change)
    # Of the squared error, what a direction explains when it is not shrunk.
    explained = target.square().sum(-1) / squares.clamp(min=torch.finfo(squares.dtype).tiny)
    explained = torch.where(squares > 0, explained, 0.0)

    def miss(ridge: float) -> float:
        kept = squares / (squares + ridge * squares.mean())
        error = change.square().sum() - ((2 - kept) * kept * explained).sum()
        return float(error / (len(x) - 1 - kept.sum()).square())

    ridge = min(RIDGES, key=miss)
    matrix = directions @ (target / (squares + ridge * squares.mean())[:, None])
    return Translator(matrix=matrix, bias=means[1] - means[0] @ matrix)


class Judge:
    """The predictions of a model at some positions of a text, which a lens is compared with."""

    def __init__(self, given: Answer) -> None:
        true = _finite(given.logits)
        parts = [_exponentials(one) for one in true.split(_ROWS)]
        weights, sums, total, mean, self.top = (torch.cat(one) for one in zip(*parts, strict=True))
        self.shares, self.entropy = weights.div_(sums[:, None]), total - mean
        following = given.places + 1
        self.last = following == len(given.tokens)
        self.next = given.tokens[following.clamp(max=len(given.tokens) - 1)].to(true.device)[
            :, None
        ]

    def compare(self, found: Logits) -> dict[str, Float[Tensor, " place"]]:
        """Compare the logits that a lens gives with those of the model.

        The loss has no value at the last token, behind which nothing stands. A divergence below the
        rounding of the logits, which any two ways to compute the same answer have, is 0.

        Source: nostalgebraist20; belrose23, section 2.
        Unit: nats (kl, nats, entropy), none (agreement, rank).
        """
        parts = [
            self._compare(found[start : start + _ROWS], slice(start, start + _ROWS))
            for start in range(0, len(found), _ROWS)
        ]
        return {name: torch.cat([part[name] for part in parts]) for name in COLUMNS}

    def _compare(self, found: Logits, rows: slice) -> dict[str, Tensor]:
        found, top = _finite(found), self.top[rows]
        scratch, _, total, mean, best = _exponentials(found)
        expected = _dot(self.shares[rows], found, scratch)
        gap = total - self.entropy[rows] - expected
        # It is made of four numbers of this size, each of which is rounded.
        floor = 4 * torch.finfo(torch.float32).eps * torch.maximum(total.abs(), expected.abs())
        loss = total - found.gather(-1, self.next[rows])[:, 0]
        above = torch.gt(found, found.gather(-1, top), out=scratch)
        return {
            "kl": gap.masked_fill(gap < floor, 0.0),
            "agreement": (best == top)[:, 0].float(),
            "nats": loss.masked_fill(self.last[rows], nan),
            "rank": 1 + above.sum(-1),
            "entropy": total - mean,
        }


def _finite(logits: Logits) -> Logits:
    """Return float32 logits; a token that is ruled out has the least one."""
    logits, least = logits.float(), torch.finfo(torch.float32).min / 2
    # Few models rule tokens out, and to look takes half as long as to write.
    return logits if bool(logits.amin() >= least) else logits.clamp(min=least)


def _exponentials(logits: Logits) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return what a softmax is made of, in few passes.

    The exponentials less that of the greatest logit, their sum, the logarithm of the whole sum, the
    mean logit under the softmax, and the likeliest token. At the size of a vocabulary, passes over
    the logits take a third of the time of the product with the head.
    """
    most, top = logits.max(-1, keepdim=True)
    weights = torch.sub(logits, most).exp_()
    sums = weights.sum(-1)
    return weights, sums, most[:, 0] + sums.log(), _dot(weights, logits) / sums, top


def _dot(one: Tensor, other: Tensor, scratch: Tensor | None = None) -> Tensor:
    return torch.mul(one, other, out=scratch).sum(-1)


def read(context: ModelContext, run: MeasureContext) -> list[Row]:
    """Read one row per sequence and layer, the embedding first.

    Source: Own.
    """
    model, stack = context.subject.model, context.subject.stack
    texts = [tokens[: run.options["tokens"]] for tokens in context.sequences]
    tuned = run.options["tuned"] and len(texts) > 1
    if run.options["tuned"] and not tuned:
        run.notes["tuned"] = (
            "a tuned lens is fitted to other texts than it is read on: give at least two"
        )
    context.begin(len(texts) * (2 if tuned else 1))
    rows, answers = list[Row](), list[Answer]()
    for number, tokens in enumerate(texts):
        context.step(f"text {number}: logit lens")
        given = answer(
            model, stack, tokens, spread(len(tokens), run.options["samples"]).to(tokens.device)
        )
        rows += _rows(context, number, given)
        if tuned:
            answers.append(given)
    folds = [_translators(answers[fold::2]) for fold in range(2)] if tuned else []
    for number, given in enumerate(answers):
        context.step(f"text {number}: tuned lens")
        maps = folds[1 - number % 2]
        width = len(given.streams)
        for row, again in zip(
            rows[number * width :], _rows(context, number, given, maps), strict=False
        ):
            row |= {f"tuned_{name}": again[name] for name in TUNED}
    return rows


def _translators(answers: Sequence[Answer]) -> list[Translator]:
    """Fit the map of every layer but the last."""
    joined = [torch.cat(layer) for layer in zip(*(one.streams for one in answers), strict=True)]
    return [fit_translator(one.flatten(1), joined[-1].flatten(1)) for one in joined[:-1]]


@torch.no_grad()
def _rows(
    context: ModelContext, number: int, given: Answer, maps: Sequence[Translator] = ()
) -> Iterator[Row]:
    """Yield one row per layer, of the stream itself or through a map."""
    judge = Judge(given)
    with reading_out(context.subject.model, context.subject.stack, given) as readout:
        for index, stream in enumerate(given.streams):
            last = index == len(given.streams) - 1
            mapped = maps[index](stream) if maps and not last else stream
            found = judge.compare(given.logits if last else readout(mapped))
            yield {
                "sequence": number,
                "layer": EMBEDDING + index,
                **{name: float(values.nanmean()) for name, values in found.items()},
                "rank": float(found["rank"].median()),
                **{f"tuned_{name}": nan for name in TUNED},
            }


MEASURES = (
    Measure(
        name="lens",
        title="Logit lens: what each layer would say",
        unit="nats (kl, nats, entropy); none (agreement, rank)",
        source="nostalgebraist20; belrose23; din23",
        about=(
            "The stream behind each layer is given to the model's own final norm and head, as if "
            "the layers behind it were not there: how far that answer is from the model's, and how "
            "well it predicts the next token (logit lens). "
            "Layers after which the divergence hardly falls add little to the answer; a fall at "
            "the very end means that the model writes in another basis until then, which the tuned "
            "lens takes into account."
        ),
        equation=(
            "KL(p || q_l),  q_l = softmax(head(norm(x_l))),  p that of the last layer;  "
            "tuned: x_l + x_l A_l + b_l in place of x_l"
        ),
        per=("sequence", "layer"),
        columns={
            "kl": "KL divergence of the lens from the model's answer, mean over the tokens (nats); "
            "what lies below the rounding of the logits in float32 is 0",
            "agreement": "share of the tokens at which both name the same next token",
            "nats": "next-token loss of the lens (nats)",
            "rank": "median rank of the model's own choice: 1 where the lens makes it too",
            "entropy": "entropy of the lens, mean over the tokens (nats)",
            "tuned_kl": "the divergence of the tuned lens (nats)",
            "tuned_agreement": "the agreement of the tuned lens",
            "tuned_nats": "next-token loss of the tuned lens (nats)",
        },
        plot=("kl", "agreement", "nats"),
        better=None,
        needs=frozenset({"model"}),
        resumes=True,
        read=read,
        bound=(Bound(column="kl", limit="tuned_kl", side="beside", source="belrose23"),),
        **measure_options("lens"),
        default=False,
        use=USE,
    ),
)
