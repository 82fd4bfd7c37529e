"""The tasks in lm-eval itself, without anything of ours around it but the exported files."""

import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from layerlab import UserError
from layerlab.evaluation.benchmarks.catalog import BENCHMARKS, find_benchmark
from layerlab.evaluation.metrics.matthews import matthews
from layerlab.evaluation.tasks.configs import export_tasks, group_config, task_configs, ways
from layerlab.evaluation.tasks.docs import COLUMNS, splits
from layerlab.evaluation.tasks.process_results import correlation
from layerlab.evaluation.tasks.prompts import Manner
from tests.evaluation.exported import exported, managed
from tests.evaluation.written import boolq, exam, financeiq, lines
from tests.support.refused import refusal, refuses

lm_eval = pytest.importorskip("lm_eval")


WAYS = [(one, way) for one in BENCHMARKS.values() for way in ("", *ways(one))]


def test_tasks_that_are_marked_otherwise_than_before_have_another_version():
    law = find_benchmark("lawbench")
    versions = {one["metadata"]["subject"]: one["metadata"]["version"] for one in task_configs(law)}
    assert {name for name, version in versions.items() if version != 1.0} == {
        *("1-1", "2-1", "2-7", "3-2", "3-8")
    }
    assert set(versions.values()) == {1.0, 1.1} and group_config(law)["metadata"]["version"] == 1.2


@pytest.mark.few(6)
@pytest.mark.parametrize(("benchmark", "way"), WAYS, ids=lambda one: getattr(one, "name", one))
def test_the_files_say_what_layerlab_asks(benchmark, way):
    """A group of files changes its tasks as the dicts are changed."""
    from lm_eval.tasks._yaml_loader import load_yaml

    own = exported() / benchmark.name
    group = load_yaml(own / f"_{way or 'group'}.yaml", resolve_func=True)
    (changes,) = ({}, *(one for one in group["task"] if isinstance(one, dict)))[-1:]
    assert changes.pop("group", benchmark.task) == benchmark.task
    for subject, config in zip(benchmark.subjects, task_configs(benchmark, way), strict=True):
        leaf = load_yaml(own / f"{subject.name}.yaml", resolve_func=True)
        assert {**leaf, **changes} == config


def test_every_benchmark_is_a_group_of_its_leaves():
    manager = managed()
    for benchmark, way in WAYS:
        assert group_config(benchmark, way)["group"] in manager.all_groups
        leaves = {benchmark.leaf(subject) for subject in benchmark.subjects}
        assert leaves <= set(manager.all_subtasks)
    variants = [name for name in manager.all_groups if name.endswith(("_gen", "_cot"))]
    assert len(variants) == 7 and len(manager.all_groups) == len(WAYS)


@pytest.mark.full
def test_tasks_are_written_over_tasks_only(tmp_path):
    export_tasks(tmp_path / "tasks")
    assert export_tasks(tmp_path / "tasks") == tmp_path / "tasks"
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "notes.txt").write_text("mine")
    refuses("own", export_tasks, tmp_path / "own")
    assert (tmp_path / "own" / "notes.txt").read_text() == "mine"


