"""The folder of somebody who reads the pages: what their commands name, all of it small.

Texts, rows and questions are of our own making, in the published formats; the two models have
random weights. `benchmarks` is also the data folder (`LAYERLAB_DATA`).
"""

import io
import json
import random
import re
import tarfile
from pathlib import Path
from pydoc_data.topics import topics

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from layerlab.evaluation.benchmarks.catalog import find_benchmark
from layerlab.tokenization.load import train_tokenizer
from tests.evaluation.lawbench.conftest import ANSWERS
from tests.evaluation.written import boolq, exam, financeiq, lines

ROOT = Path(__file__).resolve().parents[2]
DATA = "benchmarks"
LAW = (
    ("The buyer", "A seller", "The court", "An heir", "The tenant", "Each party", "A debtor"),
    ("owes", "may claim", "must return", "shall deliver", "can refuse", "loses", "keeps"),
    ("the price", "damages", "the contract", "an appeal", "the goods", "a deposit", "interest"),
    ("within", "after", "for", "before", "at the end of", "during", "not later than"),
)
UNITS = ("days", "months", "years", "weeks", "hours")
# What the packaged adaptation is tuned on.
ROWS = ("disc-lawllm/qa_short_answer", "disc-finllm/consulting_part", "disc-finllm/computing_part")
TEMPLATE = (
    "{% for one in messages %}{{ one['role'] }}: {% generation %}{{ one['content'] }}"
    "{{ eos_token }}{% endgeneration %}{% endfor %}"
)


def reader(folder: Path) -> None:
    """Fill a folder."""
    own_task(folder)
    _texts(folder)
    _models(folder)
    _questions(folder / DATA)
    _course(folder / DATA)


def own_task(folder: Path) -> None:
    """The two files of the task that docs/evaluation.md shows."""
    page = (ROOT / "docs" / "evaluation.md").read_text("utf-8")
    for name in ("colours.yaml", "colours.jsonl"):
        (content,) = re.findall(rf"`{name}`:\n\n```text\n(.*?)^```$", page, re.M | re.S)
        (folder / name).write_text(content, "utf-8")


def _texts(folder: Path) -> None:
    """Law is made up, a document a sentence or two; general text is a page of Python's help."""
    draw = random.Random(0)
    law = [" ".join(_sentence(draw) for _ in range(draw.randint(2, 4))) for _ in range(80)]
    lines(folder / "law.jsonl", *({"text": one} for one in law))
    (folder / "law.txt").write_text("\n".join(law) + "\n", "utf-8")
    (folder / "general.txt").write_text(topics["with"] + topics["for"], "utf-8")
    (folder / "terms.txt").write_text("contract\nappeal\n", "utf-8")
    for name in ("law", "general"):
        lines(folder / f"{name}-rows.jsonl", *_rows(name))


def _sentence(draw: random.Random) -> str:
    who, does, what, when = (draw.choice(part) for part in LAW)
    return f"{who} {does} {what} {when} {draw.randint(2, 90)} {draw.choice(UNITS)}."


def _rows(name: str) -> list[dict[str, str]]:
    return [{"instruction": f"Is {name} {one}?", "output": f"It is {one}."} for one in range(6)]


def _words() -> PreTrainedTokenizerFast:
    found = train_tokenizer([" ".join(part) for part in LAW], 300)
    found.chat_template = TEMPLATE
    return found


def _models(folder: Path) -> None:
    words = _words()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        made = {
            "my/model": LlamaForCausalLM(_llama()),
            "adapted": LlamaForCausalLM(_llama()),
            "llama": LlamaForCausalLM(_llama()),
            "gpt2": GPT2LMHeadModel(_gpt2()),
        }
    for name, model in made.items():
        _brief(model)
        model.save_pretrained(folder / name)
        words.save_pretrained(folder / name)
    (folder / "MODEL").symlink_to("llama")
    # What a course has finished in one of the two folders is finished in the other.
    (folder / "adaptations").mkdir()
    (folder / "layerlab-adaptations").symlink_to("adaptations")


def _brief(model: PreTrainedModel) -> None:
    """Make the end the likeliest token everywhere, so that a written answer takes one step."""
    rows, head = model.get_input_embeddings().weight, model.get_output_embeddings().weight
    end = model.config.eos_token_id
    with torch.no_grad():
        rows[:, 0] += 1.0
        head[end, 0] = 2.0


def _llama() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=300,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=2048,  # lm-eval leaves 1,024 of them to an answer of LawBench
        bos_token_id=0,
        eos_token_id=0,
    )


def _gpt2() -> GPT2Config:
    return GPT2Config(
        vocab_size=300,
        n_embd=16,
        n_layer=1,
        n_head=2,
        n_positions=1024,
        bos_token_id=0,
        eos_token_id=0,
        tie_word_embeddings=False,
    )


def _questions(data: Path) -> None:
    boolq(data, True, False)
    for subject in find_benchmark("financeiq").subjects:
        financeiq(data, subject.file, "AB")
    exam(data, "ceval", find_benchmark("ceval").subjects[0].file, "AB")
    rows = [{"goal": f"Open {one}", "sol1": "Pull.", "sol2": "Push."} for one in range(2)]
    lines(data / "piqa" / "valid.jsonl", *rows)
    (data / "piqa" / "valid-labels.lst").write_text("0\n1\n", "utf-8")
    for number, answers in ANSWERS.items():
        asked = [
            {"instruction": "请回答。", "question": f"问{one}", "answer": answer}
            for one, answer in enumerate(answers)
        ]
        _json(data / "lawbench" / "zero_shot" / f"{number}.json", asked)


def _course(data: Path) -> None:
    """What the packaged adaptation reads."""
    for name in ROWS:
        _json(data / "zh-sft" / f"{name}.json", _rows(name))
    text = data / "zh-general" / "cn_wiki_sample.txt"
    text.parent.mkdir(parents=True)
    text.write_text("一条河流入大海。\n\n小鸟在林中歌唱。\n", "utf-8")
    write_jec_qa(
        data, {"question": "甲能否上诉？", "options": ["(A)能", "(B)不能"], "label": ["A"]}
    )


def write_jec_qa(data: Path, question: object) -> None:
    """JEC-QA in its own form, of one question in each part."""
    content = json.dumps(question, ensure_ascii=False).encode()
    (data / "agieval").mkdir()
    with tarfile.open(data / "agieval" / "agieval-v1.tar.gz", "w:gz") as archive:
        for name in ("v1/jec-qa-kd.jsonl", "v1/jec-qa-ca.jsonl"):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def _json(file: Path, content: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content, ensure_ascii=False), "utf-8")
