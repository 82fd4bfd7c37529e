"""Names and files that `--tasks` asks for, checked without lm-eval."""

from importlib.util import find_spec
from pathlib import Path

from layerlab.errors import UserError
from layerlab.evaluation.lm_eval_tasks.declarations import check_name
from layerlab.evaluation.lm_eval_tasks.files import ENDINGS, read_task_file
from layerlab.validation import short_repr


def check_tasks(names: str) -> None:
    """Refuse files that cannot be read and names that lm-eval has not, before it is imported.

    Raises:
        UserError: as `split_tasks`, `read_task_file` and `check_name`.
    """
    for word in split_tasks(names):
        if is_file(word):
            read_task_file(Path(word))
        elif find_spec("lm_eval"):  # where it is missing, what is said is how to install it
            check_name(word)


def split_tasks(names: str) -> list[str]:
    """Return the tasks that are named, with commas between.

    Raises:
        UserError: none is.
    """
    given = [word.strip() for word in names.split(",") if word.strip()]
    if not given:
        raise UserError(
            f"no task is named in {short_repr(names)}; type for example --tasks arc_easy"
        )
    return given


def is_file(word: str) -> bool:
    """Return whether a task is named by its file.

    Example:
        >>> is_file("my_task.yaml"), is_file("arc_easy")
        (True, False)
    """
    return word.endswith(ENDINGS) or "/" in word
