"""Language models for ``equipoise serve``: of a run, whose newest kept weights are followed, or in
a folder of model files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise import foreign
from equipoise.api.playing import weights_of
from equipoise.api.writing import writer
from equipoise.files import files_sha256
from equipoise.language import architectures, files, models, tasks
from equipoise.language.tokenizers import HubTokenizer, check_fits
from equipoise.nets.scored import Scores
from equipoise.record import checkpoint
from equipoise.record.directory import BEST, CHECKPOINTS, RunDirectory
from equipoise.record.summary import SUMMARY
from equipoise.serving.chat.model import Model
from equipoise.sources.prompts import COMPLETION
from equipoise.sources.text import texts_of
from equipoise.types import learning

if TYPE_CHECKING:
    from torch import Tensor

DIGITS = 12  # of a hash, in the name of a version


class Following:
    """The newest kept weights of a run."""

    def __init__(self, run: Path) -> None:
        self._run, self._seen = run, _listed(run)
        self._damage = ""  # of the newest kept weights

    def newer(self, version: str) -> tuple[str, Mapping[str, Tensor]] | None:
        """Return the newest version and its weights; None if ``version`` is the newest."""
        if (listed := _listed(self._run)) != self._seen:
            self._damage, place = _damage(self._run), weights_of(self._run)
            if not self._damage and version_of(place) != version:
                found = version_of(place), checkpoint.load(place)[0]
                self._seen = listed
                return found
            self._seen = listed
        if self._damage:
            raise ValueError(self._damage)
        return None


def _listed(run: Path) -> object:
    """Return what changes when a checkpoint is kept or removed, or the newest one is rewritten."""
    folder = run / CHECKPOINTS
    newest = [file for _, path in checkpoint.steps(folder)[:1] for file in path.glob("*")]
    rooms = (folder, folder / BEST, run / SUMMARY, *newest)
    return [(one, one.stat().st_mtime_ns) for one in rooms if one.exists()]


def _damage(run: Path) -> str:
    """Return the damage of the newest checkpoint, which would be passed over for an older one."""
    skipped = list[str]()
    checkpoint.latest(run / CHECKPOINTS, skipped=skipped)
    return skipped[0] if skipped else ""


def version_of(place: Path) -> str:
    """Return the version of a checkpoint: its name and the first digits of its hash."""
    return f"{place.name}-{checkpoint.identity(place)[:DIGITS]}"


def of_run(directory: Path, version: str, name: str, trust: Sequence[str], base: str = "") -> Model:
    """Return the model of a run on text: its newest kept weights, or ``version``.
    ``base``: the folder of the adapters' model (default: where it was).
    """
    run = RunDirectory.found(directory).path
    source = None if version else Following(run)
    place = _kept(run, version) if version else weights_of(run)
    program, text, net = writer(run, source=place, trust=trust, base=base)
    if isinstance(net, Scores):
        raise ValueError(
            f"{directory}: must be a run whose model writes, got a reward model; eq.score scores "
            "completions with it"
        )
    settings = texts_of(program).settings
    (policy, *_), tokenizer = learning(program).values(), text.tokenizer
    return Model(
        name=name or run.absolute().name,
        version=version_of(place),
        net=net,
        tokenizer=tokenizer,
        positions=text.config.max_position_embeddings,
        limit=text.spec.completion,
        temperature=foreign.attribute(policy.algorithm, "temperature", 1.0),
        stop=settings.stop,
        template=tasks.arguments(settings.chat_template_kwargs, "chat_template_kwargs"),
        source=source,
    )


def _kept(run: Path, version: str) -> Path:
    found = {path.name: path for _, path in checkpoint.steps(run / CHECKPOINTS)}
    found = {path.name: path for _, path in checkpoint.steps(run / CHECKPOINTS / BEST)} | found
    if (place := found.get(version)) is None:
        raise ValueError(
            f"--version: must be a kept checkpoint of {run} ({', '.join(found)}), got {version!r}"
        )
    return place


def of_model(directory: Path, name: str) -> Model:
    """Return the model in a folder with config.json, safetensors and a tokenizer."""
    found, tokenizer = models.find(str(directory)), HubTokenizer(directory)
    parts = [directory / files.CONFIG, *files.weight_files(directory)]
    check_fits(tokenizer, found.config.vocab_size, str(directory))
    return Model(
        name=name or directory.absolute().name,
        version=files_sha256(parts)[:DIGITS],
        net=architectures.build(asdict(found.config), str(directory)),
        tokenizer=tokenizer,
        positions=found.config.max_position_embeddings,
        limit=COMPLETION,
    )
