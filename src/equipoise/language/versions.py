"""Language models as versions of a registry: whole models, and adapters that name their base.

The folder of a version holds the model's files, its tokenizer's files, and
``language_model.json``: how it answers if a request gives no setting, and the hash of the weights.
An adapter's hash is that of its base, since adapters mean nothing without it. The base is looked
for by this hash, in the registry or in a folder that the user names. The name of the base that a
file gives is never opened.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import torch

from equipoise import schema
from equipoise.files import json_bytes, parse_json, write_atomic
from equipoise.hints import shortened
from equipoise.language import adapters, architectures, files
from equipoise.language.tokenizers import CONFIG, TOKENIZER, HubTokenizer, check_fits
from equipoise.nets import lora
from equipoise.nets.decoder import Decoder
from equipoise.registry.artifacts import (
    FILE_NAME,
    KINDS,
    LANGUAGE,
    MANIFEST,
    MOST_FILES,
    read_plain,
    write_manifest,
)
from equipoise.registry.reading import RegistryReader

FORMAT = 1
KIND = KINDS[LANGUAGE]
ENDINGS = (".json", ".txt", ".jinja", ".model")  # of the files next to the weights
LARGEST = 1 << 20  # bytes of ``language_model.json``
SHA256 = re.compile("[0-9a-f]{64}")
SCHEMA: schema.Schema = {
    "format": schema.Number(FORMAT, FORMAT, whole=True),
    "adapter": schema.Flag(),
    "weights": schema.Text(64),
    "temperature": schema.Number(0, 100),
    "limit": schema.Number(1, 1 << 30, whole=True),
    "stop": schema.Items(schema.Text(1_000), 100),
    "template": schema.Items(schema.Text(), 1_000),
    "lineage": schema.Each(schema.Anything()),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """The contents of ``language_model.json``."""

    adapter: bool  # adapters alone?
    weights: str = ""  # SHA-256 of the whole weights; of adapters, of their base's
    temperature: float = 1.0
    limit: int = 256  # most tokens of an answer
    stop: Sequence[str] = ()
    template: Sequence[str] = ()  # KEY=VALUE arguments of the chat template
    lineage: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Loaded:
    """A model that can draw, with its tokenizer; adapters are in its weights."""

    net: Decoder
    tokenizer: HubTokenizer
    facts: Facts


def is_adapter(folder: Path) -> bool:
    return (folder / adapters.CONFIG).is_file()


def is_model(folder: Path) -> bool:
    """Has a folder the files of a language model, or of adapters? Exports of policies do not."""
    return is_adapter(folder) or ((folder / files.CONFIG).is_file() and not _described(folder))


def _described(folder: Path) -> bool:
    """Is a folder an artifact of another kind?"""
    return (folder / MANIFEST).is_file() and not (folder / LANGUAGE).is_file()


def gather(source: Path, to: Path) -> None:
    """Put the files of a model into an empty folder: weights, tokenizer and settings.

    A file on the same disk is linked, not copied. ValueError if files are missing or odd.
    """
    if is_adapter(source):
        weights = [source / adapters.WEIGHTS]
        if not weights[0].is_file():
            raise ValueError(f"{source}: must have {adapters.WEIGHTS}, got none")
    else:
        weights = files.weight_files(source)
    beside = sorted(
        one
        for one in source.iterdir()
        if one.name.endswith(ENDINGS) and one.name not in (MANIFEST, LANGUAGE) and one.is_file()
    )
    if len(weights) + len(beside) > MOST_FILES - 1:
        raise ValueError(
            f"{source}: must have at most {MOST_FILES - 1} files, got {len(weights) + len(beside)}"
        )
    for one in (*weights, *beside):
        if not FILE_NAME.fullmatch(one.name):
            raise ValueError(
                f"{source}: must have files of letters, digits, '.', '_' and '-', got "
                f"{shortened(repr(one.name))}"
            )
        real = one.resolve()  # Hugging Face's cache has links
        try:
            os.link(real, to / one.name)
        except OSError:  # of another disk
            shutil.copyfile(real, to / one.name)


def describe(folder: Path, facts: Facts) -> None:
    """Write ``language_model.json`` and the manifest into the folder of a model."""
    about = {"format": FORMAT} | asdict(facts)
    write_atomic(folder / LANGUAGE, json_bytes(about))
    write_manifest(folder)


def read_facts(folder: Path) -> Facts:
    """Return the facts of a version; ValueError if they are damaged."""
    file = folder / LANGUAGE
    said = schema.check(parse_json(read_plain(file, LARGEST), file), SCHEMA, str(file))
    if not SHA256.fullmatch(said["weights"]):
        raise ValueError(f"{file}: weights: must be 64 hexadecimal digits, got another text")
    return Facts(**{name: value for name, value in said.items() if name != "format"})


def named_base(folder: Path) -> str:
    """Return the name of the base that the adapter's file gives; it is only shown."""
    return shortened(adapters.base_name(folder), 200)


