"""The blocks that everything else is compared with: GPT-1, GPT-2, Llama, and their halves."""

from layerlab.blocks.spec import NONE, BlockSpec, Choice, Spec, StackSpec, Variant

LLAMA = Spec()
GPT2 = Spec(
    block=BlockSpec(
        norm=Choice("layer"), attention=Choice("softmax", bias="all"), ffn=Choice("mlp")
    ),
    stack=StackSpec(
        position="learned",
        final_norm=Choice("layer"),
        initialisation="depth-scaled",
        head="tied",
    ),
)
GPT1 = GPT2.with_block(placement="post").with_stack(final_norm=NONE, initialisation="plain")

ATTENTION = LLAMA.with_block(ffn=NONE)
BARE = (
    "dong21 proves its theorem for attention alone: without a norm, without a mask. Here the norm "
    "before each sublayer, rotary positions and the causal mask stay as in llama, so that only one "
    "thing differs, and features keep their size; type norm=none for the bare network. "
    "Under a causal mask the collapse is slower than doubly exponential: each layer of uniform "
    "attention halves what is left (wu24 bounds it)."
)


def _plain(activation: str) -> Spec:
    """Return the spec of Llama with two feed-forward matrices in place of three."""
    return LLAMA.with_block(ffn=Choice("mlp", activation=activation, bias=False))


VARIANTS = (
    Variant(
        name="llama",
        spec=LLAMA,
        equation="x <- x + Attention(RMS(x)); x <- x + SwiGLU(RMS(x))",
        source="touvron23, section 2.2",
        about="Today's plain block: pre-norm, rotary positions, gated feed-forward, no biases.",
        start="identity",
    ),
    Variant(
        name="gpt2",
        spec=GPT2,
        equation="x <- x + Attention(LN(x)); x <- x + MLP(LN(x)); final LN",
        source="radford19, section 2.3",
        about="Pre-norm with learned positions, biases, GELU and a tied head.",
        unsaid="The order of roundings inside GELU; taken from the published code.",
        baseline="gpt2",
        inner=4.0,
        start="identity",
    ),
    Variant(
        name="gpt1",
        spec=GPT1,
        equation="x <- LN(x + Attention(x)); x <- LN(x + MLP(x))",
        source="radford18, section 4.1",
        about="The post-norm block of the original Transformer as a decoder; no final norm.",
        baseline="gpt2",
        inner=4.0,
    ),
    Variant(
        name="gpt1-pre-norm",
        spec=GPT1.with_block(placement="pre"),
        equation="x <- x + Attention(LN(x)); x <- x + MLP(LN(x)); no final LN",
        source="radford19, section 2.3",
        about="The first of three changes from GPT-1 to GPT-2, alone: the norm moves to the input "
        "of each sublayer.",
        unsaid="radford19 never moves the norm without adding the final one: here the head reads "
        "the stream as it is.",
        baseline="gpt1",
        inner=4.0,
    ),
    Variant(
        name="gpt1-final-norm",
        spec=GPT1.with_stack(final_norm=Choice("layer")),
        equation="x <- LN(x + Attention(x)); x <- LN(x + MLP(x)); final LN",
        source="radford19, section 2.3",
        about="The second of three changes from GPT-1 to GPT-2, alone: a norm before the head.",
        unsaid="Behind a post-norm block it norms what is normed already: at the start it changes "
        "next to nothing, and later only gain and bias differ.",
        baseline="gpt1",
        inner=4.0,
    ),
    Variant(
        name="gpt1-scaled-init",
        spec=GPT1.with_stack(initialisation="depth-scaled"),
        equation="as gpt1; matrices that write into the stream start smaller by 1/sqrt(N)",
        source="radford19, section 2.3",
        about="The third of three changes from GPT-1 to GPT-2, alone: the start of the matrices "
        "that write into the stream shrinks with depth.",
        unsaid="What the source's N, the number of residual layers, counts: here sublayers, two "
        "for each layer, as in the published code.",
        baseline="gpt1",
        inner=4.0,
    ),
    Variant(
        name="ffn-relu",
        spec=_plain("relu"),
        equation="x <- x + Attention(RMS(x)); x <- x + max(0, RMS(x) W_up) W_down",
        source="shazeer20, equation 2",
        about="Llama with the plain feed-forward of the first Transformer, four times as wide as "
        "the stream, so that it has as many parameters as SwiGLU at 8/3.",
        inner=4.0,
    ),
    Variant(
        name="ffn-prelu",
        spec=_plain("prelu"),
        equation="x <- x + Attention(RMS(x)); x <- x + PReLU(RMS(x) W_up) W_down",
        source="shazeer20, section 1; he15, equation 1",
        about="Llama with a plain feed-forward whose slope below zero is learned.",
        unsaid="Whether channels share the slope: here each has its own, from 1/4.",
        inner=4.0,
    ),
    Variant(
        name="ffn-gelu",
        spec=_plain("gelu"),
        equation="x <- x + Attention(RMS(x)); x <- x + GELU(RMS(x) W_up) W_down",
        source="shazeer20, equation 3",
        about="Llama with a plain feed-forward and the exact GELU, x Phi(x).",
        inner=4.0,
    ),
    Variant(
        name="ffn-swish",
        spec=_plain("silu"),
        equation="x <- x + Attention(RMS(x)); x <- x + Swish(RMS(x) W_up) W_down",
        source="shazeer20, equation 3",
        about="Llama with a plain feed-forward and Swish, x / (1 + e^-x): SwiGLU without its gate.",
        inner=4.0,
    ),
    Variant(
        name="attention-only",
        spec=ATTENTION.with_block(residual=NONE),
        equation="x <- Attention(RMS(x))",
        source="dong21, section 2",
        about="Nothing but attention: no skip, no feed-forward. Tokens lose their differences from "
        "layer to layer.",
        unsaid=BARE,
    ),
    Variant(
        name="attention-skip",
        spec=ATTENTION,
        equation="x <- x + Attention(RMS(x))",
        source="dong21, section 3",
        about="Attention with its skip, no feed-forward: paths around attention keep tokens apart.",
        unsaid=BARE,
    ),
    Variant(
        name="attention-mlp",
        spec=LLAMA.with_block(residual=NONE),
        equation="x <- Attention(RMS(x)); x <- SwiGLU(RMS(x))",
        source="dong21, section 3",
        about="Attention and feed-forward without skips: the feed-forward slows the collapse by as "
        "much as it can stretch differences. With skips it is llama.",
        unsaid=BARE,
    ),
)
