"""Numbers of a config.json that change what a model computes, and nothing about its sizes."""

import json
import math
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from layerlab import UserError, builtin
from layerlab.loading.model import load_model
from layerlab.loading.weights.saved import configuration
from layerlab.system.logs import quiet_libraries
from tests.families.recipe import FAMILIES, UNBUILT, build, family_config
from tests.hostile.attack import typed
from tests.support.refused import refuses

READ = ("--measures", "stream", "--samples", "1", "--context", "16", "--json", "--quiet")
LINEAR = {"rope_type": "linear", "rope_theta": 1e4}
# Of those that have mixtures, groups, state spaces and scales.
SWEPT = ("deepseek_v3", "bamba", "codegen", "minicpm3")
VALUES = (math.nan, math.inf, -1, 0, 1e30, -0.5, 10**12, "x")


def changed(folder: Path, name: str, change: Any) -> Path:
    place = Path(shutil.copytree(builtin.path(name), folder / "model"))
    file = place / "config.json"
    own = json.loads(file.read_text("utf-8"))
    file.write_text(change if isinstance(change, str) else json.dumps({**own, **change}), "utf-8")
    return place


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("llama", {"rope_parameters": {**LINEAR, "factor": 0.5}}, "factor is 0.5 in"),
        ("llama", {"rope_parameters": {**LINEAR, "factor": 0}}, "expected a number from 1"),
        ("llama", {"rope_parameters": {"rope_theta": 0}}, "rope_theta is 0 in"),
        ("llama", {"rope_theta": -1.0}, "expected a number above 0"),
        ("llama", {"rope_theta": 500.0}, "rope_theta is 500.0 and 10000.0 and 10000.0 in config"),
        (
            "llama",
            {"rope_scaling": {"type": "linear", "factor": 4.0}},
            "rope_type is 'linear' and 'default' in config.json",
        ),
        ("llama", {"rms_norm_eps": math.nan}, "rms_norm_eps is nan in"),
        ("llama", {"rms_norm_eps": {"__float__": "NaN"}}, "rms_norm_eps is nan in"),
        ("llama", {"rms_norm_eps": -1e-3}, "expected a number from 0 to 1"),
        ("llama", {"rms_norm_eps": 1e10}, "expected a number from 0 to 1"),
        ("llama", {"initializer_range": math.inf}, "expected a finite number"),
        ("llama", {"attention_dropout": 2}, "attention_dropout is 2 in"),
        ("llama", {"num_hidden_layers": 10**12}, "expected a number up to 1,000,000"),
        ("llama", {"mlp_multipliers": [1.0, math.nan]}, "mlp_multipliers is nan in"),
        ("pre-norm", {"resid_pdrop": -0.1}, "expected a share from 0 to 1"),
        ("pre-norm", {"num_attention_heads": 2}, "are two names of one; leave one out"),
        ("pre-norm", '{"model_type": "gpt2", "model_type": "llama"}', "the key 'model_type' twice"),
    ],
)
def test_a_number_that_no_model_computes_with_is_one_line(name, change, said, tmp_path):
    typed("inspect", str(changed(tmp_path, name, change)), *READ).refused(said)


def test_numbers_that_are_meant_so_are_read(tmp_path):
    """A limit may be infinite, a label may be called like a field, a name may stand there twice."""
    change = {
        "time_step_limit": [0.0, math.inf],
        "label2id": {"dropout": 7},
        "rms_norm_eps": 0.0,
        "rope_theta": 1e4,
        "torch_dtype": "float32",
    }
    assert configuration(changed(tmp_path, "llama", change)).rms_norm_eps == 0


def test_what_transformers_does_not_use_of_rotary_positions_is_said_once(tmp_path, caplog):
    parameters = {"rope_type": "default", "rope_theta": 1e4, "factor": 8.0}
    folder = changed(tmp_path, "llama", {"rope_parameters": parameters})
    with quiet_libraries():
        configuration(folder)
        configuration(folder)
    assert caplog.text.count("Unrecognized keys in `rope_parameters` for 'rope_type'='def") == 1


@pytest.mark.full
def test_a_model_that_cannot_be_called_is_one_line(tmp_path):
    build("mixtral").save_pretrained(tmp_path)
    assert load_model(str(tmp_path)).entries == 256
    file = tmp_path / "config.json"
    own = json.loads(file.read_text("utf-8"))
    file.write_text(json.dumps({**own, "num_experts_per_tok": 9}), "utf-8")
    typed("inspect", str(tmp_path), *READ).refused(
        "cannot be called: selected index k out of range; mend its numbers"
    )


def leaves(config: dict[str, Any], path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of all numbers."""
    for name, value in config.items():
        if isinstance(value, dict) and name != "label2id":
            yield from leaves(value, (*path, name))
        elif isinstance(value, list) and value and isinstance(value[0], float):
            yield (*path, name, 0)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            yield (*path, name)


def put(config: dict[str, Any], path: tuple[Any, ...], value: Any) -> dict[str, Any]:
    changed: Any = json.loads(json.dumps(config))
    inner = changed
    for name in path[:-1]:
        inner = inner[name]
    inner[path[-1]] = value
    return changed  # type: ignore[no-any-return]


@pytest.mark.full
def test_no_number_of_any_family_may_be_none(tmp_path):
    """A field of every family is NaN at a time; whatever it does with it, its outputs would be."""
    asked = 0
    with quiet_libraries():
        for family in (one for one in FAMILIES if one not in UNBUILT):
            own = json.loads(family_config(family).to_json_string(use_diff=False))
            for path in leaves(own):
                (tmp_path / "config.json").write_text(json.dumps(put(own, path, math.nan)))
                refuses("is nan in", configuration, tmp_path)
                asked += 1
    assert asked > 3000


@pytest.mark.full
@pytest.mark.parametrize("family", SWEPT)
def test_every_number_of_a_family_is_read_or_one_line(family, tmp_path):
    build(family).save_pretrained(tmp_path)
    file = tmp_path / "config.json"
    own = json.loads(file.read_text("utf-8"))
    for path in leaves(own):
        for value in VALUES:
            file.write_text(json.dumps(put(own, path, value)), "utf-8")
            try:
                model = load_model(str(tmp_path)).model
            except UserError as error:
                assert "\n" not in str(error)
                continue
            with torch.no_grad():  # what fails here would be a traceback of every command
                model(torch.arange(10, 14)[None])
