"""Templates of a task are filled in as lm-eval does, and reach nothing but values."""

import pytest

from layerlab import UserError

pytest.importorskip("lm_eval")

import lm_eval.utils

from layerlab.evaluation.lm_eval_tasks.templates import sandbox_templates

GOOD = [
    "{{question}}\nA: {{choices[0]}}\n",
    "{{question|regex_replace('W', 'w')}}",
    "{% for one in choices %}{{loop.index}}{{one}}{% endfor %}",
    "{{choices.index('b')}} {{question.strip().split(' ')|join('-')}}",
]
EVIL = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ question.__init__.__globals__ }}",
    "{% for one in choices.append('c') %}{% endfor %}",
]
DOCUMENT = {"question": "Why is it so?", "choices": ["a", "b"]}


@pytest.mark.parametrize("text", GOOD)
def test_a_template_is_filled_in_as_by_lm_eval(text):
    plain = lm_eval.utils.apply_template(text, DOCUMENT)
    with sandbox_templates():
        assert lm_eval.utils.apply_template(text, DOCUMENT) == plain
        assert lm_eval.utils.apply_template(text, DOCUMENT) == plain
    assert type(lm_eval.utils.env).__name__ == "Environment"


@pytest.mark.parametrize("text", [*EVIL, "{{ missing }}", "{% if %}", "{{ 1 / 0 }}"])
def test_what_reaches_further_is_one_line(text):
    with sandbox_templates(), pytest.raises(UserError) as caught:
        lm_eval.utils.apply_template(text, DOCUMENT)
    assert "of a task cannot be filled in: " in str(caught.value)
    assert "\n" not in str(caught.value) and DOCUMENT["choices"] == ["a", "b"]


@pytest.mark.parametrize(
    "text", ["{{ 'x'|center(3000000000) }}", "{{ 'ab' * 3000000000 }}"], ids=["center", "times"]
)
def test_a_template_that_takes_too_much_ends_in_a_process_of_its_own(text):
    with sandbox_templates(), pytest.raises(UserError) as caught:
        lm_eval.utils.apply_template(text, DOCUMENT)
    assert str(caught.value).endswith("takes over 1 GiB for one question; use another")
