"""A stranger's generation_config.json changes no answer, and ends in no traceback."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import layerlab
from layerlab import UserError
from tests.evaluation.candidate import WRITTEN, candidate, question, task_folder

pytest.importorskip("lm_eval")

STEERING: dict[str, Any] = {
    "time": {"max_time": 1e-9},
    "words": {"bad_words_ids": [[1]], "suppress_tokens": [*range(3, 300)]},
    "length": {"max_length": 5, "max_new_tokens": 2},
    "watermark": {"watermarking_config": {"bias": 2.5}},
    "contrast": {"penalty_alpha": 0.6, "top_k": 4},
    "beams": {"num_beams": 64},
    "sequences": {"num_return_sequences": 5, "do_sample": True},
    "stops": {"stop_strings": ["a"]},
    "cache": {"cache_implementation": "offloaded"},
    "dict": {"return_dict_in_generate": True},
    "bias": {"sequence_bias": [[[7], 50.0]]},
}


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model and a task whose answers are written."""
    folder = tmp_path_factory.mktemp("stranger")
    subject = candidate(512)
    assert subject.tokenizer is not None
    subject.model.save_pretrained(folder / "model")
    subject.tokenizer.save_pretrained(folder / "model")
    task_folder(folder / "task", [question(n) for n in range(7)], kind=WRITTEN, shots=1)
    return folder


def answers(stranger: Path, out: Path, settings: Any) -> tuple[list[Any], list[str]]:
    """What the model wrote, and the remarks."""
    model = out / "candidate"
    shutil.copytree(stranger / "model", model)
    (model / "generation_config.json").write_text(json.dumps(settings))
    found = layerlab.evaluate(
        str(model),
        tasks=str(stranger / "task" / "own.yaml"),
        out=out / "out",
        progress=False,
        trust_tasks=True,
        batch_size=2,
    )
    (samples,) = (out / "out" / "samples").iterdir()
    return samples.read_text().splitlines(), found.content["remarks"]


# What a stranger's model is likeliest to set; the others are a sweep.
LIKELY = {"time", "length", "beams", "sequences"}


@pytest.fixture(scope="module")
def plain(stranger: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    found, remarks = answers(stranger, tmp_path_factory.mktemp("plain"), {"eos_token_id": 0})
    assert len(found) == 2 and remarks == []
    return found


@pytest.mark.parametrize(
    "name",
    [pytest.param(one, marks=[pytest.mark.full] * (one not in LIKELY)) for one in STEERING],
)
def test_settings_change_no_answer(name, stranger, plain, tmp_path):
    found, remarks = answers(stranger, tmp_path, {"eos_token_id": 0, **STEERING[name]})
    assert found == plain
    (remark,) = remarks
    assert remark.startswith("candidate: its own settings of generation are not used: ")
    assert all(one in remark for one in STEERING[name])


def test_an_end_of_text_is_a_token(stranger, tmp_path):
    with pytest.raises(UserError, match="eos_token_id is 'x' in the model's generation_config"):
        answers(stranger, tmp_path, {"eos_token_id": "x"})


def test_the_end_of_text_of_a_model_counts(stranger, plain, tmp_path):
    ends = {"eos_token_id": [*range(300)]}
    assert answers(stranger, tmp_path, ends)[0] != plain
