"""Whatever in a task would run code is refused unasked."""

import pytest

from layerlab import UserError
from layerlab.evaluation.lm_eval_tasks.files import Code
from layerlab.system.untrusted.trust import trust

pytest.importorskip("lm_eval")

from layerlab.evaluation.lm_eval_tasks.trusted import check_trusted, is_local
from tests.support.refused import refusal, refuses

PLAIN = {
    "task": "own",
    "dataset_path": "json",
    "dataset_kwargs": {"data_files": {"test": ["a.jsonl", "https://example.org/b.jsonl"]}},
    "metric_list": [{"metric": "acc"}, {"metric": "exact_match"}],
    "generation_kwargs": {"until": ["x"], "do_sample": False, "max_gen_toks": 3},
    "use_prompt": "qa-basic:q-newline-a",
}
RUNS = [
    ({"process_docs": Code("utils.f")}, "process_docs: !function utils.f"),
    ({"metric_list": [{"metric": "acc", "aggregation": Code("os.system")}]}, "!function os.system"),
    ({"class": "Own"}, "class: Own"),
    ({"unsafe_code": True}, "unsafe_code: what the model writes is run"),
    ({"use_prompt": "promptsource:x"}, "use_prompt: promptsource:x"),
    ({"use_prompt": "evil.yaml:x"}, "use_prompt: evil.yaml:x"),
    ({"metric_list": [{"metric": "./evil"}]}, "metric: ./evil, which is loaded from the Hub"),
    ({"metric_list": [{"metric": "acc", "hf_evaluate": True}]}, "metric: acc, which is loaded"),
    ({"generation_kwargs": {"custom_generate": "a/b"}}, "generation_kwargs.custom_generate"),
    ({"dataset_path": "pandas"}, "dataset_path: pandas"),
    ({"dataset_path": "evil.py"}, "dataset_path: evil.py"),
    ({"dataset_path": "ssh://host/x"}, "dataset_path: ssh://host/x"),
    ({"dataset_kwargs": {"trust_remote_code": True}}, "trust_remote_code"),
    ({"task": [{"task": "piqa", "process_docs": Code("a.b")}]}, "!function a.b"),
]


def test_a_plain_task_runs_nothing():
    check_trusted(PLAIN, "it")
    check_trusted({**PLAIN, "dataset_path": "allenai/ai2_arc"}, "it")


@pytest.mark.parametrize(("changes", "why"), RUNS, ids=lambda one: str(one)[:40])
def test_code_is_refused_until_it_is_asked_for(changes, why):
    said = refusal(check_trusted, {**PLAIN, **changes}, "the task file own.yaml")
    assert said.startswith("the task file own.yaml runs code (") and why in said
    assert "nothing runs unasked; read it, and where you trust it type --trust-tasks" in said
    with trust(False, trust_tasks=True):
        check_trusted({**PLAIN, **changes}, "it")
    with pytest.raises(UserError):
        check_trusted({**PLAIN, **changes}, "it")


def test_functions_of_lm_eval_itself_were_installed_with_it():
    check_trusted({**PLAIN, "process_docs": Code("utils.f"), "class": "X"}, "it", installed=True)
    refuses("unsafe_code", check_trusted, {**PLAIN, "unsafe_code": True}, "it", installed=True)


@pytest.mark.parametrize("value", ["zip://x::https://a/b.zip", "ssh://host/file", "/dev/zero"])
def test_data_is_files_or_addresses(value):
    for kwargs in ({"data_files": {"test": [value]}}, {"data_dir": value}):
        with trust(False, trust_tasks=True), pytest.raises(UserError) as caught:
            check_trusted({"task": [{"dataset_kwargs": kwargs}]}, "it")
        said = (
            "expected a file"
            if value.startswith("/")
            else "expected files here, or an https address"
        )
        assert said in str(caught.value)


def test_what_is_read_here_asks_no_hub():
    assert is_local(PLAIN) and not is_local({"dataset_path": "allenai/ai2_arc"})
