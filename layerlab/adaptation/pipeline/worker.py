"""One of the processes of a stage: `python -m layerlab.adaptation.pipeline.worker FOLDER`.

The folder says which stage of which recipe; what comes of it lies in the stage's own folder, and
what the stage leaves for its result beside the request.
"""

import json
import os
import sys
import time
from pathlib import Path

from layerlab.errors import UserError
from layerlab.records.parse import read_json
from layerlab.records.run_files import RECIPE
from layerlab.system.files import write_file
from layerlab.system.logs import show_warnings
from layerlab.system.untrusted.trust import take_grants
from layerlab.training.worker import PARENT, WRONG, follow_parent

STAGE, TOLD, LEFT, REFUSED = "request.json", "told.json", "left.json", "refused.txt"
IMPORTED = "layerlab.adaptation.pipeline.run_stage"  # before a process begins its work
OFTEN = 0.5  # seconds between two lines of progress


class ProgressFile:
    """Leaves the newest line of progress where the one who started the processes reads it."""

    def __init__(self, file: Path) -> None:
        self.file, self._next = file, 0.0

    def tell(self, text: str, share: float) -> None:
        """Write a line, unless the one before it is very new."""
        if (now := time.monotonic()) >= self._next:
            self._next = now + OFTEN
            write_file(self.file, json.dumps([text, share]))


def main(arguments: list[str]) -> int:
    """Carry out a stage together with other processes; return the exit code.

    0: it is finished. 2: a user has to mend something, which a file says: the last line may be that
    of a process that missed this one. 1: another process is gone.
    """
    show_warnings(lambda line: print(line, file=sys.stderr, flush=True))
    follow_parent(os.environ.get(PARENT))
    folder = Path(arguments[0])
    try:
        _carry(folder)
    except UserError as error:
        print(error, file=sys.stderr, flush=True)
        write_file(folder / REFUSED, str(error))
        return WRONG
    except RuntimeError as error:
        from layerlab.system.hardware import is_process_lost  # late: the threads are set

        if not is_process_lost(error):
            raise
        print("another process has ended, or said nothing for too long", file=sys.stderr)
        return 1
    return 0


def _carry(folder: Path) -> None:
    # Late: the number of threads is in the environment before torch is imported.
    import torch

    from layerlab.adaptation.pipeline.run_stage import STEPS, StageContext
    from layerlab.adaptation.pipeline.stage import PROCESSOR, Stage, StageStore
    from layerlab.plugins import load_files
    from layerlab.recipes.adaptation import make_recipe
    from layerlab.system.torch_settings import usual_arithmetic

    take_grants()
    request, rank = read_json(folder / STAGE), int(os.environ["RANK"])
    recipe = make_recipe(read_json(folder / RECIPE), str(folder / RECIPE))
    load_files(request["load"], [request["model"]])
    progress = ProgressFile(folder / TOLD)
    context = StageContext(
        recipe=recipe,
        stage=Stage(**request["stage"]),
        store=StageStore(Path(request["store"])),
        tell=progress.tell,
        rank=rank,
    )
    with usual_arithmetic():
        left = STEPS[context.stage.kind](context)
    if rank == 0:
        left[PROCESSOR] = time.process_time()
        write_file(folder / LEFT, json.dumps(left, ensure_ascii=False) + "\n")
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
