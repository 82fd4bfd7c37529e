"""Squared ReLU in a plain feed-forward of two matrices."""

from layerlab.blocks.spec import BlockSpec, Choice, Spec, Variant

VARIANTS = (
    Variant(
        name="relu2",
        spec=Spec(block=BlockSpec(ffn=Choice("mlp", activation="relu2", bias=False))),
        equation="x <- x + max(0, RMS(x) W_up)^2 W_down",
        source="so21, section 3.1",
        about="The activation that a search found: quadratic like a gate, with two matrices, and "
        "most features exactly zero.",
        unsaid="The convolutions that the source adds to attention are not part of it.",
        cost="With an inner width of 4 widths as many weights as the gated baseline.",
        inner=4.0,
    ),
)
