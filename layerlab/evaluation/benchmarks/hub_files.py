"""The files of a benchmark from its home on the Hugging Face Hub, as its authors wrote them.

A home that only holds tables in another format is not read: there would be two readers, and two
ways for an option "01" to become another.
"""

from functools import cache
from pathlib import Path

from layerlab.errors import UserError
from layerlab.evaluation.benchmarks.spec import Benchmark
from layerlab.system.hub import hub


def download_benchmark(benchmark: Benchmark) -> Path:
    """Download a benchmark's files from the Hub, or find the copy that is kept here.

    Raises:
        UserError: neither is to be had.
    """
    return _download(str(benchmark.hub), benchmark.hub_files)


# Only what was found is kept, so that a network that comes back is used.
@cache
def _download(name: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    with hub() as why:
        try:
            found = snapshot_download(name, repo_type="dataset", allow_patterns=list(patterns))
        except Exception as error:  # of many kinds: no network, no such name, no permission
            said = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
            raise UserError(
                f"cannot get {name} from the Hub: {why or said}; get it in another way"
            ) from None
    return Path(found)
