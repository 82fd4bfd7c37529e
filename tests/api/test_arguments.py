"""What a public function is given is of the kind that it declares, or refused in one line."""

import inspect
import pickle
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from torch import nn

import layerlab
from layerlab.errors import UserError
from layerlab.system.signals import GracefulStop, Stopped
from layerlab.validation import check_arguments
from tests.support.refused import refuses

FUNCTIONS = [name for name in layerlab.__all__ if inspect.isfunction(getattr(layerlab, name))]
# What they need beside the argument that is wrong: names of nothing.
GIVEN: Mapping[str, Any] = {
    **dict.fromkeys("recipe folder idea model name tokenizer corpus".split(), "nothing"),
    **dict.fromkeys("out source benchmark baseline format logs path".split(), "nothing"),
    "size": 10,
    "seeds": [1],
}


def arguments(name: str) -> list[inspect.Parameter]:
    known = inspect.signature(getattr(layerlab, name)).parameters
    return [one for one in known.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize(
    "value",
    [object(), b"bytes", 3 + 1j, [object()], [b"bytes"]],
    ids=["object", "bytes", "complex", "list of objects", "list of bytes"],
)
def test_what_no_argument_can_be_is_refused_by_its_name(name, value):
    function = getattr(layerlab, name)
    known = arguments(name)
    needed = {
        one.name: nn.Identity() if one.annotation is nn.Module else GIVEN[one.name]
        for one in known
        if one.default is one.empty
    }
    for argument in (one.name for one in known if one.annotation is not Any):
        line = refuses("^", function, **{**needed, argument: value})
        assert line.startswith(f"{argument} is "), line
        assert line.endswith(f": type help(layerlab.{name})"), line


Kinds = Mapping[str, tuple[Any, list[Any], list[Any], str]]
KINDS: Kinds = {
    "number": (float | None, [1, 1.5], [True, "1"], "a number or None"),
    "whole": (int | None, [1, None], [1.0, np.float64(1), True], "a whole number or None"),
    "truth": (bool, [True, False], [1, None, "yes"], "True or False"),
    "path": (str | PathLike[str], ["a", Path("a")], [1, b"a", ["a"]], "a text or a path"),
    "list": (Sequence[str], [[], ["a"], ("a",)], [np.zeros(2), [1], {"a"}, "a"], "a list of texts"),
    "any": (
        Iterable[str | PathLike[str]] | None,
        [["a", Path("a")], np.array(["a"]), {"a"}, iter([1]), None],
        [np.zeros(2), [None], 3],
        "a list of texts or paths or None",
    ),
    "table": (Mapping[str, Any], [{}, {"a": object()}], [{1: 2}, [("a", 1)]], "a dict"),
    "word": (Literal["up", "down"], ["up"], ["left", 1], "'up' or 'down'"),
    "call": (Callable[[int], None] | None, [print, None], [3], "a function or None"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_is_of_its_kind_or_the_line_says_which(kind):
    annotation, right, wrong, words = KINDS[kind]

    def take(value=0):
        return value

    take.__annotations__["value"] = annotation
    function = check_arguments(take, "lab.take")
    for value in right:
        assert function(value) is value
    for value in wrong:
        line = refuses("value is ", function, value)
        assert f"expected {words}: type help(lab.take)" in line


def test_numbers_of_numpy_arrive_as_those_of_python():
    def take(value: float, **options: int) -> list[Any]:
        return [value, options["size"]]

    found = check_arguments(take, "lab.take")(np.float32(0.5), size=np.int64(2))
    assert [(one, type(one)) for one in found] == [(0.5, float), (2, int)]
    sizes = dict.fromkeys(("width", "vocab", "context"), np.int64(16))
    assert layerlab.build("llama", layers=1, heads=2, **sizes).config.hidden_size == 16


def test_an_error_names_arguments_where_the_command_line_has_options(tmp_path):
    refuses("type dtype='float32'$", layerlab.inspect, "llama", dtype="bf16", progress=False)
    refuses("type for example formats=.*, backward=True$", layerlab.inspect, backward=True)
    (tmp_path / "log.csv").write_text("step,a,b\n1,2,3\n")
    refuses("; type loss='COLUMN', one of", layerlab.judge, tmp_path / "log.csv")
    refuses("^confidence is 2; expected one between", layerlab.judge, tmp_path, confidence=2.0)


def test_ctrl_c_that_a_loop_has_heard_does_not_end_the_session():
    def stop(number: int) -> None:
        with GracefulStop() as halt:
            signal.raise_signal(number)
            halt.leave()

    function = check_arguments(stop, "lab.stop")
    with pytest.raises(KeyboardInterrupt, match="the same call goes on"):
        function(signal.SIGINT)
    with pytest.raises(Stopped):
        function(signal.SIGTERM)


def test_a_public_function_is_one_object_with_the_signature_of_its_own():
    assert layerlab.train is layerlab.train
    assert pickle.loads(pickle.dumps(layerlab.train)) is layerlab.train
    with pytest.raises(TypeError, match="unexpected keyword argument 'recipes'"):
        layerlab.train(recipes="a.toml")


def test_what_is_declared_as_anything_is_refused_in_a_line_as_well():
    for value in (3, b"x", [], {}, np.zeros(3), object()):
        refuses("^", layerlab.evaluate, "nothing", policy=value)
        refuses("^", layerlab.retrofit, value, "llama")
    refuses("keep of a policy is 3; expected a list", layerlab.Policy, format="bf16", keep=3)
    small = layerlab.build("llama", width=16, layers=1, heads=2, vocab=32, context=8)
    wrong: Any = 3
    refuses("limits=3 are no Limits; type limits=", layerlab.Monitor, small, limits=wrong)
    refuses(
        "attention_mask cannot be made", layerlab.inspect, input_ids=[[1, 2]], attention_mask={}
    )


def test_errors_of_a_function_itself_pass():
    def fail(value: int) -> None:
        raise UserError(f"{value} is too small")

    refuses("3 is too small", check_arguments(fail, "lab.fail"), 3)
