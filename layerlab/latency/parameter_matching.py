"""PanGu-pi against Llama under three accountings of what is to be equal, and the source's times.

The source takes out layers until the parameters agree, and does not say with which vocabulary.
Decoding at batch 1 is bound by the weights that a token reads: those of the blocks and the head,
not of the embedding. Their ratio is the prediction.

A twin has the depths of its shape at a smaller width. Weights of blocks grow with the square of the
width and those of a vocabulary with the width, so a twin's vocabularies are scaled with it:
embedding, head and blocks keep the shares that they have at full size.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

from layerlab.latency.candidates import Candidate
from layerlab.latency.paired_ratio import Ratio
from layerlab.latency.sizes import ACCOUNTINGS, HEAD, SHAPES, check_pair
from layerlab.model.cost.cost import Account, account
from layerlab.model.cost.match import match
from layerlab.model.design import Design, design

LARGE, SMALL = 100_883, 32_000
# Of the baseline: printed for 7B; the source prints none for 1B, and 29 / 32 of it are 12.
DEEPER = {"1b": 13, "7b": 32}
# ms per token on an Ascend 910A: PanGu-pi and Llama.
PUBLISHED = {"1b": (13.8, 15.4), "7b": (43.0, 47.6)}
# Beyond it, in percent, what is called equal is not.
MOST = 2.0
# 10 % faster: 1.1 tokens in the time of one.
CLAIM = 1 / 1.1
MatchWord = Literal["holds", "fails", "not decided", "not a twin"]


@dataclass(frozen=True, kw_only=True)
class MatchedPair:
    """Two candidates and what is expected of them.

    Attributes:
        accounting: its name.
        shape: "1b" or "7b".
        twin: whether the width is another than that shape's.
        predicted: time of PanGu-pi's step over Llama's.
        off: percent by which PanGu-pi has more of what the accounting calls equal.
        note: what the prediction leaves out, or the source does not say.
    """

    accounting: str
    shape: str
    twin: bool
    pangu: Candidate
    llama: Candidate
    predicted: float
    off: float
    note: str

    @property
    def about(self) -> str:
        """Return the accounting in words, with the size at which it is taken."""
        width = self.pangu.design.shape.width if self.pangu.design else 0
        size = f"a twin of the {self.shape.upper()} shape" if self.twin else self.shape.upper()
        return f"{ACCOUNTINGS[self.accounting]} ({size}, width {width})"


@dataclass(frozen=True)
class MatchVerdict:
    """On the claim of 10 %.

    Attributes:
        word: holds, fails, not decided, or not a twin.
        said: in words, with the numbers.
    """

    word: MatchWord
    said: str


def pair(accounting: str, *, shape: str = "7b", width: int | None = None) -> MatchedPair:
    """Return the two candidates of an accounting.

    Args:
        accounting: one of `ACCOUNTINGS`.
        shape: whose depths, and whose width if that is left out.
        width: of a twin; heads stay 128 wide, and the feed-forward and the vocabularies keep their
            share of it.

    Source: pangu23, table 1; the accountings are Own.

    Raises:
        UserError: no such accounting, shape or width.
    """
    wide = check_pair(accounting, shape, width)
    pangu, llama, note = _designs(accounting, shape, wide)
    return MatchedPair(
        accounting=accounting,
        shape=shape,
        twin=wide != SHAPES[shape]["width"],
        pangu=_contestant(pangu),
        llama=_contestant(llama),
        predicted=_read(pangu) / _read(llama),
        off=_off(accounting, pangu, llama),
        note=note,
    )


def judge(found: MatchedPair, ratio: Ratio) -> MatchVerdict:
    """Judge whether PanGu-pi decodes 10 % faster, as this accounting has it.

    It holds where the interval of the ratio lies below 1 / 1.1, and fails where it lies above.
    Where what is called equal is more than 2 % off, there is no verdict.
    """
    head = f"10 % faster under {found.accounting}, {found.about}"
    if abs(found.off) > MOST:
        return MatchVerdict(
            "not a twin",
            f"{head}: not a twin, no verdict: what is called equal is {found.off:+.1f} % off",
        )
    number = f"a step takes {ratio.summary()} of Llama's, the claim is {CLAIM:.3f} at most"
    if ratio.low is None or ratio.high is None:
        return MatchVerdict("not decided", f"{head}: not decided; {number}: time more repetitions")
    if ratio.high <= CLAIM:
        return MatchVerdict("holds", f"{head}: holds; {number}")
    if ratio.low > CLAIM:
        return MatchVerdict("fails", f"{head}: fails; {number}")
    return MatchVerdict("not decided", f"{head}: not decided; {number}")


def read_weights(cost: Account) -> int:
    """Return the weights that one token reads: all, but of the embedding only a row."""
    return cost.blocks + cost.scalars + (cost.head or cost.embedding)


def published_times(shape: str) -> dict[str, Any]:
    """Return the times that the source publishes.

    Source: pangu23, sections 5.3 and 5.4.
    Unit: ms per token, on an Ascend 910A; batch, context and number format are not printed.
    """
    pangu, llama = PUBLISHED[shape]
    return {"pangu_ms": pangu, "llama_ms": llama, "ratio": pangu / llama, "shape": shape}


def _designs(accounting: str, shape: str, width: int) -> tuple[Design, Design, str]:
    layers, deeper = SHAPES[shape]["layers"], DEEPER[shape]
    if accounting == "fewer-layers":
        note = "" if shape == "7b" else "the source prints no depth of its 1B Llama: 13 is ours"
        return _make("pangu-pi", shape, width, layers), _make("llama", shape, width, deeper), note
    if accounting == "equal-total":
        return _equal_total(shape, width)
    deepest = deeper if shape == "7b" else layers
    pangu, llama = (_make(name, shape, width, deepest) for name in ("pangu-pi", "llama"))
    inner = match(pangu.spec, pangu.shape, account(llama.spec, llama.shape), by="ffn")
    note = f"feed-forward {inner.shape.inner}; tables 2 and 3 give the modules 2-4 % of their own"
    return replace(pangu, shape=inner.shape), llama, note


def _equal_total(shape: str, width: int) -> tuple[Design, Design, str]:
    pangu = _make("pangu-pi", shape, width, SHAPES[shape]["layers"], LARGE)
    llama = _make("llama", shape, width, DEEPER[shape])
    if shape == "7b":
        return pangu, llama, ""
    wanted = account(pangu.spec, pangu.shape)
    depth = match(llama.spec, llama.shape, wanted, by="depth")
    inner = match(llama.spec, depth.shape, wanted, by="ffn")
    note = (
        f"the source prints no sizes of its 1B Llama: {depth.shape.layers} layers are the nearest, "
        f"a feed-forward of {inner.shape.inner} makes up for the rest"
    )
    return pangu, replace(llama, shape=inner.shape), note


def _make(name: str, shape: str, width: int, layers: int, vocab: int = SMALL) -> Design:
    sizes: dict[str, Any] = {"width": width, "layers": layers, "heads": width // HEAD}
    # That of Llama 7B; for 1B the source prints none, and the variants take 8/3 of the width.
    inner = {"inner": width * 11_008 // 4096} if shape == "7b" else {}
    entries = round(vocab * width / SHAPES[shape]["width"])
    return design(name, sizes={**sizes, **inner, "vocab": entries, "context": 256})


def _off(accounting: str, pangu: Design, llama: Design) -> float:
    """Return by how many percent the parameters differ, where they should be equal."""
    if accounting == "fewer-layers":
        return 0.0  # one vocabulary
    counts = [account(one.spec, one.shape).parameters for one in (pangu, llama)]
    return 100 * (counts[0] / counts[1] - 1)


def _contestant(found: Design) -> Candidate:
    shape = found.shape
    name = f"{found.variant.name}:width={shape.width},layers={shape.layers}"
    return Candidate(name=f"{name},vocab={shape.vocab},inner={shape.inner}", design=found)


def _read(found: Design) -> int:
    return read_weights(account(found.spec, found.shape))
