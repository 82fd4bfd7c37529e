"""The options of measures and studies, which a command checks before it imports torch.

Each measure and study declares what stands here under its name.
"""

from collections.abc import Mapping
from typing import Any

from layerlab.errors import UserError
from layerlab.validation import Constraint, short_repr, suggest

# By the name of an option: what it is when nobody sets it, and which values it takes.
KnownOptions = Mapping[str, tuple[Any, Constraint | None]]

# A name that comes three times and is due a fourth time: does the model look back at it?
PROBE = (
    "The lamp on the pier was kept by Harriet. Every evening Harriet climbed the stairs with a can "
    "of oil, and every morning Harriet climbed down again. One night the lamp stayed dark. The "
    "fishermen stood below in the rain and called the name of"
)

_COUNT, _PAIR = Constraint(kind=int, least=1), Constraint(kind=int, least=2)
_SWITCH, _TEXT = Constraint(kind=bool), Constraint(kind=str)
_FORMATS = ("bf16", _TEXT)
_MODE = ("as-run", Constraint(kind=str, choices=("as-run", "flat", "autocast")))
_WORD = (None, Constraint(kind=str | int | None))
_OTHER = (None, Constraint(kind=str | None))
_EXACTNESS = ("float32", Constraint(kind=str, choices=("float32", "float64")))

MEASURES: Mapping[str, KnownOptions] = {
    "dimension": {"epsilon": (0.8, Constraint(kind=float, above=0, most=1))},
    "features": {
        "words": (8, Constraint(kind=int, least=1, most=64)),
        "points": (100, Constraint(kind=int, least=1, most=10_000)),
        "skip": (1, Constraint(kind=int, least=0)),
    },
    "lens": {"tokens": (512, _PAIR), "samples": (192, _COUNT), "tuned": (False, _SWITCH)},
    "ablation": {
        "replace": ("zero", Constraint(kind=str, choices=("zero", "mean"))),
        "tokens": (256, _PAIR),
        "samples": (128, _COUNT),
    },
    "spectrum": {"dtype": _EXACTNESS},
    "attention": {"dtype": _EXACTNESS},
    "querykey": {"tokens": (None, Constraint(kind=int | None, least=1, most=2**24))},
    # A tail is fitted to no fewer eigenvalues: below, its exponent says nothing.
    "matrices": {"fewest": (50, _PAIR)},
    "change": {"against": _OTHER},
    "lipschitz": {
        "steps": (4, _COUNT),
        "tolerance": (0.01, Constraint(kind=float, least=0)),
        "seed": (0, Constraint(kind=int, least=0, most=2**63 - 1)),
        "memory_gib": (8.0, Constraint(kind=float, least=0)),
    },
    "theorems": {
        "tokens": (64, Constraint(kind=int, least=2, most=2048)),
        "noise": (0.1, Constraint(kind=float, above=0, most=1e3)),
    },
    "rounding": {"formats": _FORMATS},
    "logits": {"formats": _FORMATS},
    "attribution": {
        "formats": _FORMATS,
        "mode": _MODE,
        "tokens": (128, _PAIR),
        "cross": (False, _SWITCH),
    },
    "gap": {"a": ("torch-eager", _TEXT), "b": ("torch-sdpa", _TEXT), "tokens": (128, _PAIR)},
    "swap": {"against": _OTHER, "tokens": (256, _PAIR)},
    "gradients": {"formats": _FORMATS, "tokens": (128, _PAIR)},
    "condition": {"tokens": (64, _PAIR)},
    "saliency": {
        "text": (PROBE, Constraint(kind=str | None)),
        "target": _WORD,
        "foil": _WORD,
        "position": (-1, Constraint(kind=int)),
        "of": ("logit", Constraint(kind=str, choices=("logit", "log-probability"))),
        "tokens": (512, _PAIR),
        "bins": (64, _COUNT),
    },
}

_NORM = ("layer", Constraint(kind=str, choices=("layer", "rms")))
_DIGITS = Constraint(kind=int, least=4, most=25)
_WIDTH = Constraint(kind=int, least=16, most=1024)
_FORMAT = ("bf16", Constraint(kind=str, choices=("bf16", "fp16")))
_PRECISIONS = ("bf16+fp16+fp32", "bf16", "fp16", "fp32")
# Of a study that trains its models itself.
TRAINED: KnownOptions = {
    "layers": (6, Constraint(kind=int, least=1, most=100)),
    "width": (64, _WIDTH),
    "updates": (300, Constraint(kind=int, least=1, most=10**6)),
}

