"""One thread, no network, and the few models that tests share."""

import gc
import math
import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.update(
    HF_HUB_OFFLINE="1",
    TRANSFORMERS_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    TOKENIZERS_PARALLELISM="false",
    # One for all tests, in nobody's home.
    LAYERLAB_CACHE=os.environ.get("LAYERLAB_CACHE")
    or str(Path(tempfile.gettempdir()) / f"layerlab-tests-{os.getuid()}"),
    OMP_NUM_THREADS="1",
    MKL_NUM_THREADS="1",
    # Before anything imports triton, as transformers does: a CPU interprets its kernels.
    TRITON_INTERPRET="0" if Path("/proc/driver/nvidia").exists() else "1",
    # A child process runs the working tree, from whatever folder it is started in.
    PYTHONPATH=os.pathsep.join(
        [str(Path(__file__).resolve().parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    ),
)

import hypothesis
import pytest

from tests.support.forked import BEFORE, READY

# torch and transformers are imported by the tests that need them: the process of xdist that hands
# out the tests runs none, and would take five seconds for it before any other begins.
if TYPE_CHECKING:
    from transformers import PreTrainedModel

# To compile the tests, and layerlab in each child process, is half of what it takes to begin: what
# is compiled is kept beside the sources (`make clean` removes it), whatever the shell prefers.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# Timings never decide a test: a busy machine takes its time.
hypothesis.settings.register_profile("house", deadline=None)
hypothesis.settings.register_profile("few", deadline=None, max_examples=10)
hypothesis.settings.load_profile("house")

ROOT = Path(__file__).resolve().parents[1]

# Two layers, two heads, width 16: large enough for every code path, small enough to build at will.
TINY = {
    "gpt2": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "openai-gpt": {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 64},
    "llama": {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    },
}


def read_part(text: str) -> tuple[int, int]:
    """Return which of how many parts `text` asks for: 2 and 4 of "2/4"."""
    own, parts = (int(number) for number in text.split("/"))
    if not 1 <= own <= parts:
        raise ValueError(text)
    return own, parts


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--sweeps",
        default=(1, 1),
        type=read_part,
        metavar="PART/PARTS",
        help="Of sweeps and studies, one part: 2/4 runs every fourth from the second on.",
    )


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start the servers of processes once for all workers, where all tests are asked for.

    A few of them may need none.
    """
    if node.config.args_source is pytest.Config.ArgsSource.TESTPATHS:
        node.workerinput["servers"] = [one.share() for one in (READY, BEFORE)]


def pytest_configure(config: pytest.Config) -> None:
    shared = getattr(config, "workerinput", {}).get("servers", [])
    for server, found in zip((READY, BEFORE), shared, strict=False):
        server.join(*found)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_report_teststatus(
    report: pytest.TestReport, config: pytest.Config
) -> Generator[None, tuple[str, str, str], tuple[str, str, str]]:
    """Name a test that fails at once: a run that is cut off never comes to its summary."""
    category, letter, word = yield
    if letter == "F":
        letter = f"\n{report.nodeid} failed\n"
    return category, letter, word


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Hardly anything is garbage before the first test, and what is there then stays.

    To look through it for garbage took a fifth of a collection, and it takes a second in a test.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


# Examples of a property in `make test`, and where hypothesis has the settings of a test.
EXAMPLES, DRAWN = 25, "_hypothesis_internal_use_settings"
CASES = 8  # in `make test`, of a test of a variant under many options
# `make test` takes these of all variants and families, `make sweeps` the others.
VARIANTS = {"llama", "gpt2", "gpt1", "pangu-pi", "history-5", "hyper-connections", "mhc", "canon"}
FAMILIES = {
    "llama",
    "gpt2",
    "openai-gpt",
    "mixtral",
    "mamba",
    "qwen3",
    "gemma3_text",
    "deepseek_v3",
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave what is tried on every variant or family to `make sweeps`, but for a few of them.

    And of what is drawn, all but the first examples; `.ci/run` draws them all in its part.
    """
    own, parts = config.option.sweeps
    brief = str(config.option.markexpr).endswith("and not full")
    for place, item in enumerate(items):
        drawn = getattr(getattr(item, "obj", None), DRAWN, None)
        many = drawn is not None and drawn.max_examples > EXAMPLES
        if many and (brief or place % parts != own - 1) and not item.get_closest_marker("full"):
            setattr(item.obj, DRAWN, hypothesis.settings(drawn, max_examples=EXAMPLES))
        given = getattr(getattr(item, "callspec", None), "params", {})
        family, name = given.get("family"), given.get("name")
        swept = item.path.name == "test_families.py" and family not in {None, *FAMILIES}
        laws = "model" in item.path.parts and isinstance(name, str)
        if swept or (laws and name not in VARIANTS):
            item.add_marker("full")
        if item.get_closest_marker("gpu") and not has_gpu():
            item.add_marker(pytest.mark.skip(reason="no GPU"))
    for item in spare_cases(items):
        item.add_marker("full")
    left_out = set(leave_parts(items, own, parts))
    config.hook.pytest_deselected(items=list(left_out))
    items[:] = [item for item in items if item not in left_out]


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def spare_cases(items: list[pytest.Item]) -> Iterator[pytest.Item]:
    """Of what is tried in many cases, all but a few of them, spread evenly.

    So are tests with the mark `few`, and those of a variant under many options.
    """
    cases: dict[tuple[Path, str], list[pytest.Item]] = defaultdict(list)
    for item in items:
        marked = item.get_closest_marker("few") or "variants" in item.path.parts
        if marked and hasattr(item, "callspec"):
            cases[item.path, item.name.partition("[")[0]].append(item)
    for (_, name), found in cases.items():
        mark = found[0].get_closest_marker("few")
        # All laws take half a second.
        kept = mark.args[0] if mark else 1 if "laws" in name else CASES
        step = math.ceil(len(found) / kept)
        yield from (item for place, item in enumerate(found) if place % step)


def leave_parts(items: list[pytest.Item], own: int, parts: int) -> Iterator[pytest.Item]:
    """Of sweeps and studies, all that are of other parts; each has its share of a test's cases.

    What is fuzzed is in each part.
    """
    sweeps = [
        item
        for item in items
        if any(map(item.get_closest_marker, ("full", "study")))
        and not item.get_closest_marker("fuzz")
    ]
    yield from (item for place, item in enumerate(sweeps) if place % parts != own - 1)


@pytest.fixture(scope="session")
def tiny() -> "Callable[..., PreTrainedModel]":
    """A fresh tiny model with random weights, the same ones each time: `tiny("gpt2")`."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def build(family: str, **changes: object) -> "PreTrainedModel":
        options = {"vocab_size": 64, "bos_token_id": 0, "eos_token_id": 0, **TINY[family]}
        config = AutoConfig.for_model(family, **{**options, **changes})
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return AutoModelForCausalLM.from_config(config).eval()

    return build


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """layerlab's cache, in a folder of this test's own."""
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def cached(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of a module's own, with layerlab's cache in it."""
    folder = tmp_path_factory.mktemp("module")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LAYERLAB_CACHE", str(folder / "cache"))
        yield folder


@pytest.fixture(scope="session")
def data() -> Path:
    """The folder of shared data; tests that need it are skipped where it is absent."""
    folder = Path(os.environ.get("LAYERLAB_DATA") or ROOT.parent / "shared" / "data")
    if not folder.is_dir():
        pytest.skip(f"no shared data: set LAYERLAB_DATA, or put it at {folder}")
    return folder
