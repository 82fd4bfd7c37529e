import json
import os
import signal
import time
from dataclasses import replace
from functools import wraps

import pandas as pd
import pytest
import torch
from transformers import AutoModelForCausalLM

from layerlab.console.progress import Progress
from layerlab.errors import DamageWarning, Interrupted, UserError
from layerlab.loading.model import load_model
from layerlab.measures import kept_readings
from layerlab.measures.kept_readings import (
    FOLDER,
    MONTH,
    KeptReadings,
    ReadingStore,
    keep_readings,
)
from layerlab.measures.quantities.weights import matrices
from layerlab.measures.runner import readings
from layerlab.plugins import resolve
from layerlab.records.kept import read_kept, write_kept
from layerlab.system.signals import Stopped
from tests.measures.asked import subject
from tests.measures.family import built
from tests.support.refused import refuses

TOKENS = [torch.arange(2, 12), torch.arange(5, 15)]
# All but the stream, which takes no time, are kept.
NAMES = ["spectrum", "stream", "querykey"]
# The dimension pools tokens.
MANY = [*NAMES, "gain", "dimension", "attention", "lipschitz"]


class Own(torch.nn.Linear):
    """Code that nothing is known of."""


class Steps(Progress):
    """Counts records that are read or passed over, and is interrupted at one of them."""

    def __init__(self, last: int = -1, error: BaseException | None = None) -> None:
        self.count, self.last, self.error = 0, last, error or KeyboardInterrupt()

    def step(self, now: str = "", steps: int = 1) -> None:
        if self.count == self.last:
            raise self.error
        self.count += 1


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(kept_readings, "SHORT", 0.0)
    return tmp_path / "cache" / FOLDER


@pytest.fixture
def saved(tiny, tmp_path):
    def save(family: str = "llama") -> str:
        folder = tmp_path / f"model-{family}"
        tiny(family).save_pretrained(folder)
        return str(folder)

    return save


def read(model, names=NAMES, last=-1, error=None, tokens=TOKENS, **options):
    """Inspect, and return the readings with the number of records that were really read."""
    measures = [one.given(**options.get(one.name, {})) for one in resolve(names)]
    asked = []

    def count(one):
        return wraps(one.read)(lambda *given: (asked.append(one.name), one.read(*given))[1])

    measures = [replace(one, read=count(one)) for one in measures]
    with keep_readings(typed=True) as store:
        loaded = load_model(model)
        kept = store.open(loaded, tokens, measures)
        found = readings(loaded, tokens, measures, Steps(last, error), kept=kept)
    return found, asked


def interrupt(model, last, error=None, **given) -> None:
    with pytest.raises(Interrupted, match="interrupted; what was read is kept"):
        read(model, last=last, error=error, **given)


def assert_same(one, other) -> None:
    assert one.rows.keys() == other.rows.keys()
    for name, rows in one.rows.items():
        pd.testing.assert_frame_equal(
            pd.DataFrame(rows), pd.DataFrame(other.rows[name]), check_exact=True
        )
    for name in ("refused", "notes", "pictures", "loss_nats", "faults"):
        assert json.dumps(getattr(one, name)) == json.dumps(getattr(other, name))


def test_what_was_read_before_an_interruption_is_not_read_again(saved, cache):
    model = saved()
    whole, asked = read(model)
    assert not list(cache.glob("*"))  # nothing stays of what is whole
    interrupt(model, 8)
    assert len(list(cache.iterdir())) == 1
    again, less = read(model)
    assert_same(again, whole)
    assert less.count("stream") == asked.count("stream")
    assert less.count("stream") < len(less) < len(asked)
    assert not list(cache.iterdir())


@pytest.mark.full
@pytest.mark.parametrize("family", ["llama", "gpt2", "gpt_oss", "mixtral", "bloom", "deepseek_v3"])
def test_wherever_it_is_interrupted_the_readings_are_the_same(tmp_path, family):
    built(family).save_pretrained(tmp_path / "model")
    model = str(tmp_path / "model")
    steps = Steps()
    loaded = load_model(model)
    whole = readings(loaded, TOKENS, resolve(MANY), steps)
    for last in range(1, steps.count, 7):
        with pytest.raises((Interrupted, KeyboardInterrupt)):  # before or after the first reading
            read(model, MANY, last)
        assert_same(read(model, MANY)[0], whole)


