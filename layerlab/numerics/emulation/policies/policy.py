"""Mixed-precision policy: the parts of a model that stay in float32, as a small file."""

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.numerics.formats.formats import find
from layerlab.recipes.toml import write_value
from layerlab.records.parse import quote_toml, toml_of
from layerlab.system.files import check_file, read_whole, write_file
from layerlab.validation import short_repr

RESIDUAL = "residual"
ATTENTION = ":attention"
# The policy that `apply_precision` gave to a model.
APPLIED = "_precision_policy"
# Where the configuration carries it.
CARRIED = "precision_policy"


@dataclass(frozen=True, kw_only=True)
class Policy:
    """A mixed-precision policy: what stays in float32.

    Attributes:
        format: format of everything else, in any spelling or as a dtype; held by its name.
        keep: "residual" is the stream between the blocks and the norms that read it;
            "model.layers.*.self_attn:attention" scores, softmax and weighted sum of those modules;
            anything else modules by their path, with `*` and `?`, their parameters and what they
            compute. A single string is one entry.
        measured: what was found when the policy was made, for the reader.

    Example:
        >>> print(Policy(format="bf16", keep=("residual", "lm_head")).toml(), end="")
        format = "bf16"
        keep = [
            "residual",
            "lm_head",
        ]
    """

    format: Any
    keep: Sequence[str] = ()
    measured: Mapping[str, str | int | float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A format in another spelling would miss what is asked by name, as the real run.
        object.__setattr__(self, "format", find(self.format).name)
        keep = (self.keep,) if isinstance(self.keep, str) else self.keep
        entries = tuple(keep) if isinstance(keep, Iterable) else (keep,)
        if not all(isinstance(one, str) for one in entries):
            raise UserError(
                f"keep of a policy is {short_repr(self.keep)}; expected a list of texts: type for "
                "example keep=['residual', 'lm_head']"
            )
        object.__setattr__(self, "keep", entries)

    def save(self, path: str | os.PathLike[str], *, overwrite: bool = True) -> None:
        """Write the policy as TOML, whole or not at all.

        Args:
            overwrite: replace a file that is there.

        Raises:
            UserError: there is no such folder, or it cannot be written. Where a file is there and
                is not to be replaced, the policy is written beside it, and the error names it.
        """
        check_place(Path(path), overwrite=True)
        write_file(Path(path), self.toml(), None if overwrite else lambda there: False)

    def toml(self) -> str:
        """Return the policy as the text of a TOML file."""
        lines = [f"format = {write_value(self.format)}", "keep = ["]
        lines += [f"    {write_value(name)}," for name in self.keep]
        lines.append("]")
        if self.measured:
            lines += ["", "[measured]"]
            lines += [
                f"{quote_toml(name)} = {write_value(seen)}" for name, seen in self.measured.items()
            ]
        return "\n".join(lines) + "\n"


def check_place(path: Path, overwrite: bool) -> None:
    """Check that the policy can be written here before the work begins.

    Raises:
        UserError: something is there already, or there is no such folder, or none to write in.
    """
    if path.is_dir():
        raise UserError(f"cannot write the policy to {str(path)!r}: it is a folder; name a file")
    if path.exists() and not overwrite:
        raise UserError(
            f"{str(path)!r} is there already; type another name, or --overwrite as well to replace"
            " it"
        )
    if not path.absolute().parent.is_dir():
        raise UserError(
            f"cannot write the policy to {str(path)!r}: no folder {str(path.parent)!r}; make it"
            " first"
        )
    check_file(path)


def load_policy(path: str | os.PathLike[str]) -> Policy:
    """Read a policy that `layerlab precision` or `Policy.save` wrote.

    Raises:
        UserError: there is no such file, it is not TOML, or it does not say what a policy says.

    Example:
        >>> import pathlib, tempfile
        >>> path = pathlib.Path(tempfile.mkdtemp(), "policy.toml")
        >>> Policy(format="fp16", keep=("model.layers.*.self_attn:attention",)).save(path)
        >>> load_policy(path).keep
        ('model.layers.*.self_attn:attention',)
    """
    try:
        found: dict[str, Any] = toml_of(read_whole(Path(path)).decode())
    except OSError as error:
        raise UserError(
            f"cannot read the policy {str(path)!r}: {error.strerror}; type"
            " `layerlab precision MODEL --out policy.toml` to make one"
        ) from None
    except ValueError as error:
        raise UserError(f"{str(path)!r} is not TOML: {error}; write format and keep") from None
    unknown = sorted(set(found) - {part.name for part in fields(Policy)})
    keep, measured = found.get("keep", []), found.get("measured", {})
    named = isinstance(keep, list) and all(isinstance(name, str) for name in keep)
    has_numbers = isinstance(measured, dict) and all(
        isinstance(value, (str, int, float)) for value in measured.values()
    )
    if unknown or not named or not has_numbers or not isinstance(found.get("format"), str):
        raise UserError(
            f"{str(path)!r} is not a policy: it needs format, a string, and keep, a list of"
            " strings; measured, a table of numbers, is for the reader"
            + (f"; it knows no {', '.join(unknown)}" if unknown else "")
        )
    return Policy(format=found["format"], keep=tuple(keep), measured=measured)


def check_policy(policy: Any, autocast: bool) -> None:
    """Refuse what is no policy, or one that has no say.

    Args:
        policy: what was given in its place.
        autocast: whether the emulated model runs under torch.autocast.

    Raises:
        UserError: it is none, or autocast leaves nothing to keep.
    """
    if policy is not None and autocast:
        raise UserError(
            "a policy says what of a low model stays in float32, and under autocast all parameters"
            " do; leave policy or mode='autocast' out"
        )
    if policy is None or isinstance(policy, Policy):
        return
    path = repr(str(policy)) if isinstance(policy, str | os.PathLike) else "path"
    raise UserError(
        f"policy={short_repr(policy)} is no policy but what one may be read from; type"
        f" policy=layerlab.load_policy({path})"
    )
