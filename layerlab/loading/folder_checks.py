"""Refuses folders that hold no model, or two; without torch, so that it costs no time."""

import shlex
from pathlib import Path

from layerlab.errors import UserError
from layerlab.loading.packed.gguf import ENDING
from layerlab.records.checkpoint_names import ADAPTER

CONFIG = "config.json"
LEARNED = "adapter_model.safetensors"  # the weights of an adapter
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")


def is_adapter(folder: Path) -> bool:
    """Return whether a folder holds an adapter, and no weights of a model that is named there."""
    if (folder / CONFIG).is_file() and any(
        file.name != LEARNED for file in folder.glob("*.safetensors")
    ):
        return False
    return (folder / ADAPTER).is_file()


def check_weights(folder: Path) -> None:
    """Refuse a folder without weights that are safe to read.

    Raises:
        UserError: no config.json, no weights, only pickled ones, or an adapter beside them.
    """
    check_single(folder)
    if any(folder.glob("*.safetensors")):
        return
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        raise UserError(
            f"{str(folder)!r} has only pickled weights ({pickles[0]}), which can run code when "
            "read; save them with model.save_pretrained(FOLDER) in a place that you trust"
        )
    if any(folder.glob("*.distcp")):
        raise UserError(
            f"{str(folder)!r} has the parts of processes (*.distcp) and no *.safetensors; join "
            "them: accelerate merge-weights FOLDER OUT"
        )
    raise UserError(
        f"{str(folder)!r} has a config.json but no weights; expected *.safetensors beside it"
        f"{_suggest_inside(folder)}"
    )


def check_single(folder: Path) -> None:
    """Refuse a folder that holds no model, or an adapter beside it.

    Raises:
        UserError: there is no config.json, or there is an adapter.
    """
    if not (folder / CONFIG).is_file():
        if (folder / ADAPTER).is_file():
            raise UserError(f"{str(folder)!r} holds an adapter ({ADAPTER}); expected a whole model")
        raise UserError(
            f"{str(folder)!r} has no config.json; expected a saved transformers model"
            f"{_suggest_inside(folder)}"
        )
    if (folder / ADAPTER).is_file():
        raise UserError(
            f"an adapter ({ADAPTER}) lies beside the model in {str(folder)!r}, and nothing says "
            "which of the two is meant; move it away, or merge it: PeftModel.merge_and_unload()"
        )


def _suggest_inside(folder: Path) -> str:
    """Return, as the end of an error, which folder or file inside may have been meant."""
    kinds = (CONFIG, ADAPTER)
    models = sorted({str(path.parent) for kind in kinds for path in folder.glob(f"*/{kind}")})
    models += sorted(str(path) for path in folder.glob(f"*{ENDING}"))
    return f": type {shlex.quote(models[0])}" if models else ""
