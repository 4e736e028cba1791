"""Language models of a registry: runs and folders become versions, and versions become models that
a server loads.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from equipoise import foreign
from equipoise.api.playing import weights_of
from equipoise.api.writing import export_model, writer
from equipoise.files import files_sha256, read_json
from equipoise.language import adapters, tasks, versions
from equipoise.nets import lora
from equipoise.nets.scored import ScoredDecoder
from equipoise.record import checkpoint
from equipoise.record.directory import RunDirectory
from equipoise.record.paths import RUN
from equipoise.record.report import step_of
from equipoise.registry import RegistryReader, artifacts
from equipoise.registry.artifacts import ASIDE
from equipoise.registry.reward_models import DIGITS
from equipoise.serving.chat.model import Model
from equipoise.sources.prompts import COMPLETION
from equipoise.sources.text import texts_of
from equipoise.types import learning


def is_text_run(place: Path) -> bool:
    """Is a folder a run on text?"""
    if not (place / RUN).is_file():
        return False
    run = read_json(place / RUN)
    program = run.get("program") if isinstance(run, dict) else None
    source = program.get("source") if isinstance(program, dict) else None
    return isinstance(source, dict) and "task" in source


@contextmanager
def gathered(place: Path, registry: RegistryReader, *, base: str = "") -> Iterator[Path | None]:
    """Yield the folder of a version: the model of a run on text, or of a folder. None for another
    kind of folder.

    A run with adapters gives the adapters alone. The model is loaded once. ValueError if it does
    not load. ``base``: the folder of the adapters' base (default: looked for in the registry).
    """
    if (place / artifacts.LANGUAGE).is_file():  # a version of another registry
        _load(place, versions.read_facts(place), registry, base)
        yield place
        return
    run = is_text_run(place)
    if not run and not versions.is_model(place):
        yield None
        return
    aside = registry.path / "artifacts" / f"{ASIDE}{secrets.token_hex(8)}"
    aside.mkdir(parents=True)
    try:
        if run:
            found = _of_run(place, aside / "model", base)
        else:
            found = _of_folder(place, aside / "model", registry, base)
        if found is None:
            yield None
            return
        versions.describe(aside / "model", found)
        yield aside / "model"
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _of_run(place: Path, to: Path, base: str) -> versions.Facts | None:
    """Export the model of a run into a new folder; None for a reward model."""
    program, text, net = writer(place, base=base)
    if isinstance(net, ScoredDecoder):
        return None
    adapted = bool(lora.layers_of(net))
    export_model(place, to, adapter=adapted, base=base)
    settings, source = texts_of(program).settings, weights_of(place)
    (policy, *_) = learning(program).values()
    weights = adapters.base_sha256(to) if adapted else ""
    found = versions.Facts(
        adapter=adapted,
        weights=weights or versions.load(to, None).facts.weights,
        temperature=float(foreign.attribute(policy.algorithm, "temperature", 1.0)),
        limit=text.spec.completion,
        stop=tuple(settings.stop),
        template=tuple(settings.chat_template_kwargs),
    )
    lineage = {
        "run": RunDirectory.found(place).path.absolute().name,
        "step": step_of(checkpoint.read_meta(source)),
        "checkpoint": checkpoint.identity(source),
    }
    return _with_lineage(found, lineage, settings.model)


def _of_folder(place: Path, to: Path, registry: RegistryReader, base: str) -> versions.Facts:
    """Take the files of a folder, and load them once."""
    to.mkdir()
    versions.gather(place, to)
    if not versions.is_adapter(place):
        if base:
            raise ValueError(f"--base: must be left out for a whole model, got {base!r}")
        facts = versions.load(to, None).facts
        return _with_lineage(replace(facts, limit=COMPLETION), {}, "")
    named = versions.base_of(place, adapters.base_sha256(place), registry, base)
    facts = replace(versions.load(to, named).facts, limit=COMPLETION)
    return _with_lineage(facts, {}, adapters.base_name(place))


def _with_lineage(
    facts: versions.Facts, lineage: Mapping[str, object], base: str
) -> versions.Facts:
    """Add the hash of the weights, by which ``gc`` keeps the base of adapters."""
    named = {"base": {"weights": facts.weights, "model": base}}
    more = named if facts.adapter else {"weights": facts.weights}
    return replace(facts, lineage=dict(lineage) | more)


class Registered:
    """The versions of a language model in a registry, for a server."""

    def __init__(self, registry: RegistryReader, name: str, base: str = "") -> None:
        """``base``: the folder of the adapters' base (default: looked for in the registry)."""
        self.name, self._registry, self._base = name, registry, base

    def revision(self) -> object:
        return self._registry.revision(self.name)

    def aliases(self) -> Mapping[str, str]:
        return self._registry.aliases(self.name)

    def load(self, version: str) -> Model:
        """Load a version; ValueError or OSError if it is damaged, or its base is not here."""
        _, folder = self._registry.resolve(self.name, version)
        _check(folder, version)
        if not (folder / artifacts.LANGUAGE).is_file():
            raise ValueError(f"{folder}: must be a language model, got another kind of version")
        loaded = _load(folder, versions.read_facts(folder), self._registry, self._base)
        return model_of(loaded, self.name, version[:DIGITS])


def _load(
    folder: Path, facts: versions.Facts, registry: RegistryReader, base: str
) -> versions.Loaded:
    if not facts.adapter:
        return versions.load(folder, None, facts)
    place = versions.base_of(folder, facts.weights, registry, base)
    if place.parent == registry.path / "artifacts":
        _check(place, place.name)
    return versions.load(folder, place, facts)


def model_of(loaded: versions.Loaded, name: str, version: str) -> Model:
    """Return a loaded model as a server takes it."""
    facts = loaded.facts
    return Model(
        name=name,
        version=version,
        net=loaded.net,
        tokenizer=loaded.tokenizer,
        positions=loaded.net.config.max_position_embeddings,
        limit=facts.limit,
        temperature=facts.temperature,
        stop=tuple(facts.stop),
        template=tasks.arguments(facts.template, "chat_template_kwargs"),
    )


def of_adapter(directory: Path, name: str, base: str) -> Model:
    """Return the model of an adapter's folder and the folder of its base."""
    if not base:
        versions.base_of(directory, adapters.base_sha256(directory), None, "")
    loaded = versions.load(directory, Path(base).expanduser())
    version = files_sha256([directory / adapters.CONFIG, directory / adapters.WEIGHTS])[:DIGITS]
    loaded = versions.Loaded(loaded.net, loaded.tokenizer, replace(loaded.facts, limit=COMPLETION))
    return model_of(loaded, name or directory.absolute().name, version)


def _check(folder: Path, version: str) -> None:
    for problem in artifacts.problems(folder, version):
        raise ValueError(problem)
