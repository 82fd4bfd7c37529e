"""Finds the folder of a model and refuses what is none; without torch, so that it costs no time."""

from collections.abc import Iterable
from pathlib import Path

from layerlab import builtin
from layerlab.errors import UserError
from layerlab.loading.checkpoint_series import expand_runs
from layerlab.loading.folder_checks import PICKLES, check_single, check_weights, is_adapter
from layerlab.loading.packed.adapter import find_base, merge_adapter
from layerlab.loading.packed.folder import unpack_folder
from layerlab.loading.packed.gguf import ENDING, unpack_gguf
from layerlab.records.checkpoint_names import ADAPTER
from layerlab.system.hub import fetch_files
from layerlab.validation import suggest

# Files of a model on the Hub: what is checked before anything else, and all that is read.
CHECKED = ["config.json", ADAPTER, "*.index.json"]
WHOLE = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja", "*.py", "README.md"]
# Beside a model, and read by nobody: documentation, pictures, and pickles, which are refused.
UNREAD = ("README*", "LICENSE*", "*.md", "*.png", "*.jpg", "*.svg", "*.gif", *PICKLES)
# Read from folders inside it too: further templates, code, and shards that an index names there.
INSIDE = ("*.jinja", "*.py", "*.safetensors")


def check_found(models: Iterable[str]) -> None:
    """Refuse names that no model has, before anything heavy is imported.

    Raises:
        UserError: as `find_folder`.
    """
    for name in expand_runs(list(models)):
        find_folder(str(name), with_weights=False)


def find_folder(name: str, *, with_weights: bool) -> Path:
    """Return the folder of a model: built in, as given, of the Hub, or of the cache.

    Those of the cache are unpacked, or merged with an adapter.

    Args:
        with_weights: with its weights; a folder or an adapter has them in any case.

    Raises:
        UserError: there is none, or it holds no model.
    """
    local = _find_local(name)
    folder = local or fetch(name, with_weights=with_weights)
    if is_adapter(folder):
        whole = local or fetch(name, with_weights=True)
        if is_adapter(whole):  # and no weights of a model came with those of the adapter
            return merge_adapter(whole, _find_whole, input_files)
    if local is None and not with_weights:
        check_single(folder)
        return folder
    return _unpack(folder)


def list_sources(folder: Path) -> list[Path]:
    """List the folders that a model is read from: an adapter's own, and that of its model.

    Raises:
        UserError: the model of an adapter is not there.
    """
    return [folder, find_base(folder, _find_whole)[1]] if is_adapter(folder) else [folder]


def _find_whole(name: str) -> Path:
    """Return the folder of a model that is no adapter, with its weights."""
    return _unpack(_find_local(name) or fetch(name, with_weights=True))


def _unpack(folder: Path) -> Path:
    check_weights(folder)
    return unpack_folder(folder, input_files)


def _find_local(name: str) -> Path | None:
    """Return the folder of a model on this machine; None where only the Hub can have it."""
    if not name.strip():
        raise UserError("the model's name is empty; expected a Hub id, a folder or a built-in name")
    folder = Path(name)
    if folder.is_dir():
        return folder
    if name in builtin.NAMES:
        return builtin.path(name)
    if folder.exists() and folder.suffix == ENDING:
        return unpack_gguf(folder)
    if folder.exists():
        raise UserError(f"{name!r} is a file; expected the folder that holds config.json")
    if folder.is_absolute() or name.startswith("."):
        raise UserError(f"nothing lies at {name}; expected the folder that holds config.json")
    if "," in name:
        raise UserError(
            f"no model is called {name!r}; write several with blanks between them: "
            f"{' '.join(name.replace(',', ' ').split())}"
        )
    return None


def input_files(folder: Path) -> list[Path]:
    """Return the files of a model's folder that a loader may read, weights and tokenizer included.

    It is every regular file but those that none reads, since each family of models and tokenizers
    has files of its own: one too many costs a computation, one too few keeps a wrong result.
    """
    inside = {one for pattern in INSIDE for one in folder.glob(f"*/**/{pattern}")}
    return sorted(
        path
        for path in {*folder.glob("*"), *inside}
        if path.is_file()
        and not any(part.startswith(".") for part in path.relative_to(folder).parts)
        and not any(map(path.match, UNREAD))
    )


def fetch(name: str, *, with_weights: bool) -> Path:
    """Return the folder of a model that the Hub knows, fetched where it is not in the cache.

    From there on it is a folder like any other, and every check of one is made of it.

    Args:
        with_weights: with weights and tokenizer; else what the checks need.

    Raises:
        UserError: the Hub knows none of that name, or does not answer.
    """
    try:
        return fetch_files(name, WHOLE if with_weights else CHECKED)
    except UserError as error:
        raise UserError(
            f"{name!r} is neither a folder, nor a built-in model "
            f"({', '.join(builtin.NAMES)}), nor could it be fetched from the Hub: {error}; "
            f"{suggest(name, builtin.NAMES)}check the spelling and the network, or give a local "
            "folder"
        ) from error
