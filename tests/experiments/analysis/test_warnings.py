"""What has to be known beside a verdict."""

from layerlab.experiments.analysis.warnings import remarks
from layerlab.recipes.training import make_recipe


def test_what_a_source_printed_is_told_as_a_reference() -> None:
    printed = {"source": "residuals24", "note": "its batches differ", "values": {"llama": 2.5}}
    section = {"arms": ["llama", "gpt2"], "published": printed}
    content = {"train": {"max_steps": 3}, "compare": section}
    recipe = make_recipe(content)
    assert recipe.compare is not None
    (told,) = (one for one in remarks(recipe.compare, {}, []) if "residuals24" in one)
    assert told == (
        "for reference and no target, residuals24 printed llama 2.5; its batches differ"
    )
