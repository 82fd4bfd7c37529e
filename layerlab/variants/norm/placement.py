"""Placement of norms: around each sublayer (Peri-LN), or on its output alone (OLMo 2)."""

from layerlab.blocks.spec import BlockSpec, Choice, Spec, StackSpec, Variant

PERI = Spec(
    block=BlockSpec(placement="both"),
    stack=StackSpec(embedding_norm=Choice("rms")),
)
OUTPUT = Spec(block=BlockSpec(attention=Choice("qk-norm", form="full"), placement="after"))

VARIANTS = (
    Variant(
        name="peri-ln",
        spec=PERI,
        equation="x_0 = N(embedding); x <- x + N'(F(N(x))); final N",
        source="kim25, section 3",
        about="A norm before and after each sublayer, and one on the embedding. What a sublayer "
        "adds is bounded, so the stream grows linearly with depth and not exponentially.",
        unsaid="The norm on the embedding is optional there; embedding_norm=none leaves it out, "
        "which is the layout of Gemma 2.",
        cost="Two gains per layer and one for the embedding; no matrix.",
    ),
    Variant(
        name="output-norm",
        spec=OUTPUT,
        equation="x <- x + N(F(x)), queries and keys normed over all heads together; final N",
        source="olmo24, norm order and QK-norm",
        about="The norm on the output of each sublayer in place of its input, with a norm on "
        "queries and keys; the layout of OLMo 2.",
        cost="Gains of queries and keys; no matrix.",
    ),
)