@pytest.mark.full
def test_each_expert_has_rows_of_its_own(tmp_path):
    built("mixtral").save_pretrained(tmp_path / "model")
    names = ["matrices"]
    whole, asked = read(str(tmp_path / "model"), names, tokens=[])
    loaded = load_model(str(tmp_path / "model"))
    assert_same(whole, readings(loaded, [], resolve(names)))
    interrupt(str(tmp_path / "model"), 9, names=names, tokens=[])
    again, less = read(str(tmp_path / "model"), names, tokens=[])
    assert len(less) == len(asked) - 9
    assert_same(again, whole)


@pytest.mark.full
def test_a_matrix_whose_row_was_cut_off_is_drawn_once(saved, monkeypatch):
    model, dead = saved(), matrices.dead
    whole, _ = read(model, ["matrices"], tokens=[])
    count = iter(range(100))

    def stop(*given):  # behind the picture, in front of the row
        if next(count) == 5:
            raise KeyboardInterrupt
        return dead(*given)

    with monkeypatch.context() as patch:
        patch.setattr(matrices, "dead", stop)
        interrupt(model, -1, names=["matrices"], tokens=[])
    assert_same(read(model, ["matrices"], tokens=[])[0], whole)


@pytest.mark.full
def test_what_the_first_text_shows_holds_for_the_others(tmp_path):
    built("llama").to(torch.bfloat16).save_pretrained(tmp_path / "model")
    steps, loaded = Steps(), load_model(str(tmp_path / "model"))
    whole = readings(loaded, TOKENS, resolve(["gain"]), steps)
    for last in range(2, steps.count):
        interrupt(str(tmp_path / "model"), last, names=["gain"])
        assert_same(read(str(tmp_path / "model"), ["gain"])[0], whole)


def test_a_short_inspection_leaves_the_readings_of_a_longer_one(saved, cache):
    model = saved()
    interrupt(model, 8)
    _, asked = read(model, ["querykey"])
    assert "querykey" in asked and list(cache.iterdir())
    _, asked = read(model)
    assert asked.count("spectrum") < len(TOKENS) * len(load_model(model).stack.attentions)


def test_code_that_is_not_of_the_package_is_not_kept(saved, cache):
    own = replace(*resolve(["spectrum"]), read=lambda layer, run: [])
    loaded = load_model(saved())
    assert ReadingStore().open(loaded, TOKENS, [own]).file is None
    loaded.model.lm_head = Own(8, 8)
    assert ReadingStore().open(loaded, TOKENS, resolve(NAMES)).file is None


def test_files_are_known_by_more_than_their_time(saved, tmp_path):
    model, inside = saved(), tmp_path / "model-llama" / "parts" / "one.safetensors"
    inside.parent.mkdir()
    names = {ReadingStore().open(load_model(model), TOKENS, resolve(NAMES)).file}
    for content in ("a", "b"):
        inside.write_text(content)
        os.utime(inside, (1, 1))
        names.add(ReadingStore().open(load_model(model), TOKENS, resolve(NAMES)).file)
    assert len(names) == 3


def test_what_another_process_removed_is_not_said_to_be_kept(saved, cache):
    loaded = load_model(saved())
    kept = ReadingStore().open(loaded, TOKENS, resolve(NAMES))
    readings(loaded, TOKENS, resolve(NAMES), kept=kept)
    assert kept.save()
    next(cache.iterdir()).unlink()
    assert not kept.save()


@pytest.mark.full
def test_several_interruptions_add_up(saved):
    model = saved()
    whole, asked = read(model)
    for last in (4, 8, 11):
        interrupt(model, last)
    again, less = read(model)
    assert_same(again, whole)
    assert less.count("spectrum") < asked.count("spectrum")


@pytest.mark.parametrize(
    "other", [{"tokens": [TOKENS[0], TOKENS[1] + 1]}, {"spectrum": {"dtype": "float64"}}]
)
def test_another_text_and_other_options_are_read_anew(saved, other):
    model = saved()
    interrupt(model, 8)
    _, asked = read(model, **other)
    assert asked.count("spectrum") == len(TOKENS) * len(load_model(model).stack.attentions)


@pytest.mark.full
def test_another_model_under_the_same_name_is_read_anew(saved, tiny):
    model = saved()
    interrupt(model, 8)
    changed = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        changed.model.layers[0].self_attn.q_proj.weight.mul_(2)
    changed.save_pretrained(model)
    found, _ = read(model)
    assert_same(found, readings(load_model(model), TOKENS, resolve(NAMES)))


@pytest.mark.few(1)
@pytest.mark.parametrize("content", ["", "{", '{"rows": 3}', '{"rows": {}, "beside": {}}'])
def test_a_damaged_file_is_read_past_in_one_line(saved, cache, content):
    model = saved()
    interrupt(model, 8)
    (file,) = cache.iterdir()
    file.write_text(content)
    with pytest.warns(UserWarning, match="does not count: "):
        found, _ = read(model)
    assert found.rows["spectrum"] and not file.exists()


