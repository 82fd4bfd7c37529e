"""What a stranger's model brings along and computes: chat templates, and rules of tokenizers."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from layerlab import UserError, builtin
from layerlab.adaptation.sft.chat_template import PLAIN
from layerlab.adaptation.sft.conversations import Conversation, Turn
from layerlab.adaptation.sft.dataset import prepare_dataset
from layerlab.recipes.adaptation_sections import SftSection
from layerlab.system.untrusted import limits
from layerlab.tokenization.convert import load_or_convert
from tests.evaluation.written import lines
from tests.hostile.attack import typed

LOOP = "{% for a in range(99999) %}" * 3 + "{% endfor %}" * 3
TEMPLATES = [
    pytest.param("{{ '{:>9999999999}'.format(1) }}", "takes over 1 GiB", id="width"),
    pytest.param("{{ 'a' * 10000000000 }}", "takes over 1 GiB", id="times", marks=pytest.mark.full),
    pytest.param(LOOP, "takes over 3 s", id="loop", marks=pytest.mark.full),
    pytest.param("{{ 2**(2**40) }}", "takes over 3 s", id="power", marks=pytest.mark.full),
    ("{{ raise_exception('\x1b[31mno') }}", "refuses a question:  [31mno; use another"),
    ("{{ '\ud800' }}", "half of a surrogate pair"),
    ("{{ ''.__class__.__mro__ }}", "refuses a question: access to attribute '__class__'"),
    ("{% include '/etc/passwd' %}", "refuses a question: no loader"),
    ("{{ " + "(" * 100_000, "refuses a question: maximum recursion depth exceeded"),
]


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return Path(shutil.copytree(builtin.path("llama"), "model"))


def changed(path: Path, **fields: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text("utf-8")), **fields}), "utf-8")


@pytest.mark.full
@pytest.mark.parametrize(("template", "said"), TEMPLATES)
def test_a_chat_template(template, said, model, monkeypatch):
    """Those that need no limit are told in seconds; those that do, when it is reached."""
    monkeypatch.setattr(limits, "SECONDS", 3)
    changed(model / "tokenizer_config.json", chat_template=template)
    row = {"question": "is 2 even", "passage": "The number 2.", "label": True}
    lines(Path("data/superglue/BoolQ/val.jsonl"), row)
    words = ("--suite", "boolq", "--chat", "--quiet", "--data", "data")
    typed("evaluate", "model", *words).refused(said)


READS = [
    ("inspect", "model", "--measures", "stream", "--samples", "1", "--context", "16", "--quiet"),
    ("train", "smoke", "--plan", "--quiet", "--set", 'data.tokenizer="model"'),
]


@pytest.mark.full
@pytest.mark.parametrize("words", READS)
@pytest.mark.parametrize("rules", ["normalizer", "decoder"])
def test_rules_that_double_a_text_forty_times(rules, words, model):
    twice = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
    own = json.loads((model / "tokenizer.json").read_text("utf-8"))[rules]
    sequence = {"type": "Sequence", f"{rules}s": [*filter(None, [own]), *[twice] * 40]}
    changed(model / "tokenizer.json", **{rules: sequence})
    done = typed(*words)
    assert done.code == 2 and "takes over 1 GiB for 20,000 characters" in done.err
    assert done.err.count("\n") == 1


@pytest.mark.full
@pytest.mark.parametrize("words", READS)
def test_a_vocabulary_that_is_numbered_without_measure(words, model):
    whole = json.loads((model / "tokenizer.json").read_text("utf-8"))["model"]
    longest = max(whole["vocab"], key=len)
    changed(model / "tokenizer.json", model={**whole, "vocab": {**whole["vocab"], longest: 10**9}})
    typed(*words).refused("entries and one with the number 1,000,000,000")


def test_a_length_that_is_no_number(model):
    changed(model / "tokenizer_config.json", model_max_length="x")
    typed(*READS[0]).refused("cannot read the text")


@pytest.mark.full
def test_a_template_that_knows_its_first_trial(model, monkeypatch):
    """It takes nothing for the two turns of a first trial, and too much for any row."""
    monkeypatch.setattr(limits, "SECONDS", 2)
    loop = f"{{% if messages[0].content != 'Hello!' %}}{LOOP}{{% endif %}}"
    changed(model / "tokenizer_config.json", chat_template=PLAIN + loop)
    rows = [
        Conversation((Turn("user", f"Is {number} even?"), Turn("assistant", "Yes.")))
        for number in range(4)
    ]
    with pytest.raises(UserError, match="the chat template takes over 2 s for 4 of the rows"):
        prepare_dataset(load_or_convert(str(model)), {"own": rows}, SftSection(), 64)
