"""Generates as the caller says, whatever settings of generation came with a model."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from transformers import GenerationConfig
from transformers.utils import GENERATION_CONFIG_NAME

from layerlab.errors import UserError
from layerlab.system.write_errors import temporary_folder
from layerlab.validation import short_repr

IDS = ("bos_token_id", "eos_token_id", "pad_token_id")
# Token ids end here, and so do the whole numbers that a tensor holds.
LARGEST = 2**31
# What every model writes down, and what changes no token.
_PLAIN = {*IDS, "use_cache", "transformers_version", "_from_model_config"}


def special_ids(model: Any) -> dict[str, int | list[int]]:
    """Return the token ids that begin, end and fill a text, as a model's settings name them.

    Raises:
        UserError: one is no token id.
    """
    given = model.generation_config
    found = {name: getattr(given, name, None) for name in IDS}
    for name, value in found.items():
        ids = value if isinstance(value, list | tuple) else [value]
        if value is not None and not all(_is_id(one) for one in ids):
            raise UserError(
                f"{name} is {short_repr(value)} in the model's generation_config.json or "
                "config.json; expected a token id or a list of them: mend it there"
            )
    return {name: value for name, value in found.items() if value is not None}


def list_unused(model: Any) -> list[str]:
    """Return the names of settings of generation that came with a model and are not used."""
    given = model.generation_config
    defaults = GenerationConfig().to_dict()
    settings = {name: getattr(given, name, None) for name in defaults if name not in _PLAIN}
    return [name for name, value in settings.items() if value not in (None, False)]


def describe_unused(name: str, unused: list[str]) -> str:
    """Describe the settings of a model's that are not used.

    Example:
        >>> describe_unused("m", ["max_time", "num_beams"])
        'm: its own settings of generation are not used: max_time, num_beams'
    """
    return f"{name}: its own settings of generation are not used: {', '.join(unused)}"


def stop_at(model: Any, token: int) -> bool:
    """Add a token to those that end what a model generates; return whether it was none of them.

    Args:
        model: that PEFT may have wrapped.

    Raises:
        UserError: one of its settings is no token id.
    """
    found = model.get_base_model() if hasattr(model, "get_base_model") else model
    given = special_ids(found).get("eos_token_id", [])
    ends = given if isinstance(given, list) else [given]
    if token in ends:
        return False
    found.generation_config.eos_token_id = [*ends, token] if ends else token
    make_savable(found)
    return True


def make_savable(model: Any) -> None:
    """Let a model be saved with settings of generation that were changed.

    As long as they are what was loaded, transformers saves what it refuses in others: settings
    that do nothing beside the rest, such as a temperature without do_sample. Many models come with
    such.
    """
    given = model.generation_config
    with temporary_folder() as folder:
        given.to_json_file(Path(folder, GENERATION_CONFIG_NAME))
        model.generation_config = type(given).from_pretrained(folder)


@contextmanager
def ignore_settings(model: Any) -> Iterator[None]:
    """Let a model generate as its caller says; of its own settings, only special ids count.

    Raises:
        UserError: one is no token id.
    """
    given = model.generation_config
    model.generation_config = GenerationConfig(**special_ids(model))
    try:
        yield
    finally:
        model.generation_config = given


def _is_id(value: Any) -> bool:
    # Some models write -1 for a token that they lack.
    return isinstance(value, int) and not isinstance(value, bool) and -1 <= value < LARGEST
