"""Settings that a run was started with, where a file beside its log has them."""

from pathlib import Path
from typing import Any

from layerlab.errors import UserError
from layerlab.records.parse import read_json
from layerlab.records.settings import flatten
from layerlab.system.files import read_whole

# As trainers and trackers leave them; W&B keeps its own below files/.
BESIDE = (
    *("config.json", "args.json", "training_args.json", "hparams.json", "params.json"),
    *("config.yaml", "hparams.yaml", "args.yaml", "files/config.yaml"),
)
# Names under which W&B hides what it knows by itself.
HIDDEN = ("_wandb", "wandb_version")


def read_configuration(log: Path) -> dict[str, Any]:
    """Return the settings of the files beside a log, by their paths; empty without one.

    Raises:
        UserError: one of them cannot be read.
    """
    folder = log.parent
    found: dict[str, Any] = {}
    for name in BESIDE:
        file = folder / name
        if file.is_file() and file != log:
            found |= _read(file)
    return found


def _read(file: Path) -> dict[str, Any]:
    try:
        content = _yaml(file) if file.suffix == ".yaml" else read_json(file)
        return dict(flatten(_unwrap(content))) if isinstance(content, dict) else {}
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(
            f"{file} lies beside a log and cannot be read: {' '.join(str(error).split())[:200]}; "
            "mend or move it"
        ) from None


def _yaml(file: Path) -> Any:
    import yaml

    from layerlab.data.bounded_yaml import BoundedLoader, check_repeats

    try:
        content = yaml.load(read_whole(file), Loader=BoundedLoader)
    except Exception as error:  # PyYAML lets pass whatever a value of a wrong kind brings about
        raise ValueError(str(error)) from None
    check_repeats(content)
    return content


def _unwrap(value: Any) -> Any:
    """Return settings without what W&B wraps each in: its value, and a description."""
    if not isinstance(value, dict):
        return value
    if "value" in value and set(value) <= {"value", "desc"}:
        return _unwrap(value["value"])
    return {str(key): _unwrap(one) for key, one in value.items() if key not in HIDDEN}