@pytest.mark.few(1)
@pytest.mark.parametrize("change", [{"head": "gone"}, {"norm": "words"}, {"norm": [1, 2]}])
def test_rows_with_other_columns_are_read_past(saved, cache, change):
    model = saved()
    whole, _ = read(model, ["spectrum"])
    interrupt(model, 3, names=["spectrum"])
    (file,) = cache.iterdir()
    kept = read_kept(file)
    for rows in kept["rows"].values():
        for row in rows:
            row |= change
            {key: row.pop(key) for key, value in change.items() if value == "gone"}
    write_kept(file, kept)
    with pytest.warns(DamageWarning, match="does not count: spectrum has other columns"):
        again, _ = read(model, ["spectrum"])
    assert_same(again, whole)


def test_an_error_says_that_readings_are_kept(saved, cache):
    given = (saved(), NAMES, 7, UserError("too much"))
    said = refuses("^too much; what was read before is kept", read, *given)
    assert said.endswith("with the same measures not read again") and list(cache.iterdir())


def test_models_that_were_finished_before_another_fails_are_not_read_again(saved, cache):
    first, second = saved(), saved("gpt2")
    with pytest.raises(Interrupted), keep_readings(typed=True):
        read(first)
        read(second, last=7)
    assert len(list(cache.iterdir())) == 2
    with keep_readings():
        _, asked = read(first)
        assert set(asked) == {"stream"} and len(list(cache.iterdir())) == 2
    assert len(list(cache.iterdir())) == 1


@pytest.mark.parametrize("error", [ZeroDivisionError(), MemoryError()])
def test_an_error_that_nobody_foresaw_stays_and_the_readings_too(saved, cache, error):
    with pytest.raises(type(error)):
        read(saved(), last=7, error=error)
    assert list(cache.iterdir())


def test_a_signal_keeps_its_code(saved):
    with pytest.raises(Interrupted) as caught:
        read(saved(), last=7, error=Stopped(128 + signal.SIGTERM))
    assert caught.value.code == 128 + signal.SIGTERM


def test_what_python_calls_is_stopped_by_the_interruption_itself(saved, cache):
    with pytest.raises(KeyboardInterrupt), keep_readings():
        read(saved(), last=7)
    assert list(cache.iterdir())


def test_what_took_no_time_and_what_is_in_memory_is_not_kept(saved, tiny, cache, monkeypatch):
    in_memory = ReadingStore().open(subject(tiny("llama")), TOKENS, resolve(NAMES))
    assert in_memory.file is None and not in_memory.save()
    monkeypatch.setattr(kept_readings, "SHORT", 60.0)
    with pytest.raises(KeyboardInterrupt):
        read(saved(), last=7)
    assert not cache.exists()


@pytest.mark.full
def test_readings_are_saved_now_and_then_for_a_process_that_is_killed(saved, cache, monkeypatch):
    monkeypatch.setattr(kept_readings, "PAUSE", 0.0)
    monkeypatch.setattr(kept_readings, "SHARE", float("inf"))
    model = saved()
    loaded = load_model(model)
    kept = ReadingStore().open(loaded, TOKENS, resolve(NAMES))
    readings(loaded, TOKENS, resolve(NAMES), kept=kept)
    found = KeptReadings(kept.file)
    assert found.found == kept._saved > 3
    _, asked = read(model)
    assert "spectrum" not in asked and "querykey" not in asked


def test_a_folder_that_cannot_be_written_ends_no_inspection(saved, cache, monkeypatch):
    monkeypatch.setattr(kept_readings, "PAUSE", 0.0)
    cache.parent.mkdir()
    cache.write_text("in the way")
    found, _ = read(saved())
    assert found.rows["spectrum"] and cache.read_text() == "in the way"


def test_a_cache_that_cannot_be_looked_into_ends_no_inspection(saved, tmp_path, monkeypatch):
    model = saved()
    monkeypatch.setenv("LAYERLAB_CACHE", str(tmp_path / ("long" * 100)))
    found, _ = read(model)
    assert found.rows["spectrum"]


@pytest.mark.full
def test_what_nobody_came_back_for_goes_after_a_month(saved, cache):
    model = saved()
    interrupt(model, 7)
    (old,) = cache.iterdir()
    before = time.time() - MONTH
    os.utime(old, (before + 60, before + 60))
    with torch.no_grad():
        read(model, tokens=TOKENS[:1])
    assert old.exists()
    os.utime(old, (before - 60, before - 60))
    read(model, tokens=TOKENS[:1])
    assert not old.exists()
