"""What a study was run with, for a reader: draws, options, trainings, time, machine, versions."""

from collections.abc import Iterator, Mapping
from typing import Any

from layerlab.report.i18n.language import label

# Names of study.json, as a page says them.
TRAININGS = {
    "runs": label("runs judged"),
    "models": label("models trained"),
    "trained before": label("of these models trained before"),
    "hours": label("hours of training"),
    "processor": label("processor of training"),
    "device": label("device of training"),
    "threads": label("threads of training"),
    "versions": label("versions of training"),
}
RECIPE = {
    "text": label("text"),
    "width": label("width"),
    "layers": label("layers"),
    "heads": label("heads"),
    "vocabulary": label("vocabulary"),
    "context": label("context"),
    "parameters": label("parameters"),
    "sequences per update": label("sequences per update"),
    "learning rate": label("learning rate"),
    "updates": label("updates"),
    "tokens": label("tokens of training"),
}
TIME = {
    "processor seconds": label("processor seconds"),
    "wall seconds": label("wall seconds"),
}
JUDGING = {
    "processor seconds": label("processor seconds of judging"),
    "wall seconds": label("wall seconds of judging"),
}
MACHINE = {"system": label("system"), "threads": label("threads")}


def rows(study: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield the name and value of every setting of a study dict (the content of `study.json`)."""
    settings, trainings = dict(study["settings"]), study.get("trainings", {})
    yield study["unit"], settings.pop("draws")
    if study["fast"]:
        yield label("mode"), label("fast: few draws")
    yield from settings.items()
    yield from _label_known(study.get("recipe", {}), RECIPE)
    yield from _label_known(trainings, TRAININGS)
    batches = study.get("batches", {})
    if batches.get("all") and not trainings:
        yield label("batches"), batches["all"]
        yield label("of them from an earlier session"), batches["kept from an earlier run"]
    yield from _label_known(study["time"], JUDGING if trainings else TIME)
    yield from _label_known(study["machine"], MACHINE)
    yield label("versions"), ", ".join(f"{name} {one}" for name, one in study["versions"].items())


def _label_known(found: Mapping[str, Any], names: Mapping[str, str]) -> Iterator[tuple[str, Any]]:
    for name, title in names.items():
        if name in found:
            yield title, label("not kept") if found[name] is None else found[name]
