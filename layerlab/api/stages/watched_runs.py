"""Runs of one model side by side, in evaluation mode, with a bar on standard error."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from transformers import PreTrainedModel

from layerlab.console.inspection import InspectionBar
from layerlab.console.progress import NullProgress, Progress
from layerlab.system.logs import quiet_libraries
from layerlab.system.torch_settings import evaluation_mode, threads


@contextmanager
def watched_runs(model: PreTrainedModel, *, progress: bool) -> Iterator[Progress]:
    """Make a model ready to be run, with as many threads as it can use, until the block ends."""
    with (
        threads(model.num_parameters()),
        evaluation_mode(model),
        quiet_libraries(),
        InspectionBar() if progress else nullcontext(NullProgress()) as bar,
    ):
        yield bar
