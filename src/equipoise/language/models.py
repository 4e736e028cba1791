"""Models by name, as ``--model`` gives them: a directory, an id of Hugging Face's hub, or a shape
to begin at random.

=================================================  ==============================================================
``path/to/model``                                  a directory with ``config.json`` and safetensors
``Qwen/Qwen3-0.6B``                                the hub's files, kept in its cache on this machine
``Qwen/Qwen3-0.6B@REVISION``                       the same of a commit, a branch or a tag
``llama:hidden_size=48,num_hidden_layers=3``       from scratch; other fields of ``DecoderConfig`` may follow
``tiny``                                           from scratch, 0.09M parameters
=================================================  ==============================================================
"""  # noqa: E501

from __future__ import annotations

import re
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any

from equipoise.hints import hint, install, one_line
from equipoise.language import architectures
from equipoise.language.files import CONFIG
from equipoise.nets.decoder import FAMILIES, DecoderConfig
from equipoise.nets.hub_decoder import HubConfig

TINY = (
    "llama:hidden_size=48,num_hidden_layers=3,num_attention_heads=4,num_key_value_heads=2,intermediate_size=160,"
    "max_position_embeddings=512"
)
HUB_ID = re.compile(r"[\w.-]+/[\w.-]+(@[\w.-]+)?")  # and its revision
COMMIT = re.compile(r"[\w.-]+/[\w.-]+@[0-9a-f]{40}")
HUB_FILES = ("*.json", "*.safetensors", "*.txt", "*.model", "*.jinja")  # and no pickle
FIELDS = {
    one.name: one for one in fields(DecoderConfig) if one.name not in ("family", "rope_scaling")
}


@dataclass(frozen=True, slots=True)
class Model:
    """A shape, and where the weights and the tokenizer are."""

    config: DecoderConfig | HubConfig
    directory: Path | None  # None: from scratch
    revision: str = ""  # of a model of the hub: the commit

    @property
    def notes(self) -> list[str]:
        """Sentences on the model for a run's notes."""
        said = [f"the model is of revision {self.revision}"] if self.revision else []
        if isinstance(self.config, HubConfig):
            said.append(
                f"transformers computes the model ({self.config.model_type}), for texts of up to "
                f"{self.config.max_position_embeddings:,} tokens"
            )
        return said


def is_shape(name: str) -> bool:
    """Is the name a shape to begin with at random, without a tokenizer?"""
    family, colon, _ = name.partition(":")
    return name == "tiny" or bool(colon and "/" not in family)


def find(name: str, vocabulary: int | None = None) -> Model:
    """The model of this name; ``vocabulary``: tokens of the tokenizer, for one from scratch.

    ValueError if there is none, or if it has fewer tokens than the tokenizer.
    """
    directory = Path(name).expanduser()
    if is_shape(name):
        found = Model(from_scratch(TINY if name == "tiny" else name, vocabulary), None)
    elif directory.is_dir():
        found = Model(architectures.read_config(directory), directory)
    elif HUB_ID.fullmatch(name) and not name.startswith("."):
        directory = from_hub(name)
        found = Model(architectures.read_config(directory), directory, directory.name)
    else:
        raise ValueError(
            f"--model: expected a directory with {CONFIG}, a hub id such as Qwen/Qwen3-0.6B, or a "
            "shape such as "
            "llama:hidden_size=48,num_hidden_layers=3, got "
            f"{name!r}{hint(name, ('tiny', *FAMILIES))}"
        )
    if vocabulary is not None and vocabulary > found.config.vocab_size:
        raise ValueError(
            f"--model {name}: expected a vocab_size of at least the tokenizer's {vocabulary} "
            "tokens, got "
            f"{found.config.vocab_size}"
        )
    return found


def revision_of(name: str) -> str:
    """Return the commit of a model of the hub, which is fetched if not cached; "" for another."""
    if is_shape(name) or Path(name).expanduser().is_dir() or COMMIT.fullmatch(name):
        return ""
    return from_hub(name).name if HUB_ID.fullmatch(name) and not name.startswith(".") else ""


def from_scratch(text: str, vocabulary: int | None = None) -> DecoderConfig:
    """The shape of ``family:field=value,...``; other fields follow from those."""
    family, _, rest = text.partition(":")
    if family not in FAMILIES:
        raise ValueError(
            f"--model: expected a family before ':', got {family!r}{hint(family, FAMILIES)}"
        )
    given: dict[str, Any] = {}
    for part in filter(None, rest.split(",")):
        name, equals, value = part.partition("=")
        if name not in FIELDS:
            raise ValueError(
                f"--model {family}: expected a field of the model, got {name!r}{hint(name, FIELDS)}"
            )
        given[name] = _value(name, value if equals else "")
    for name, instead in (("hidden_size", 48), ("num_hidden_layers", 3)):
        if name not in given:
            raise ValueError(
                f"--model {text}: expected {name}, got none; for example {name}={instead}"
            )
    if vocabulary is not None:
        given.setdefault("vocab_size", vocabulary)
    if "vocab_size" not in given:
        raise ValueError(f"--model {text}: must have vocab_size if it has no tokenizer, got none")
    hidden = given["hidden_size"]
    heads = given.setdefault("num_attention_heads", max(1, hidden // 64))
    given.setdefault("num_key_value_heads", heads)
    given.setdefault("head_dim", max(2, hidden // max(1, heads) // 2 * 2))
    # SwiGLU's usual width, a multiple of 16
    given.setdefault("intermediate_size", -(-hidden * 8 // 3 // 16) * 16)
    given.setdefault("attention_bias", family == "qwen2")
    return DecoderConfig(family=family, **given)  # type: ignore[arg-type]


def _value(name: str, text: str) -> object:
    default = FIELDS[name].default
    kind = int if default is MISSING else type(default)
    try:
        return {"true": True, "false": False}[text.lower()] if kind is bool else kind(text)
    except (KeyError, ValueError):
        wanted = {bool: "true or false", int: "a whole number", float: "a number"}[kind]
        raise ValueError(f"--model: {name}: expected {wanted}, got {text!r}") from None


def from_hub(name: str) -> Path:
    """The directory of a hub's model, fetched if not cached; ValueError if it cannot be."""
    try:
        import huggingface_hub
    except ImportError:
        raise ValueError(
            f"--model {name}: expected huggingface_hub, got none; {install('language')}"
        ) from None
    try:
        model, _, revision = name.partition("@")
        found = huggingface_hub.snapshot_download(
            model, revision=revision or None, allow_patterns=list(HUB_FILES)
        )
        return Path(found)
    except OSError as error:  # all that it raises without the model or without network
        said = one_line(str(error))
        raise ValueError(
            f"--model {name}: expected a model of the hub or of its cache here, got "
            f"{type(error).__name__}: {said[:200]}; "
            f"without network, name a directory, which {Path(name).absolute()} is not"
        ) from None
