"""Names that a command checks before it imports what declares them, which takes torch.

A test holds each list equal to what is declared, in the same order.
"""

from collections.abc import Iterable
from typing import Any

from layerlab.errors import UserError
from layerlab.validation import short_repr, suggest

# The order of a report: from what the stream carries to the attention that moves it, then the cost.
MEASURES = tuple(
    """
    diversity dimension features stream lens ablation spectrum attention querykey matrices
    change lipschitz gain theorems rounding logits attribution gap swap gradients condition saliency
    """.split()
)
# Those that need nothing but weights.
OF_WEIGHTS = ("querykey", "matrices", "change")
STUDIES = tuple(
    """
    ablation-noise attention-gain attention-lambda backward batch-confound batch-independence
    block-anatomy bound-depth bounds-table collapse-depth condition-alone condition-table deep-curve
    dimension-twins eight-residuals-long eight-residuals-twin features-pca fewer-layers
    gpt-curves latency-measured layernorm-against-rmsnorm low-precision mlp-lipschitz
    modules-at-start norm-placement pangu-ablation-twin pangu-pretrain-twin pangu-theorems
    path-length precision-advice predictor printed-averages qk-control rank-collapse
    rounding-depth rounding-input rounding-norm rounding-placement saliency-repeat same-loss
    scaled-identity scaled-identity-trained series-cost series-exchange shortcut-cost
    shortcut-noise sizes spikes spikes-bf16 stochastic tokenizer-table twin-transfer unit-ball
    where-noise
    """.split()
)
# Those that draw what their runs drew, neither more nor less.
FIXED = frozenset(
    """
    ablation-noise batch-confound eight-residuals-long eight-residuals-twin fewer-layers
    low-precision norm-placement pangu-ablation-twin pangu-pretrain-twin printed-averages
    qk-control series-cost shortcut-cost sizes spikes spikes-bf16
    """.split()
)
# Those that look at trained models, and at those that a user names.
OF_MODELS = tuple(
    """
    attention-gain attention-lambda batch-independence block-anatomy bound-depth bounds-table
    collapse-depth
    condition-table deep-curve features-pca gpt-curves layernorm-against-rmsnorm mlp-lipschitz
    pangu-theorems path-length precision-advice predictor saliency-repeat shortcut-noise unit-ball
    where-noise
    """.split()
)
VARIANTS = tuple(
    """
    canon denseformer attention-residuals attention-residuals-block dyt derf gated-attention
    history-1 history-2 history-3 history-4 history-5 history-6 history-7 hyper-connections
    laurel laurel-rw laurel-lr laurel-pa mhc pangu-pi pangu-pi-no-siaf pangu-pi-no-as siaf-1
    siaf-2 siaf-3 siaf-4 as-1 as-4 as-16 as-32 as-64 scaled-identity peri-ln output-norm
    polynorm qk-norm llama gpt2 gpt1 gpt1-pre-norm gpt1-final-norm gpt1-scaled-init ffn-relu
    ffn-prelu ffn-gelu ffn-swish attention-only attention-skip attention-mlp relu2
    layernorm-scaling value-residual widenet
    """.split()
)
# What the parts of the package, a block and a stack call their options.
PART_OPTIONS = frozenset(
    """
    T activation activations alpha_attention alpha_other also_ffn attention bias block blocks
    body collapse diagonal dilation divide dropout dynamic embedding_norm epsilon experts ffn
    final_norm first_layer form forms gate gated granularity guard head initial initialisation
    inner input iterations k kernel method n norm normed order period placement places position
    previous r rank rescale residual scale sharing shortcut start streams values weights
    """.split()
)
PLUGINS = "layerlab.variants"  # the entry-point group of installed packages that declare more
# What measures are called elsewhere, without spaces, hyphens and underscores.
ELSEWHERE = {
    "logitlens": "lens",
    "tunedlens": "lens(tuned=True)",
    "headablation": "ablation",
    "sublayerablation": "ablation",
    "weightsonly": "matrices",
    "weights": "matrices",
}


def name_here(name: str) -> str | None:
    """Return how a measure is written here that has another name elsewhere.

    Example:
        >>> name_here("Logit-Lens"), name_here("lens")
        ('lens', None)
    """
    return ELSEWHERE.get("".join(one for one in name.lower() if one not in " -_"))


def unknown_measure(name: str, known: Iterable[str]) -> UserError:
    """Return the error that no measure has this name, with the one that may be meant."""
    names = list(known)
    here = name_here(name)
    hint = suggest(name, names) if here is None else f"did you mean {here!r}? "
    return UserError(f"no measure is called {name!r}; {hint}known: {', '.join(names)}")


def unknown_study(name: str, known: Iterable[str]) -> UserError:
    """Return the error that no study has this name."""
    names = list(known)
    hint = suggest(name, names)
    return UserError(f"no study is called {short_repr(name)}; {hint}known: {', '.join(names)}")


def refuse_models(study: str) -> UserError:
    """Return the error that a study looks at no model that a user could name."""
    return UserError(
        f"study {study} reads no model and no text; leave --model, --text, --device "
        "and --dtype out. "
        f"Those that do: {', '.join(OF_MODELS)}"
    )


def unknown_variant(name: Any, known: Iterable[str], presets: Iterable[str] = ()) -> UserError:
    """Return the error that no variant has this name.

    Args:
        presets: names that would do as well.
    """
    shapes = list(presets)
    # To a reader "none" is close to nothing: it asks for an empty slot, which not all may be.
    hint = "" if name == "none" else suggest(name, [*known, *shapes])
    if any(f" {one!r}?" in hint for one in shapes):
        hint = hint.replace("did you mean", "did you mean the preset")
    return UserError(f"no variant is called {name!r}; {hint}type: layerlab variants")