@pytest.fixture(scope="module")
def engine() -> Any:
    """A random Llama with a vocabulary of bytes, handed to lm-eval in memory."""
    import torch
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: place for place, letter in enumerate(["<s>", *alphabet])}
    bytes_ = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    bytes_.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytes_.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=bytes_, bos_token="<s>", eos_token="<s>", pad_token="<s>"
    )
    size = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
    config = LlamaConfig(
        vocab_size=len(vocabulary), num_hidden_layers=1, max_position_embeddings=2048, **size
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForCausalLM(config)
    return HFLM(pretrained=model, tokenizer=tokenizer, batch_size=4)


@pytest.fixture(autouse=True)
def unasked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine asks the machine for its packages after every run, which takes seconds."""
    monkeypatch.setattr("lm_eval.evaluator.add_env_info", lambda results: None)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty data folder, from which every reader here reads."""
    monkeypatch.setenv("LAYERLAB_DATA", str(tmp_path))
    yield tmp_path


def run(engine: Any, name: str, changes: dict[str, Any] | None = None, **options: Any) -> Any:
    """`lm-eval run` as its API has it."""
    manager = managed(**(changes or {}))
    return lm_eval.simple_evaluate(
        engine, tasks=[name], task_manager=manager, bootstrap_iters=0, log_samples=True, **options
    )


def every_financeiq(folder: Path, answers: str = "ABC") -> None:
    for subject in find_benchmark("financeiq").subjects:
        financeiq(folder, subject.file, answers)


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_financeiq_runs_through_plain_lm_eval(engine, folder):
    every_financeiq(folder)
    found = run(engine, "layerlab_financeiq")
    leaves = [find_benchmark("financeiq").leaf(one) for one in find_benchmark("financeiq").subjects]
    scores = [found["results"][leaf]["score,none"] for leaf in leaves]
    mean = found["groups"]["layerlab_financeiq"]["score,none"]
    assert mean == pytest.approx(sum(scores) / 10, abs=1e-12)
    sample = found["samples"][leaves[0]][1]
    header = "以下是关于注册会计师（CPA）的单项选择题，请直接给出正确答案的选项。\n\n"
    shots = [f"题目：例{place}\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案是：C\n\n" for place in range(5)]
    asked = "题目：问1\nA. 01\nB. 1.50\nC. NA\nD. None\n答案是："
    contexts = [argument[0] for argument in sample["arguments"]]
    assert set(contexts) == {header + "".join(shots) + asked}
    assert [argument[1] for argument in sample["arguments"]] == list("ABCD")
    likelihoods = [response[0][0] for response in sample["resps"]]
    right = likelihoods.index(max(likelihoods)) == 1
    assert sample["score"] == float(right)


@pytest.mark.filterwarnings("ignore")
def test_boolq_runs_through_plain_lm_eval_twice_alike(engine, folder):
    boolq(folder, *["true", "false"] * 3)
    once, again = run(engine, "layerlab_boolq"), run(engine, "layerlab_boolq")
    assert once["results"] == again["results"]
    (leaf,) = once["samples"]
    assert leaf == "layerlab_boolq_all"
    marks = [sample["score"] for sample in once["samples"][leaf]]
    assert once["results"][leaf]["score,none"] == pytest.approx(sum(marks) / 6)
    (ctx, choice), _ = once["samples"][leaf][0]["arguments"]
    assert ctx + choice == "The number 0.\nQuestion: is 0 even?\nAnswer: No"


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_whole_texts_are_asked_for_by_the_metadata(engine, folder):
    boolq(folder, "true", "false")
    found = run(engine, "layerlab_boolq_all", {"scoring": "mean_nll"})
    (sample, _) = found["samples"]["layerlab_boolq_all"]
    texts = [f"The number 0.\nQuestion: is 0 even?\n{answer}" for answer in ("No", "Yes")]
    assert [tuple(argument) for argument in sample["arguments"]] == [("", text) for text in texts]


@pytest.mark.filterwarnings("ignore")
def test_a_benchmark_without_examples_shows_none_whoever_asks(engine, folder):
    boolq(folder, "true", "false")
    found = run(engine, "layerlab_boolq_all", num_fewshot=1)
    assert found["n-shot"] == {"layerlab_boolq_all": 0}
    context = found["samples"]["layerlab_boolq_all"][0]["arguments"][0][0]
    assert context == "The number 0.\nQuestion: is 0 even?\nAnswer:"


@pytest.mark.filterwarnings("ignore")
def test_ax_b_gives_a_correlation_beside_its_accuracy(engine, folder):
    labels = ["entailment", "not_entailment"] * 3
    rows = [
        {"label": label, "sentence1": f"A{place}.", "sentence2": "B."}
        for place, label in enumerate(labels)
    ]
    lines(folder / "superglue/AX-b/AX-b.jsonl", *rows)
    found = run(engine, "layerlab_ax_b_all")
    samples, numbers = found["samples"]["layerlab_ax_b_all"], found["results"]["layerlab_ax_b_all"]
    pairs = [sample["mcc"] for sample in samples]
    assert [right for right, _ in pairs] == [0, 1] * 3
    for (right, likely), sample in zip(pairs, samples, strict=True):
        likelihoods = [response[0][0] for response in sample["resps"]]
        assert likely == likelihoods.index(max(likelihoods))
        assert sample["score"] == float(right == likely)
    assert numbers["mcc,none"] == matthews(*zip(*pairs, strict=True))
    assert correlation([(0, 0), (1, 1), (0, 1), (1, 1)]) == pytest.approx(1 / math.sqrt(3))


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_financeiq_is_answered_in_words(engine, folder):
    every_financeiq(folder, "AB")
    found = run(engine, "layerlab_financeiq_gen", limit=1, gen_kwargs="max_gen_toks=4")
    assert set(found["groups"]["layerlab_financeiq_gen"]) >= {"score,none", "abstained,none"}
    (sample,) = found["samples"]["layerlab_financeiq_economic_analyst"]
    context, options = sample["arguments"][0]
    assert options["max_gen_toks"] == 4
    assert context.endswith("题目：问0\nA. 01\nB. 1.50\nC. NA\nD. None\n答案是：")
    marks = found["results"]["layerlab_financeiq_economic_analyst"]
    assert marks["score,none"] + marks["abstained,none"] <= 1


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_fineval_reasons_as_its_examples_do(engine, folder):
    for subject in find_benchmark("fineval").subjects:
        exam(folder, "fineval", subject.file, "A")
    found = run(engine, "layerlab_fineval_cot", gen_kwargs="max_gen_toks=4")
    (sample,) = found["samples"]["layerlab_fineval_tax_law"]
    context = sample["arguments"][0][0]
    header, first = context.split("\n\n")[:2]
    assert header == "以下是中国关于税法考试的单项选择题，请选出其中的正确答案。"
    asked = "例0\nA. 甲\nB. 乙\nC. 丙\nD. 丁\n答案：让我们一步一步思考，\n"
    assert first == f"{asked}1. 因为0\n所以答案是B。"
    assert context.endswith("D. None\n答案：让我们一步一步思考，\n")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "path", "row", "metrics"),
    [
        (
            "layerlab_agieval_math",
            "agieval/v1/math.jsonl",
            {"passage": "", "question": "q", "options": None, "label": None, "answer": "2"},
            {"score", "abstained"},
        ),
        (
            "layerlab_xsum_all",
            "xsum/dev.jsonl",
            {"dialogue": "a long text", "summary": "a text"},
            {"score", "rouge_l", "abstained"},
        ),
    ],
)
def test_free_answers_are_marked(engine, folder, name, path, row, metrics):
    lines(folder / path, row)
    found = run(engine, name, gen_kwargs="max_gen_toks=4")["results"][name]
    assert {metric for metric in metrics if 0 <= found[f"{metric},none"] <= 1} == metrics


