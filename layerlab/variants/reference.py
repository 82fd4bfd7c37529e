"""The blocks that everything else is compared with: GPT-1, GPT-2, Llama and their halves."""

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
)
