"""Published shapes by name: a variant with its sizes, what is printed of them and what is not."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from typing import Any

from layerlab.errors import UserError
from layerlab.known_names import PLUGINS, VARIANTS, unknown_variant
from layerlab.model.size import REFERENCE, check_limit, shape
from layerlab.validation import suggest


@dataclass(frozen=True, kw_only=True)
class Preset:
    """A variant at a shape.

    Attributes:
        variant: the variant that its name stands for; the shape alone may be given to any other.
        sizes: as `build` takes them; `inner` left out is the variant's own multiple of the width.
        options: of the variant, where they differ from its defaults.
        source: key of docs/sources.md, with the place, or "Own".
        published: what the source prints.
        unsaid: what it does not, and what stands here instead.
    """

    name: str
    variant: str
    sizes: Mapping[str, int]
    source: str
    published: str
    unsaid: str
    options: Mapping[str, Any] = field(default_factory=dict)


_PANGU = {"vocab": 100_883, "context": 2048}
_PRO = {"vocab": 48_000, "context": 2048}
_GPT2 = {"vocab": 50_257, "context": 1024}
_SILENT = (
    "Feed-forward width, context and whether the head is tied are not printed; here {inner}, "
    "context 2048, an untied head. Shape and start of the series activation, bias, start and "
    "number of the shortcuts: see the options of pangu-pi."
)
_THIRDS = "8/3 of the width rounded up to 16"
_RELEASED = (
    "The released training script builds a plain Llama block: for that, give this preset's shape "
    "to llama. "
)

PRESETS = (
    Preset(
        name="llama-7b",
        variant="llama",
        sizes={
            "width": 4096,
            "layers": 32,
            "heads": 32,
            "inner": 11_008,
            "vocab": 32_000,
            "context": 2048,
        },
        source="touvron23, table 2",
        published="Width 4096, 32 heads, 32 layers, 6.7 billion parameters, context 2048.",
        unsaid="Feed-forward width and vocabulary are those of the released checkpoint.",
    ),
    Preset(
        name="pangu-pi-1b",
        variant="pangu-pi",
        sizes={"width": 2048, "layers": 12, "heads": 16, **_PANGU},
        source="pangu23, tables 1 and 7",
        published="Width 2048, 16 heads, 12 layers, a vocabulary of 100,883; series of 2, "
        "shortcut narrowed to 1/32 of the width.",
        unsaid=_SILENT.format(inner=_THIRDS)
        + " The depth of the plain baseline of its ablation is not printed either.",
    ),
    Preset(
        name="pangu-pi-7b",
        variant="pangu-pi",
        sizes={"width": 4096, "layers": 29, "heads": 32, "inner": 11_008, **_PANGU},
        source="pangu23, tables 1 and 7",
        published="Width 4096, 32 heads, 29 layers, a vocabulary of 100,883; series of 2, "
        "shortcut narrowed to 1/32 of the width.",
        unsaid=_SILENT.format(inner="11,008, that of Llama 7B"),
    ),
    Preset(
        name="pangu-pi-1b-pro",
        variant="pangu-pi",
        sizes={"width": 1792, "layers": 21, "heads": 14, **_PRO},
        source="tang24, section 4",
        published="Width 1792, 21 layers, a vocabulary of 48,000; the released configuration has "
        "14 heads, 8/3 of the width, context 2048, and 20 layers.",
        unsaid=_RELEASED + f"The feed-forward is {_THIRDS}; an untied head is our reading.",
    ),
    Preset(
        name="pangu-pi-1.5b-pro",
        variant="pangu-pi",
        sizes={"width": 2048, "layers": 22, "heads": 16, **_PRO},
        source="tang24, section 4",
        published="Width 2048, 22 layers, a vocabulary of 48,000.",
        unsaid=_RELEASED
        + f"Heads are not printed; 16 as in the 1B model. The feed-forward is {_THIRDS}; context "
        "and an untied head are our reading.",
    ),
    Preset(
        name="gpt1-117m",
        variant="gpt1",
        sizes={"width": 768, "layers": 12, "heads": 12, "vocab": 40_478, "context": 512},
        source="radford18, section 4.1; spectral25, section 1.1",
        published="Width 768, 12 heads, 12 layers, feed-forward 3072, 40,000 merges, context 512.",
        unsaid="The vocabulary of 40,478 is that of the released checkpoint: 116,534,784 "
        "parameters with the tied head.",
    ),
    Preset(
        name="gpt2-124m",
        variant="gpt2",
        sizes={"width": 768, "layers": 12, "heads": 12, **_GPT2},
        source="radford19, table 2; spectral25, section 1.1",
        published="Width 768, 12 layers, a vocabulary of 50,257, context 1024.",
        unsaid="Heads are those of the released checkpoint, 12: 124,439,808 parameters with the "
        "tied head, where 117 million are printed.",
    ),
    Preset(
        name="gpt2-large",
        variant="gpt2",
        sizes={"width": 1280, "layers": 36, "heads": 20, **_GPT2},
        source="radford19, table 2; spectral25, section 1.1",
        published="Width 1280, 36 layers, a vocabulary of 50,257, context 1024.",
        unsaid="Heads are those of the released checkpoint, 20: 774,030,080 parameters with the "
        "tied head, where 762 million are printed.",
    ),
    Preset(
        name="eight-residuals",
        variant="llama",
        sizes={
            "width": 512,
            "layers": 8,
            "heads": 8,
            "kv_heads": 4,
            "inner": 1024,
            "vocab": 32_000,
            "context": 2048,
        },
        source="residuals24, its printed total of floating-point operations",
        published="137,242,029 GF of operations over 5 epochs of 68,009 sequences.",
        unsaid="The shape is not printed. It is inferred: with sequences of 2048 tokens that total "
        "gives 35,267,072 parameters without the embedding, and this is the only ordinary shape "
        "with so many. A post-norm reading is possible (placement=post).",
    ),
    Preset(
        name="eight-residuals-small",
        variant="llama",
        sizes={
            "width": 128,
            "layers": 8,
            "heads": 8,
            "kv_heads": 4,
            "inner": 256,
            "vocab": 4096,
            "context": 256,
        },
        source="Own",
        published="Nothing: it is the shape of eight-residuals a quarter as wide, for a CPU.",
        unsaid="Depth, heads, shared key-value heads and the feed-forward's share are kept; "
        "vocabulary and context are smaller by 8.",
    ),
)


def presets() -> dict[str, Preset]:
    """Return every preset by its name."""
    return {one.name: one for one in PRESETS}


def preset_of(name: Any) -> Preset:
    """Return the preset of this name.

    Raises:
        UserError: there is none.
    """
    known = presets()
    if not isinstance(name, str) or name not in known:
        hint = suggest(name, known)
        raise UserError(f"no preset is called {name!r}; {hint}known: {', '.join(known)}")
    return known[name]


def check_named(names: Iterable[str]) -> None:
    """Refuse names that neither a variant of the package nor a preset has, without importing torch.

    What installed plug-ins declare is known only once they are imported: with one, all names pass.

    Raises:
        UserError: there is no such variant.
    """
    for name in names:
        known = name in VARIANTS or name in presets()
        if not known and not entry_points(group=PLUGINS):
            raise unknown_variant(name, VARIANTS, presets())


def check_sizes(names: Iterable[str], preset: str | None, given: Mapping[str, Any]) -> None:
    """Refuse sizes that do not fit together, of variants and presets, without importing torch.

    Raises:
        UserError: no model has them.
    """
    for name in list(names) or [""]:
        chosen = presets().get(name) if preset is None else preset_of(preset)
        asked = {key: size for key, size in given.items() if size is not None}
        sizes = {"inner": 1.0, **sizes_of(chosen), **asked}  # the variant's own inner always fits
        for key, size in sizes.items():
            check_limit(key, size)
        shape(**sizes)


def sizes_of(preset: Preset | None) -> dict[str, int]:
    """Return the sizes to start from."""
    return dict(REFERENCE if preset is None else preset.sizes)
