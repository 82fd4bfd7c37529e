"""Two thousand hostile inputs over all commands: values of every option, and files of every kind.

Each is a command that would do its small work, with one or two of its words exchanged for a hostile
one. Whatever it is, the command ends soon, in words, and leaves nothing half-written.
"""

import io
import json
import lzma
import os
import random
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM
from typer.main import get_command

import layerlab
from layerlab import builtin
from layerlab.cli.app import app
from layerlab.cli.ledger import CODES
from tests.evaluation.written import lines
from tests.hostile.attack import Ended, typed

EACH = 90  # inputs of a command
MEMORY = 2 * 2**30
ESC = "a\x1b[31mb\x1b]0;owned\x07"
# Each command with its smallest work, as (words, options).
WORK: dict[str, tuple[list[str], dict[str, str]]] = {
    "inspect": (
        ["llama"],
        {"--measures": "stream", "--samples": "1", "--context": "16", "--out": "new"},
    ),
    "variants": (["llama"], {}),
    "retrofit": (["llama"], {"--out": "new"}),
    "gap": (["shallow"], {"--samples": "1", "--context": "8", "--b": "autocast-bf16"}),
    "precision": (["shallow"], {"--samples": "1", "--context": "8", "--out": "new.toml"}),
    "train": (["smoke"], {"--plan": "", "--out": "new"}),
    "compare": (["arms.toml"], {"--plan": "", "--out": "new"}),
    "judge": (["log.csv"], {"--out": "new"}),
    "ledger new": (["new"], {"--baseline": "plain"}),
    "ledger add": (["ledger", "c"], {"--seeds": "1,2", "--says": "wider"}),
    "ledger judge": (["ledger", "b", "log.csv"], {}),
    "ledger status": (["ledger"], {}),
    "runs": (["run"], {"--html": "new"}),
    "study": (["rounding-input"], {"--fast": "", "--out": "new"}),
    "evaluate": (["llama"], {"--suite": "boolq", "--data": "data", "--limit": "1", "--out": "new"}),
    "doctor": ([], {}),
    "adapt": (["adapted.toml"], {"--plan": "", "--out": "new"}),
    "adapt clean": (["rows.jsonl"], {"--out": "new"}),
    "adapt contamination": (["text.txt"], {"--benchmark": "rows.json"}),
    "adapt catalogue": ([], {}),
    "adapt vocabulary": (
        [],
        {"--tokenizer": "llama", "--corpus": "text.txt", "--size": "+2", "--out": "new"},
    ),
    "adapt embed": (
        ["llama"],
        {"--tokenizer": "llama", "--text": "text.txt", "--context": "32", "--out": "new"},
    ),
    "bench latency": (
        ["llama"],
        {"--context": "4", "--new": "2", "--repetitions": "1", "--threads": "1"},
    ),
}
# What they do is as asked: a browser, all studies, code that somebody trusts.
ASKED = {"--open", "--all", "--trust-remote-code", "--trust-recipe", "--help"}
WORDS = [
    *("", " ", "-", "--", "=", "a=b", "0", "-1", "1", "2.5", "1e400", "nan", "-inf", "9" * 400),
    *("true", "None", "llama", "cuda:99", "meta", "complex64", "int4", "bf16,bf16,nope", "all"),
    *(ESC, "\u202eevil", "\n\n", "的" * 50, "x" * 5000, "../../x", "~nobody/x", "%s%n", "{{7*7}}"),
    *("/dev/zero", "/dev/null/x", "/proc/self/mem", "hf:no/such", "http://[", "a/b/c/d"),
    *("train.max_steps=[[[[", "train.max_steps=" + "9" * 400, f"name={ESC}", "model.variant={}"),
    *("data.sources=[{}]", "run.device=[1]", "compare.arms=3", "extends=self.toml", "a.b.c.d=1"),
    *("shortcut.r=" + "9" * 400, "a={[]}", "activation.T=nan", "norm=" + ESC),
]
RECIPES = {
    "arms.toml": 'extends = "smoke"\n[compare]\narms = [{name = "a"}, {name = "b"}]\n',
    "self.toml": 'extends = "self.toml"\n',
    "loads.toml": 'extends = "smoke"\nmodel.load = ["raises.py"]\n',
    "wrong.toml": 'extends = "smoke"\n[train]\nmax_steps = nan\n[model]\nvariant = 3\n',
    "named.toml": f"name = {json.dumps(ESC)}\nextends = {json.dumps(ESC)}\n",
    "deep.toml": "a = " + "[" * 20_000,
    "digits.toml": "[train]\nmax_steps = " + "9" * 5000,
    "tables.toml": "".join(f"[t{place}]\n" for place in range(9999)),
    "formats.toml": 'format = "nope"\nkeep = [3]\n',
}
# Every section of a recipe of adaptation, on a model that is planned in a moment.
ADAPTED = """
[base.recipe]
name = "general"
model = {variant = "pangu-pi", width = 16, layers = 2, heads = 2, context = 64}
data = {sources = [{text = "text.txt"}], vocab_size = 300, block_size = 16}
train = {tokens = 600, batch_size = 2}
[data]
domain = [{text = "text.txt", limit = 3_000}]
general = [{text = "text.txt"}]
[clean]
general = false
[vocabulary]
size = "+20"
[embedding]
input = "mean"
[pretrain]
tokens = 400
ratio = [1, 1]
batch_size = 2
block_size = 16
seeds = [1, 2]
[sft]
batch_size = 2
block_size = 32
sources = [{name = "rows", path = "rows.json"}]
[evaluate]
suite = "boolq"
limit = 1
[[arm]]
name = "replay"
[[arm]]
name = "no replay"
set = {"pretrain.ratio" = [1, 0]}
"""
FILES: dict[str, bytes] = {
    "empty.txt": b"",
    "latin.txt": "d\xe9j\xe0 vu".encode("latin-1"),
    "zeros.txt": bytes(5000),
    f"{ESC}.txt": b"A text.",
    "marks.txt": ("e" + "\u0301\u0316" * 9000).encode(),
    "long.jsonl": b'{"text": "' + b"x" * 3_000_000 + b'"}',
    "deep.json": b"[" * 20_000,
    "keys.jsonl": json.dumps({ESC: ESC, "text": ESC}).encode() * 3,
    "half.jsonl": rb'{"text": "\ud83d", "question": "\ud83d"}',
    "odd.jsonl": b'{"text": 3}\n[]\nnull\n',
    "broken.parquet": b"PAR1" + bytes(99) + b"PAR1",
    "broken.txt.gz": b"\x1f\x8b" + bytes(99),
    "broken.zip": b"PK\x03\x04" + bytes(99),
    "broken.tar.xz": lzma.compress(bytes(9999))[:-9],
    "raises.py": b"raise RuntimeError('\\x1b[31mno')",
    "exits.py": b"import sys; sys.exit(0)",
    "syntax.py": b"def (:",
    "results.json": b'{"arms": [], "benchmarks": []}',
}


