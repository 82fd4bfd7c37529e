"""Names of measures: what is known is read, what is not is told with what to write."""

import pytest

from layerlab import UserError
from layerlab.recipes.compared_measures import (
    PEAKS,
    check_measure,
    is_scored,
    is_watched,
    parse_measure,
)
from layerlab.recipes.training import load_recipe
from layerlab.training.monitor.readings import WORST
from tests.support.refused import refuses
from tests.training.support.drawn import recipe


def test_every_form_is_read():
    assert parse_measure("steps:2.5").loss == 2.5 and not is_watched("steps:2.5")
    assert parse_measure("peak:score").reading == "score" and is_watched("peak:score")
    assert parse_measure("spikes").kind == "spikes" and check_measure("gradient") == "gradient"
    assert parse_measure("suite:piqa").name == "piqa" and not is_watched("suite:piqa")
    assert parse_measure("suite: a/own.yaml").key == "suite:own.yaml"
    assert parse_measure("suite:a/own.yaml, b/two.yaml,piqa").key == "suite:own.yaml,two.yaml,piqa"
    assert parse_measure("command:a/own").key == "command:a/own"
    assert parse_measure("command:own").scored and not parse_measure("steps:2").scored
    assert is_scored("command:own") and not is_scored("loss") and not is_scored("peak:score")
    assert set(WORST) < set(PEAKS)  # what a monitor keeps the largest of


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("stps:2", 'write "steps:2.5"'),
        ("steps:", 'write the loss to reach, as "steps:2.5"'),
        ("steps:-1", "write the loss to reach"),
        ("steps:nan", "write the loss to reach"),
        ("steps:inf", "write the loss to reach"),
        ("peak:scor", 'write "peak:score"'),
        ("peak:", "the readings are score"),
        ("spike", 'write "spikes"'),
        ("spikes:3", 'write "spikes"'),
        ("suite:", 'write its name, as "suite:piqa"'),
        ("suite: ", 'write its name, as "suite:piqa"'),
        ("suite:a\0.yaml", 'write its name, as "suite:piqa"'),
        ("command:", 'write its name, as "command:NAME"'),
        ("suit:piqa", 'write "suite:piqa"'),
        ("loss", 'write "steps:2.5"'),
        ("", 'write "steps:2.5"'),
    ],
)
def test_what_is_no_measure_is_one_line(name, said):
    assert said in refuses("is no measure of a comparison", recipe, measures=[name])


def test_what_a_monitor_reads_needs_one():
    refuses(r"write \[monitor\] interval = 10", recipe, measures=["steps:2", "spikes"])
    assert recipe(measures=["steps:2"]).compare.measures == ("steps:2",)


RUN = {"run": ["python", "score.py", "{model}"]}


def test_a_command_that_is_a_measure_is_declared_and_told_its_model():
    found = recipe(measures=["command:own"], commands={"own": RUN}).compare
    assert found.scored == ("command:own",) and found.is_higher_better("command:own")
    assert not found.is_higher_better("loss") and not found.is_higher_better("steps:2")
    with pytest.raises(UserError, match="there is no such command; did you mean 'own'") as told:
        recipe(measures=["command:owm"], commands={"own": RUN})
    assert "write [compare.commands.owm] with run" in str(told.value)
    claim = {"source": "Own", "statement": "a", "relation": "better", "arm": "gpt2"}
    refuses("there is no such command", recipe, claims=[{**claim, "measure": "command:own"}])
    with pytest.raises(UserError, match="is not told which model it scores"):
        recipe(measures=["command:own"], commands={"own": {"run": ["python", "score.py"]}})
    refuses("better", recipe, measures=["command:own"], commands={"own": {**RUN, "better": "more"}})


def test_two_measures_have_no_place_in_common():
    claim = {"source": "Own", "statement": "a", "relation": "better", "arm": "gpt2"}
    with pytest.raises(UserError, match=r"of which only one can be kept as 'suite:own.yaml'"):
        recipe(measures=["suite:a/own.yaml", "suite:b/own.yaml"])
    with pytest.raises(UserError, match=r"has the measures 'suite:a/own.yaml' and 'suite:b/own"):
        recipe(measures=["suite:a/own.yaml"], claims=[{**claim, "measure": "suite:b/own.yaml"}])
    refuses("'steps:2' and 'steps:2', of which only one", recipe, measures=["steps:2", "steps:2"])
    both = recipe(measures=["suite:piqa"], claims=[{**claim, "measure": "suite:piqa"}])
    assert both.compare.scored == ("suite:piqa",)


def test_what_is_read_of_a_finished_model_needs_one():
    with pytest.raises(UserError, match=r"write \[run\] save_model = true"):
        recipe(measures=["suite:piqa"]).change({"run.save_model": False})


def test_files_of_scores_lie_beside_the_recipe(tmp_path, monkeypatch):
    folder = tmp_path / "recipes"
    folder.mkdir()
    for name in ("own.yaml", "two.yaml", "score.py", "python"):
        (folder / name).write_text("")
    (folder / "a.toml").write_text(
        "[compare]\narms = ['llama', 'gpt2']\n"
        "measures = ['suite:own.yaml', 'suite:piqa', 'command:own', 'suite:two.yaml,own.yaml']\n"
        "[compare.commands.own]\n"
        "run = ['python', 'score.py', '{model}', '0.5', '~no.x', "
        f"'-c', 'print(1.5) # {'x' * 9999}']\n"
        "[[compare.claims]]\nsource = 'Own'\nstatement = 'a'\nrelation = 'better'\n"
        "arm = 'gpt2'\nmeasure = 'suite:own.yaml'\n"
        "[train]\nmax_steps = 2\n"
    )
    monkeypatch.chdir(tmp_path)
    found = load_recipe("recipes/a.toml").compare
    several = "suite:recipes/two.yaml,recipes/own.yaml"
    assert found.measures == ("suite:recipes/own.yaml", "suite:piqa", "command:own", several)
    assert found.claims[0].measure == "suite:recipes/own.yaml"
    assert found.commands["own"].run[:4] == ("python", "recipes/score.py", "{model}", "0.5")
    monkeypatch.chdir(folder)
    assert load_recipe("a.toml").compare.measures[0] == "suite:own.yaml"