STUDIES: Mapping[str, KnownOptions] = {
    "attention-lambda": {"tokens": (256, Constraint(kind=int, choices=(8, 16, 32, 64, 128, 256)))},
    "backward": {
        "norm": _NORM,
        "layers": (20, Constraint(kind=int, least=2, most=100)),
        "digits": (24, _DIGITS),
    },
    "collapse-depth": {
        "layers": (32, Constraint(kind=int, least=2, most=200)),
        "width": (128, _WIDTH),
    },
    "condition-alone": {"norm": ("rms", _NORM[1])},
    "dimension-twins": TRAINED,
    "features-pca": {**TRAINED, "seeds": (3, Constraint(kind=int, least=2, most=9))},
    "latency-measured": {
        # The largest are those of the source's 1B and 7B.
        "width": (1024, Constraint(kind=int, choices=(128, 256, 512, 1024, 2048, 4096))),
        "device": ("cpu", Constraint(kind=str, choices=("cpu", "cuda"))),
    },
    "layernorm-against-rmsnorm": {"digits": (24, _DIGITS)},
    "modules-at-start": {
        "layers": (32, Constraint(kind=int, least=2, most=200)),
        "width": (128, Constraint(kind=int, least=32, most=1024)),
    },
    "pangu-theorems": {"tokens": (64, Constraint(kind=int, least=4, most=256))},
    "precision-advice": {"format": _FORMAT},
    "predictor": {"formats": (_PRECISIONS[0], Constraint(kind=str, choices=_PRECISIONS))},
    "rounding-depth": {"norm": _NORM, "layers": (40, Constraint(kind=int, least=4, most=200))},
    "rounding-input": {"digits": (16, _DIGITS)},
    "rounding-norm": {"norm": _NORM, "digits": (16, _DIGITS)},
    "rounding-placement": {
        "norm": _NORM,
        "layers": (100, Constraint(kind=int, least=2, most=1000)),
        "digits": (11, _DIGITS),
        "variance": (0.1, Constraint(kind=float, above=0.0, most=100.0)),
    },
    "saliency-repeat": {**TRAINED, "seeds": (3, Constraint(kind=int, least=1, most=9))},
    "same-loss": TRAINED,
    "scaled-identity": {
        "layers": (32, Constraint(kind=int, least=2, most=32)),
        "width": (128, _WIDTH),
    },
    "scaled-identity-trained": TRAINED,
    "stochastic": {"digits": (11, _DIGITS), "norm": _NORM},
    "tokenizer-table": {
        "entries": (4096, Constraint(kind=int, least=512, most=20_000)),
        "characters": (10**6, _COUNT),
    },
    "where-noise": {"format": _FORMAT, "mode": _MODE},
}
# What every study takes.
SETTINGS = {
    "draws": Constraint(kind=int, least=4, most=10_000_000),
    "seed": Constraint(kind=int, least=0, most=2**63 - 1),
    "threads": Constraint(kind=int, least=1, most=1024),
}


def measure_options(name: str) -> dict[str, Any]:
    """Return what a measure of the package declares of its options."""
    return _declare(MEASURES[name])


def study_options(name: str) -> dict[str, Any]:
    """Return what a study declares of its options."""
    return _declare(STUDIES[name])


def _declare(declared: KnownOptions) -> dict[str, Any]:
    domains = {name: domain for name, (_, domain) in declared.items() if domain is not None}
    return {"options": {name: usual for name, (usual, _) in declared.items()}, "domains": domains}


def check_measure(name: str, given: Mapping[str, Any], declared: KnownOptions) -> dict[str, Any]:
    """Return the options that a user sets on a measure, whole numbers as floats where those go.

    Raises:
        UserError: an option that the measure does not have, or a value that it does not take.
    """
    read = {}
    for option, value in given.items():
        if option not in declared:
            raise UserError(
                f"measure {name!r} has no option {option!r}; "
                f"{suggest(option, declared)}its options are: {', '.join(declared) or 'none'}"
            )
        usual, domain = declared[option]
        if domain is not None and value not in domain:
            text = " ".join(repr(value).split())  # a tensor shows itself in several lines
            raise UserError(
                f"option {option} of measure {name!r} got {text}; expected {domain}: "
                f"type {name}({option}={usual!r})"
            )
        read[option] = float(value) if domain and domain.kind is float else value
    return read


def check_study(name: str, given: Mapping[str, Any], declared: KnownOptions) -> None:
    """Refuse options that a study does not have, or values that they do not take.

    Raises:
        UserError: there is one.
    """
    for option, value in given.items():
        if option not in declared:
            raise UserError(
                f"study {name} has no option {short_repr(option)}; "
                f"{suggest(option, declared)}known: {', '.join(declared) or 'none'}"
            )
        usual, domain = declared[option]
        if domain is not None and value not in domain:
            raise UserError(
                f"study {name}: option {option} is {short_repr(value)}; expected {domain}: "
                f"type for example {option}={usual}"
            )


def check_settings(**given: Any) -> None:
    """Refuse draws, a seed or threads that no study takes; None is the usual one.

    Raises:
        UserError: there is one.
    """
    for name, value in given.items():
        if value is not None and value not in SETTINGS[name]:
            raise UserError(
                f"{name} is {short_repr(value)}; expected {SETTINGS[name]}: "
                f"type for example {name}=100"
            )