def shallow(name: str) -> None:
    """Save one block of a built-in model: a policy is searched for in every one."""
    model = AutoModelForCausalLM.from_pretrained(builtin.path("llama"))
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1
    model.save_pretrained(name)
    for file in builtin.path("llama").glob("tokenizer*"):
        shutil.copy(file, name)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder of hostile files, which is the working directory."""
    folder = tmp_path_factory.mktemp("hostile")
    before = Path.cwd()
    os.chdir(folder)
    for name, text in RECIPES.items():
        Path(name).write_text(text, "utf-8")
    for name, content in FILES.items():
        Path(name).write_bytes(content)
    Path("adapted.toml").write_text(ADAPTED, "utf-8")
    shallow("shallow")
    Path("text.txt").write_text("A text of some words.\n\nAnother of some more.\n" * 9)
    parts = builtin.SAMPLE.read_text("utf-8").split("\n\n")
    readings = [f"{arm},{seed},9,3.{seed}" for arm in "ab" for seed in range(3)]
    Path("log.csv").write_text("\n".join(["arm,seed,step,loss", *readings]))
    layerlab.create_ledger("kept", baseline="a")
    layerlab.add_idea("kept", "b", says="An idea.", seeds=[0, 1, 2])
    lines(Path("rows.jsonl"), *({"text": one} for one in parts if len(one) > 200))
    Path("rows.json").write_text(json.dumps([{"question": "Which one of these?", "A": "x"}]))
    os.mkfifo("pipe.txt")
    Path("loop.txt").symlink_to("loop.txt")
    Path("gone.txt").symlink_to("nowhere")
    lines(
        Path("data/superglue/BoolQ/val.jsonl"),
        {"question": "is 2 even", "passage": "The number 2.", "label": True},
    )
    for name, change in CONFIGURATIONS.items():
        shutil.copytree(builtin.path("llama"), name)
        config = json.loads(Path(name, "config.json").read_text("utf-8"))
        Path(name, "config.json").write_text(json.dumps({**config, **change}), "utf-8")
    Path("run").mkdir()
    for name in ("result.json", "manifest.json", "comparison.json", "stage.json", "report.json"):
        Path("run", name).write_text("{}")
    yield folder
    os.chdir(before)


CONFIGURATIONS: dict[str, dict[str, Any]] = {
    "layers": {"num_hidden_layers": 10**6},
    "width": {"hidden_size": -1},
    "code": {"auto_map": {"AutoConfig": "x.Y", "AutoModelForCausalLM": "x.Z"}},
    "kind": {"model_type": ESC},
}


def inputs(name: str) -> list[list[str]]:
    """What is tried of a command: the same each time, and as much of everything."""
    group: Any = get_command(app)
    words, options = WORK[name]
    for part in name.split():
        group = group.commands[part]
    found: Any = group.commands["recipe"] if name == "adapt" else group
    flags = [one.opts[0] for one in found.params if getattr(one, "is_flag", False)]
    valued = [one.opts[0] for one in found.params if one.opts[0].startswith("--")]
    valued = [one for one in valued if one not in {*flags, *ASKED}]
    files = [*RECIPES, *FILES, *CONFIGURATIONS, "pipe.txt", "loop.txt", "gone.txt", "run", "data"]
    draw = random.Random(name)
    tried = []
    for _ in range(EACH):
        value = draw.choice([*WORDS, *files])
        given, positional = dict(options), list(words)
        place = draw.choice([*valued, *["" for _ in words]] or [""])
        if place:
            given[place] = value
        elif draw.random() < 0.8:
            positional = [value]
        else:
            positional.append(value)
        if valued and draw.random() < 0.3:
            given[draw.choice(valued)] = draw.choice([*WORDS, *files])
        if flags and draw.random() < 0.3:
            given.update({one: "" for one in draw.sample(flags, 1) if one not in ASKED})
        told = [[one] if one in flags else [one, given[one]] for one in given]
        tried.append([*name.split(), *positional, *(word for pair in told for word in pair)])
    return tried


def peak() -> int:
    """The most memory this process has had since it was asked last, in bytes."""
    status = Path("/proc/self/status").read_text()
    most = int(status.split("VmHWM:")[1].split()[0]) * 1024
    Path("/proc/self/clear_refs").write_text("5")
    return most


def restore() -> None:
    """Give the commands of a ledger one in which nothing was done yet."""
    shutil.rmtree("ledger", ignore_errors=True)
    shutil.copytree("kept", "ledger")


def entries() -> set[str]:
    return {one.name for one in Path().iterdir()}


def check(done: Ended, words: list[str]) -> None:
    done.survived()
    if done.code == 2:
        last = done.err.splitlines()[-1]
        assert last.startswith("layerlab: "), done.err
        assert len(last) < 2200
    steering = [one for one in done.out + done.err if not one.isprintable() and one not in "\n\t"]
    assert not steering, (steering[:5], words)


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="reads a process's memory as Linux tells it")
@pytest.mark.parametrize("name", WORK)
def test_whatever_is_typed_ends_in_words(name, place, monkeypatch):
    restore()
    before = entries()
    peak()
    start = peak()
    wrong = []
    for words in inputs(name):
        restore()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"A text of some words.")))
        try:
            done = typed(*words)
            check(done, words)
            new = entries() - before
            assert not (done.code == 2 and new), new
            assert not [one for one in new if one.startswith(".") or "partial" in one], new
        except BaseException as error:
            wrong.append((words, repr(error)[:1500]))
        for one in entries() - before:
            shutil.rmtree(one) if Path(one).is_dir() else Path(one).unlink()
    grown = peak() - start
    assert not wrong, f"{len(wrong)}: {wrong[:3]}"
    assert grown < MEMORY, f"{grown:,} bytes"


@pytest.mark.full
@pytest.mark.parametrize("name", WORK)
def test_without_a_hostile_word_it_does_its_work(name, place):
    restore()
    words, options = WORK[name]
    done = typed(
        *name.split(), *words, *(word for pair in options.items() for word in pair if word)
    )
    assert done.code in {0, 1, *CODES.values()}, done.err
    for one in (Path("new"), Path("new.toml")):
        shutil.rmtree(one) if one.is_dir() else one.unlink(missing_ok=True)


def test_every_command_is_tried():
    """And two thousand inputs are."""
    group: Any = get_command(app)
    known = set()
    for name, one in group.commands.items():
        inner = getattr(one, "commands", {})
        known |= {f"{name} {part}" for part in inner} - {"adapt recipe"} or {name}
        known |= {name} if name == "adapt" else set()
    assert known == set(WORK)
    assert EACH * len(WORK) >= 2000
