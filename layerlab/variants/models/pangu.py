"""PanGu-pi: a Llama block with a series activation and an augmented shortcut, and its ablations."""

from layerlab.blocks.spec import Choice, Spec, Variant

LLAMA = Spec()
BRANCH = "GELU(RMS(x) W_down) W_up"
COST = (
    "Element-wise work on the gate, which FLOPs of products leave out: eager, on one CPU thread at "
    "width 256, a step takes about 3 % longer with two terms, 4 with four, 5 beside the shortcut."
)
FEED_FORWARD = "x <- x + (S(u W_gate) * (u W_up)) W_down, u = RMS(x)"


def write_series(n: int) -> str:
    """Return the formula of the series of n activations; of two, both are written out.

    Source: pangu23, equation 7.

    Example:
        >>> write_series(2)
        'S(z) = SiLU(a_1 z + b_1) + SiLU(a_2 z + b_2) - SiLU(b_2)'
    """
    if n == 1:
        return "S = SiLU"
    if n == 2:
        return "S(z) = SiLU(a_1 z + b_1) + SiLU(a_2 z + b_2) - SiLU(b_2)"
    return f"S(z) = SiLU(a_1 z + b_1) + sum over i = 2..{n} of [SiLU(a_i z + b_i) - SiLU(b_i)]"


def series(n: int) -> Variant:
    """Return the Llama block with a series of n activations on its gate.

    Source: pangu23, Table 2.
    """
    plain = "one term is the plain activation: this is the Llama block"
    return Variant(
        name=f"siaf-{n}",
        spec=LLAMA.with_block(ffn=Choice("siaf", n=n)),
        equation=f"{FEED_FORWARD}; {write_series(n)}",
        source="pangu23, equation 7 and Table 2",
        about=f"Series activation with n = {n}, from the source's table; "
        + (plain if n == 1 else "no augmented shortcut."),
        unsaid="Shape and start of a_i and b_i, and where the sum stands in a gated feed-forward.",
        cost="" if n == 1 else COST,
        start="identity",
    )


def augment(r: int) -> Variant:
    """Return the Llama block with an augmented shortcut whose bottleneck is the width over r.

    Source: pangu23, Table 3.
    """
    return Variant(
        name=f"as-{r}",
        spec=LLAMA.with_block(shortcut=Choice("augmented", r=r)),
        equation=f"x <- x + Attention(RMS(x)) + {BRANCH}; W_down to width / {r}",
        source="pangu23, equations 4 and 5 and Table 3",
        about=f"Augmented shortcut with a bottleneck of width / {r}, from the source's table; "
        "no series activation.",
        unsaid="Number of paths, bias, start, and whether it reads the normed stream.",
        start="identity",
    )


PANGU = LLAMA.with_block(ffn=Choice("siaf", n=2), shortcut=Choice("augmented", r=32))
LEFT_OPEN = (
    "Feed-forward width; shape and start of the series; paths, bias, start and input of the "
    "shortcut."
)

VARIANTS = (
    Variant(
        name="pangu-pi",
        spec=PANGU,
        equation=f"x <- x + Attention(RMS(x)) + {BRANCH}; {FEED_FORWARD}; {write_series(2)}",
        source="pangu23, section 4",
        about="Series activation with two terms and an augmented shortcut of width / 32, on the "
        "Llama block: more nonlinearity against the collapse of features.",
        unsaid=LEFT_OPEN,
        cost=COST,
        start="identity",
    ),
    Variant(
        name="pangu-pi-no-siaf",
        spec=PANGU.with_block(ffn=Choice("swiglu")),
        equation=f"x <- x + Attention(RMS(x)) + {BRANCH}; x <- x + SwiGLU(RMS(x))",
        source="pangu23, Table 4",
        about="PanGu-pi without its series activation; the same block as as-32.",
        unsaid=LEFT_OPEN,
        start="identity",
    ),
    Variant(
        name="pangu-pi-no-as",
        spec=PANGU.with_block(shortcut=Choice("none")),
        equation=f"x <- x + Attention(RMS(x)); {FEED_FORWARD}; {write_series(2)}",
        source="pangu23, Table 4",
        about="PanGu-pi without its augmented shortcut; the same block as siaf-2.",
        unsaid=LEFT_OPEN,
        cost=COST,
        start="identity",
    ),
    *(series(n) for n in (1, 2, 3, 4)),
    *(augment(r) for r in (1, 4, 16, 32, 64)),
    Variant(
        name="scaled-identity",
        spec=LLAMA.with_block(shortcut=Choice("scaled-identity")),
        equation="x <- scale x + Attention(RMS(x)); x <- x + SwiGLU(RMS(x))",
        source="pangu23, section 4.1",
        about="The linear alternative to the augmented shortcut: an identity with a larger weight. "
        "The source says that it prevents collapse and hurts, since noise grows as features do.",
        unsaid="The scale, and whether matrices stand beside the identity.",
    ),
)