def weights_sha256(net: Decoder) -> str:
    """Return the hash of whole weights, as adapters name their base."""
    names = [name for name, _ in net.named_parameters()]
    return bytes(lora.sha256(net, names).tolist()).hex()


def bases(registry: RegistryReader, weights: str) -> Iterator[tuple[str, Path]]:
    """Yield the versions and folders of whole models in a registry with these weights."""
    for name in registry.names():
        for version in registry.versions(name):
            folder = registry.artifact(version)
            if registry.kind(version) != KIND:
                continue
            try:
                facts = read_facts(folder)
            except (ValueError, OSError):
                continue  # ``verify`` names the damage
            if not facts.adapter and facts.weights == weights:
                yield version, folder


def base_of(folder: Path, weights: str, registry: RegistryReader | None, given: str) -> Path:
    """Return the folder of an adapter's base: ``given`` by the user, or in the registry.

    ValueError if neither is there. ``weights``: the hash that the adapter names; "" if it has none.
    """
    if given:
        return Path(given).expanduser()
    found = None if registry is None or not weights else next(bases(registry, weights), None)
    if found is not None:
        return found[1]
    name, where = named_base(folder), "" if registry is None else f" in {registry.path}"
    got = f"sha256 {weights[:12]}..." if weights else "no hash in it"
    raise ValueError(
        f"{folder}: must be adapters whose base is here, got none{where} ({got}, named "
        f"{name!r}); name its folder with --base DIR"
        + ("" if registry is None else ", or add it to the registry")
    )


def load(folder: Path, base: Path | None, facts: Facts | None = None) -> Loaded:
    """Load a model, or adapters with their ``base``; ValueError if a file does not fit.

    ``facts``: known facts (default: only the hash, which is computed).
    """
    place = folder if base is None else base
    config = architectures.read_config(place)
    net = architectures.build(asdict(config), str(place))
    computed = weights_sha256(net) if facts is None or base is not None else facts.weights
    if base is not None:
        lora.add_adapters(net, adapters.read_settings(folder))
        adapters.load(net, folder)
        if facts is not None and facts.weights != computed:
            raise ValueError(
                f"{folder}: must be adapters of the base in {base} (sha256 {computed[:12]}...), "
                f"got adapters of another ({facts.weights[:12]}...); try the base "
                f"{named_base(folder)!r}"
            )
        net = lora.merged(net)
    own = any((folder / one).is_file() for one in (TOKENIZER, CONFIG))
    tokenizer = HubTokenizer(folder if own else place)
    check_fits(tokenizer, config.vocab_size, str(folder))
    for name, x in net.named_parameters():
        if x.is_floating_point() and not torch.isfinite(x).all():
            raise ValueError(f"{folder}: {name}: must be finite numbers, got nan or infinities")
    return Loaded(net, tokenizer, facts or Facts(adapter=base is not None, weights=computed))