@pytest.mark.full
@pytest.mark.filterwarnings("ignore")
def test_lcsts_is_marked_over_words_of_jieba(engine, folder):
    pytest.importorskip("jieba")
    (folder / "lcsts").mkdir()
    (folder / "lcsts/test.src.txt").write_text("央行今日宣布下调存款准备金率。\n", "utf-8")
    (folder / "lcsts/test.tgt.txt").write_text("央行降准\n", "utf-8")
    found = run(engine, "layerlab_lcsts_all", gen_kwargs="max_gen_toks=4")
    found = found["results"]["layerlab_lcsts_all"]
    assert all(0 <= found[f"{name},none"] <= 1 for name in ("score", "rouge_2", "rouge_l"))


@pytest.mark.filterwarnings("ignore")
def test_missing_data_reach_the_user_as_one_line(engine, folder):
    refuses("FinanceIQ is not here: expected", run, engine, "layerlab_financeiq")


def test_a_document_is_the_same_wherever_the_data_lie(tmp_path):
    found = []
    for name in ("here", "there"):
        exam(tmp_path / name, "ceval", "law")
        found.append(splits("ceval", "law", Manner(), tmp_path / name))
    assert found[0] == found[1]
    assert {*found[0]} == {"test", "dev"}
    assert {*found[0]["test"][0]} == {*COLUMNS}
    assert found[0]["test"][0]["place"] == "law_val.csv, line 2"
    assert [one["letters"] for one in found[0]["test"]] == list("ABCD")


def test_explanations_that_are_not_there_are_one_line(tmp_path):
    assert refusal(splits, "mmlu", "anatomy", Manner(cot=True), tmp_path) == (
        "the examples of MMLU come without explanations; leave --cot out, or name C-Eval or FinEval"
    )
    exam(tmp_path, "ceval", "law")
    examples = tmp_path / "ceval" / "dev" / "law_dev.csv"
    examples.write_text(examples.read_text("utf-8").replace("1. 因为0", ""), "utf-8")
    with pytest.raises(UserError, match=r"line 2 has no explanation; leave --cot out, or copy the"):
        splits("ceval", "law", Manner(cot=True), tmp_path)
