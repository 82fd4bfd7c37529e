"""Stacks that look back over their depth: DenseFormer, and attention residuals."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from layerlab.blocks.context import Flow
from layerlab.blocks.cost import Cost
from layerlab.blocks.init import Axes, Draw, axes, starts, zeros
from layerlab.blocks.operations.recompute import is_fused
from layerlab.blocks.operations.stream import exact, sublayer
from layerlab.blocks.part import Option
from layerlab.blocks.residual import Residual
from layerlab.blocks.shape import Site
from layerlab.blocks.spec import Choice, Spec, Variant
from layerlab.shapes import Stream
from layerlab.validation import Constraint

STEP = Constraint(kind=int, least=1)
EPSILON = 1e-6  # added to mean squares: what transformers' Inkling 2 does


def newest(shape: torch.Size, draw: Draw) -> Tensor:
    """Return weight 1 on the newest of a sequence, and 0 on the others.

    Source: pagliardini24, section 3.
    """
    values = torch.zeros(shape)
    values[-1] = 1.0
    return values


class DenseFormer(Residual):
    """Y_i = sum over j <= i, j = i modulo dilation, of alpha_ij X_j; X_(i+1) = block of Y_i.

    X_0 is the embedding, X_i what block i gives. The average stands after each block whose number
    divides by the period; elsewhere Y_i = X_i. It starts as alpha_ii = 1 and zero besides, so that
    the model starts as the plain one, bit for bit.

    Source: pagliardini24, section 3, with its published code for dilation and period.
    """

    name = "denseformer"
    options = {
        "dilation": Option(
            default=1, domain=STEP, about="average over every how many-th block, counted back"
        ),
        "period": Option(default=1, domain=STEP, about="average after every how many-th block"),
    }
    remembers = ("block", "mixed")

    def __init__(self, width: int, site: Site, *, dilation: int = 1, period: int = 1) -> None:
        super().__init__(width, site)
        self.layer = site.layer
        self.terms = _terms(_finish(site), dilation, period)
        self.kept = _find_needed(site, dilation, period)
        if self.terms:
            self.alpha = nn.Parameter(torch.zeros(len(self.terms)))
            starts(self, alpha=newest)

    def read(self, x: Stream, flow: Flow) -> Stream:
        if self.kept:
            flow.keep("residual", f"block{self.layer}", x)
        if not self.terms:
            return x
        mixed = self._average(x, flow)
        flow.keep("residual", "mixed", mixed)
        return mixed

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        mixed = flow.take("residual", "mixed")
        return (x if mixed is None else mixed) + y

    def close(self, x: Stream, flow: Flow) -> Stream:
        return self._average(x, flow) if self.terms else x

    def _average(self, x: Stream, flow: Flow) -> Stream:
        mixed = self.alpha[-1] * x
        for index, term in enumerate(self.terms[:-1]):
            earlier = flow.kept("residual", f"block{term}")
            assert earlier is not None, "a block keeps what later ones average"
            mixed = torch.addcmul(mixed, earlier, self.alpha[index])
        return mixed

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        dilation, period = options.get("dilation", 1), options.get("period", 1)
        terms = len(_terms(_finish(site), dilation, period))
        earlier = [Site(shape=site.shape, layer=one, role="attention") for one in _upto(site)]
        kept = sum(_find_needed(one, dilation, period) for one in earlier)
        adds = 0 if site.role == "stack" else width
        return Cost(scalars=terms, pointwise=adds + 2 * width * terms, carry=width * kept)


def _finish(site: Site) -> int:
    """Return how many blocks gave their output where this part reads; 0 inside a block."""
    if site.role == "stack":
        return site.shape.layers
    return site.layer if site.role == "attention" else 0


def _upto(site: Site) -> range:
    """Return the blocks whose inputs are in the carry after this one, counted once per block."""
    return range(site.layer + 1) if site.role == "attention" else range(0)


def _terms(finished: int, dilation: int, period: int) -> Sequence[int]:
    """Return the outputs that are averaged after so many blocks, oldest first."""
    if finished == 0 or finished % period:
        return ()
    return range(finished % dilation, finished + 1, dilation)


def _find_needed(site: Site, dilation: int, period: int) -> bool:
    """Return whether a later average takes what enters this block."""
    later = range(site.layer + 1, site.shape.layers + 1)
    return site.role == "attention" and any(
        site.layer in _terms(one, dilation, period) for one in later
    )


class AttentionResiduals(Residual):
    """Input of sublayer l: h_l = sum over i < l of a_i v_i, a = softmax_i(w_l . RMS(v_i)).

    v_0 is the embedding, v_i what sublayer i gave; w_l starts at zero, so that the first step takes
    the plain average. In block form the sublayers stand in `blocks` blocks: a v is then the sum of
    one block's outputs, and the last of them the sum so far of the block that is being built.
    Between layers the stream is that sum so far. A last average stands before the final norm. The
    first sublayer has nothing but the embedding, and no w.

    Source: kimi26, section 3. Values "normed" with scale "inverse-sqrt" are the reading of
        transformers' Inkling 2.
    Differs: the norm of the keys has no gain of its own, which w absorbs.
    """

    name = "attention-residuals"
    options = {
        "form": Option(
            default="full",
            domain=Constraint(kind=str, choices=("full", "block")),
            about="look back at every sublayer, or at sums of blocks of them",
        ),
        "blocks": Option(
            default=8,
            domain=STEP,
            about="how many blocks in block form; each has the sublayers over blocks, rounded up",
        ),
        "values": Option(
            default="raw",
            domain=Constraint(kind=str, choices=("raw", "normed")),
            about="average the outputs as they are, or their RMS norms",
        ),
        "scale": Option(
            default="one",
            domain=Constraint(kind=str, choices=("one", "inverse-sqrt")),
            about="what the scores are multiplied with: 1, or 1 / sqrt(width)",
        ),
    }
    remembers = ("block", "scale")

    def __init__(
        self,
        width: int,
        site: Site,
        *,
        form: str = "full",
        blocks: int = 8,
        values: str = "raw",
        scale: str = "one",
    ) -> None:
        super().__init__(width, site)
        size = _size(site, form, blocks)
        done = sublayer(site)
        self.block = done // size
        self.opens = done % size == 0
        self.sums = _sums(done, size)
        self.normed = values == "normed"
        self.scale = width**-0.5 if scale == "inverse-sqrt" else 1.0
        if done:
            self.query = nn.Parameter(torch.zeros(width))
            starts(self, query=zeros)
            axes(self, query=Axes(read=(0,)))

    def read(self, x: Stream, flow: Flow) -> Stream:
        scale = self._inverse_size(x)
        if self.opens:  # what comes after reads this sum again, and need not measure it again
            flow.keep("residual", f"scale{self.block}", scale)
        if not self.sums:
            return x
        places = range(self.sums)
        sources = [flow.kept("residual", f"block{one}") for one in places]
        scales = [flow.kept("residual", f"scale{one}") for one in places]
        return self._average(
            [*(one for one in sources if one is not None), x],
            [*(one for one in scales if one is not None), scale],
        )

    def write(self, x: Stream, y: Stream, flow: Flow) -> Stream:
        if not self.opens:
            return x + y
        flow.keep("residual", f"block{self.block}", x)
        return y.to(x.dtype)

    def close(self, x: Stream, flow: Flow) -> Stream:
        return self.read(x, flow)

    def _average(self, sources: Sequence[Stream], scales: Sequence[Tensor]) -> Stream:
        with exact(sources[0]):  # autocast would keep a shorter copy of each for every average
            scores = [
                self._project(one) * (scale * self.scale)
                for one, scale in zip(sources, scales, strict=True)
            ]
        weights = _softmax(scores)
        if self.normed:
            weights = [weight * scale for weight, scale in zip(weights, scales, strict=True)]
        shares = [weight.to(sources[0].dtype) for weight in weights]
        mixed = shares[0] * sources[0]
        for share, one in zip(shares[1:], sources[1:], strict=True):
            mixed = torch.addcmul(mixed, share, one)
        return mixed

    def _project(self, x: Stream) -> Tensor:
        if is_fused(x):
            return (x * self.query).sum(-1, keepdim=True)
        return functional.linear(x, self.query.unsqueeze(0))

    @staticmethod
    def _inverse_size(x: Stream) -> Tensor:
        """Return 1 / root mean square in float32 at least, which makes the scores so too."""
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return torch.rsqrt(exact.pow(2).mean(-1, keepdim=True) + EPSILON)

    @classmethod
    def cost(cls, width: int, site: Site, **options: Any) -> Cost:
        size = _size(site, options.get("form", "full"), options.get("blocks", 8))
        done = sublayer(site)
        sources = _sums(done, size) + 1 if done else 0
        adds = 0 if site.role == "stack" or done % size == 0 else width
        kept = _sums(done + site.sublayers, size) if site.role == "attention" else 0
        return Cost(
            scalars=width if done else 0,
            flops=2 * width * sources,
            pointwise=adds + 2 * width * (sources + 1),
            carry=(width + 1) * kept,
        )


def _softmax(scores: Sequence[Tensor]) -> Sequence[Tensor]:
    if not is_fused(scores[0]):
        return torch.cat([*scores], dim=-1).softmax(dim=-1).split(1, dim=-1)
    # Number by number: what lies side by side in memory is written before it is read.
    top = reduce(torch.maximum, scores).detach()
    powers = [torch.exp(one - top) for one in scores]
    total = sum(powers[1:], powers[0])
    return [one / total for one in powers]


def _size(site: Site, form: str, blocks: int) -> int:
    """Return the number of sublayers per block."""
    return 1 if form == "full" else -(-site.sublayers * site.shape.layers // blocks)


def _sums(done: int, size: int) -> int:
    """Return how many sums are finished, with the embedding, beside the one that is being built."""
    return -(-done // size)


VARIANTS = (
    Variant(
        name="denseformer",
        spec=Spec().with_block(residual=Choice("denseformer")),
        equation="Y_i = sum_(j <= i) alpha_ij X_j; X_(i+1) = Block_(i+1)(Y_i), X_0 = embedding",
        source="pagliardini24, section 3",
        about="After each block a learned weighted average over the outputs of all blocks so far "
        "and the embedding; one number for each pair of depths.",
        unsaid="Whether the averages are decayed: their weights are scalars here and take no "
        "decay. With post-norm blocks, X_i is what the last norm of block i gives.",
        cost="L (L + 3) / 2 numbers and no matrix products, but every block output stays in memory "
        "and is read by every later average: L x width numbers per token, and time that grows with "
        "the square of the depth. dilation and period divide the time, each by itself.",
        start="identity",
    ),
    Variant(
        name="attention-residuals",
        spec=Spec().with_block(residual=Choice("attention-residuals")),
        equation="h_l = sum_(i<l) a_i v_i, a = softmax_i(w_l . RMS(v_i)); v_l = F_l(RMS(h_l)), "
        "v_0 = embedding",
        source="kimi26, section 3",
        about="Each sublayer reads a softmax average over the outputs of all sublayers before it, "
        "by one learned query. It starts as the plain average, which is not the plain block.",
        unsaid="How the norm of the keys guards against zero: 1e-6 under the root. Which average "
        "the head sees: one more, with its own query. A block norm after the add (placement=post) "
        "would norm each output here; the source has pre-norm only.",
        cost="width parameters per sublayer, 2 x width FLOPs per sublayer and source; memory moves "
        "are what counts: every earlier output is read at every sublayer, 2 L x (width + 1) "
        "numbers per token are kept, and time grows with the square of the depth: more than the "
        "share of its FLOPs: a sixth longer a step at width 256 and 6 layers, eager, on one CPU "
        "thread. Block form bounds both.",
    ),
    Variant(
        name="attention-residuals-block",
        spec=Spec().with_block(residual=Choice("attention-residuals", form="block")),
        equation="h_l = sum_i a_i b_i, a = softmax_i(w_l . RMS(b_i)) over the embedding, the sums "
        "of finished blocks and the sum so far of the present one; b_n = sum of F_l in block n",
        source="kimi26, section 3 (block form)",
        about="Attention residuals over about 8 sums of consecutive sublayers in place of every "
        "output, which keeps their memory constant in depth.",
        unsaid="What becomes of sublayers that the number of blocks does not divide: blocks take "
        "the quotient rounded up, so that the last may be shorter, and with at most blocks / 2 "
        "layers this is the full form. The rest as in `attention-residuals`.",
        cost="width parameters per sublayer; at most blocks + 1 sources are read at each sublayer, "
        "and blocks x (width + 1) numbers per token kept, whatever the depth. Eager, on one CPU "
        "thread at width 256 and 6 layers, a step takes about a tenth longer.",
    ),
)

PARTS = (DenseFormer, AttentionResiduals)
