"""A ``Decoder`` whose logits a causal language model of transformers computes.

The learner runs a group's prompt once, with all its samples behind it and a mask by which no sample
sees another one. If groups are so long that the mask costs more than it saves, each sample with its
prompt is a row. The engine's keys and values are in slots (``Slots``), which the module uses as its
cache. All give explicit positions. Texts are at most as long as a sliding window, so the window
hides nothing.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from equipoise.foreign import Foreign
from equipoise.hints import said, shortened
from equipoise.nets.block import Layered
from equipoise.nets.decoder import Decoder
from equipoise.nets.decoding import Passes
from equipoise.nets.layout import SHORT, Layout, alike
from equipoise.nets.packing import packed_texts
from equipoise.private.transformers import has_class, layers
from equipoise.types.packed import Fields, Packed

FAMILY: Literal["transformers"] = "transformers"
CLOSE = 1e-3  # of logits in float32, relative to the largest
# settings of config.json that change the logits after the head: a factor, a divisor, a soft cap
FACTOR, DIVISOR, CAP = "logit_scale", "logits_scaling", "final_logit_softcapping"


# settings of config.json by which transformers would load code of others, or another kind of number
IGNORED = (
    "attn_implementation",
    "_attn_implementation",
    "_attn_implementation_internal",
    "experts_implementation",
    "_experts_implementation",
    "_experts_implementation_internal",
    "auto_map",
    "dtype",
    "torch_dtype",
)
HEAD = "lm_head.weight"  # which a reward model's files may still have
QUANTISED = "quantization_config"
MOST_LAYERS, MOST_PARTS = 1024, 1 << 14  # of layers, and of what else is counted (num_...)
SHARD = 5 << 30  # bytes of a file of weights; more are split


@dataclass(frozen=True, slots=True, kw_only=True)
class HubConfig:
    """The shape of a model that transformers computes."""

    family: Literal["transformers"] = FAMILY
    model_type: str
    vocab_size: int
    hidden_size: int
    max_position_embeddings: int  # or the sliding window, if that is shorter
    fields: Fields = field(default_factory=dict)  # of config.json

    def __post_init__(self) -> None:
        check_counts(self.fields)


class HubDecoder(Decoder, Layered):
    """A module of transformers as a decoder."""

    config: Foreign  # a HubConfig
    auto = "AutoModelForCausalLM"  # of transformers: makes the module

    def __init__(
        self, config: HubConfig, directory: Path | None = None, fresh: Sequence[str] = ()
    ) -> None:
        """``directory``: where the weights are; None: at random; ``fresh``: tensors that may be
        missing there. ValueError if files are damaged, tensors are missing, or the module is no
        decoder of this kind.
        """
        nn.Module.__init__(self)
        self.config = config
        with _quiet():
            self.module: Foreign = _module(config, directory, self.auto, fresh)
            self.eval()
            if directory is not None:
                self.check(str(directory))
            self.packs = self._packs()

    def train(self, mode: bool = True) -> HubDecoder:
        """Keep dropout off, since the engine has none."""
        super().train(False)
        return self

    @property
    def layers(self) -> list[nn.Module]:
        return layers(self.module)

    @property
    def head(self) -> Tensor:
        weight: Tensor = self.module.get_output_embeddings().weight
        return weight

    @property
    def plain(self) -> bool:
        """Return whether logits are the product with ``head`` and nothing more."""
        layer = self.module.get_output_embeddings()
        changes = any(_number(self.config, name) for name in (FACTOR, DIVISOR, CAP))
        return layer.bias is None and not changes

    def logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.module.get_output_embeddings()(hidden)
        logits = logits if logits.dtype == torch.float64 else logits.float()
        if factor := _number(self.config, FACTOR):
            logits = logits * factor
        if divisor := _number(self.config, DIVISOR):
            logits = logits / divisor
        if cap := _number(self.config, CAP):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def hidden(self, data: Packed, layout: Layout | None = None) -> Tensor:
        layout = Layout.of(data) if layout is None else layout
        if self.packs and _worth_a_mask(layout, self.config.hidden_size):
            return self._groups(data, layout)
        return self._each(data, layout)

    def _groups(self, data: Packed, layout: Layout) -> Tensor:
        """The hidden states [N, hidden], with a row for each group."""
        device, found = self.head.device, list[Tensor]()
        token, position = (torch.as_tensor(x, device=device) for x in (data.token, data.position))
        whole = layout.whole
        for batch, mask in zip(whole.groups, whole.masks, strict=True):
            index = batch.rows.view(batch.count, batch.length)
            seen = mask.unsqueeze(1).expand(batch.count, -1, -1, -1).to(self.head.dtype)
            found.append(self.run(token[index], position[index], seen).flatten(0, 1))
        return torch.cat(found).index_select(0, whole.place)

    def _each(self, data: Packed, layout: Layout) -> Tensor:
        """The hidden states [N, hidden], with a row for each sample, behind its prompt."""
        device = self.head.device
        token = torch.as_tensor(data.token, device=device)
        rows = _rows(layout)
        sizes = np.array([len(one) for one in rows])
        found, places = list[Tensor](), list[Tensor]()
        seen = np.zeros(layout.count, bool)  # prompts stand in the row of each sample
        for part in alike(sizes):
            longest = int(sizes[part].max())
            index = np.stack([np.pad(rows[n], (0, longest - sizes[n]), "edge") for n in part])
            new = np.arange(longest) < sizes[part, None]
            for row, line in enumerate(index):
                new[row] &= ~seen[line]
                seen[line] = True
            # padding comes after the text, so the text does not see it
            x = self.run(token[torch.as_tensor(index, device=device)])
            found.append(x[torch.as_tensor(new, device=device)])
            places.append(torch.as_tensor(index[new], device=device))
        out = found[0].new_zeros(layout.count, found[0].shape[1])
        return out.index_copy(0, torch.cat(places), torch.cat(found))

    def run(
        self,
        token: Tensor,
        position: Tensor | None = None,
        mask: Tensor | None = None,
        cache: object = None,
    ) -> Tensor:
        """token [B, T] -> hidden states [B, T, hidden]; ``mask`` [B, 1, T, keys] is added."""
        body = self.module.base_model
        given = {} if cache is None else {_cache_name(body): cache}
        if position is None:
            position = torch.arange(token.shape[1], device=token.device).expand_as(token)
        out = body(
            input_ids=token,
            position_ids=position,
            attention_mask=mask,
            use_cache=cache is not None,
            return_dict=True,
            **given,
        )
        hidden: Tensor = out.last_hidden_state
        return hidden

    def decoding(self, slots: int, length: int) -> HubDecoding:
        if self.head.dtype != torch.float32:
            # An embedding that is tied to the head is rounded. What lies between the products is
            # float32.
            self.module.get_input_embeddings().register_forward_hook(_widened)
        return HubDecoding(self, make_slots(slots, length))

    @torch.no_grad()
    def prefill(self, token: Tensor, lengths: Tensor, cache: Foreign, slots: Tensor) -> Tensor:
        size = token.shape[1]
        mask = torch.full((size, size), -torch.inf, device=token.device).triu(1)
        cache.begin(slots)
        hidden = self.run(token, None, mask.expand(len(token), 1, -1, -1), cache)
        return hidden[torch.arange(len(token), device=token.device), lengths - 1]

    @torch.no_grad()
    def extend(self, token: Tensor, begin: int, cache: Foreign, slot: int) -> Tensor:
        position = torch.arange(begin, begin + len(token), device=token.device)
        seen = position.unsqueeze(1) >= torch.arange(begin + len(token), device=token.device)
        mask = torch.zeros(seen.shape, dtype=self.head.dtype, device=token.device)
        cache.extend(slot, begin)
        mask = mask.masked_fill_(~seen, -torch.inf)[None, None]
        return self.run(token[None], position[None], mask, cache)[0, -1]

    @torch.no_grad()
    def _packs(self) -> bool:
        """Return whether the module computes a group in one row as it does each sample.

        A module that takes positions from the order of tokens does not.
        """
        text = [n % self.config.vocab_size for n in range(6)]
        data = packed_texts([(text[:2], [text[2:4], text[3:6]])])
        layout = Layout.of(data)
        try:
            found = self._groups(data, layout)
        except (RuntimeError, TypeError, ValueError):
            return False
        wanted = self._each(data, layout)
        return float((found - wanted).abs().max()) <= CLOSE * float(wanted.abs().max())

    def whole(self, token: Tensor) -> Tensor:
        """The module's own logits [T, ...] of a text [1, T]."""
        logits: Tensor = self.module(input_ids=token).logits[0]
        return logits

    @torch.no_grad()
    def check(self, where: str) -> None:
        """ValueError unless logits by our head and cache are those of the module itself."""
        token = torch.arange(6, device=self.head.device)[None] % self.config.vocab_size
        try:
            wanted = self.whole(token).float()
            decoding = self.decoding(3, 6)
            one, two = (torch.tensor([n], device=token.device) for n in (1, 2))
            decoding.prefill(token[:, :1], one, two)
            first = decoding.extend(token[0, 1:3], 1, 2)
            decoding.copy(two, one, 3)
            decoding.copy(two, one - 1, 3)
            steps = [
                decoding.decode(token[0, [n, n]], torch.full_like(token[0, :2], n), n, n)[1:]
                for n in (3, 4, 5)
            ]
            found = self.logits(torch.cat([first[None], *steps]))
        except (RuntimeError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise ValueError(
                _refusal(where, self.config, f"{type(error).__name__}: {error}")
            ) from None
        gap = float((found - wanted[2:]).abs().max())
        if not gap <= CLOSE * max(float(wanted.abs().max()), 1.0):
            raise ValueError(_refusal(where, self.config, f"logits that differ by {gap:.2g}"))

    def write(self, directory: Path) -> None:
        """Write config.json and the weights as transformers does, in files of at most ``SHARD``
        bytes.
        """
        with _quiet():
            self.module.save_pretrained(str(directory), max_shard_size=SHARD)


def check_counts(fields: Fields, where: str = "") -> None:
    """ValueError, which begins with ``where``, for quantised weights, and for more parts than a
    model has.
    """
    for name, value in fields.items():
        if name == QUANTISED and value is not None:
            raise ValueError(
                f"{where}{QUANTISED}: must be left out, since quantised weights are not read, got "
                "one; try the model in float"
            )
        if isinstance(value, Mapping):
            check_counts(value, where)
        layers = "layer" in name
        if isinstance(value, int) and (layers or name.startswith("num_")):
            most = MOST_LAYERS if layers else MOST_PARTS
            if value > most:
                raise ValueError(
                    f"{where}{name}: must be at most {most:,}, got {shortened(str(value))}"
                )


def _plain(value: object) -> Foreign:
    """Return a value of config.json without the names in ``IGNORED``, at any depth."""
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if name not in IGNORED}
    return [_plain(one) for one in value] if isinstance(value, list) else value


def sketched(config: HubConfig, where: str) -> nn.Module:
    """The module of transformers without memory for its weights; ValueError if there is none."""
    hub: Foreign = importlib.import_module("transformers")  # whose types are its own
    try:
        with _quiet(), torch.device("meta"):
            made = hub.AutoConfig.for_model(config.model_type, **_plain(config.fields))
            net: nn.Module = hub.AutoModelForCausalLM.from_config(made)
    except Exception as error:  # the code of each architecture raises what it likes
        raise ValueError(
            f"{where}: model_type {config.model_type!r}: must be of a shape that transformers "
            f"computes, got another: {shortened(' '.join(said(error).split()), 200)}"
        ) from error
    return net


def _module(config: HubConfig, directory: Path | None, auto: str, fresh: Sequence[str]) -> Foreign:
    hub: Foreign = importlib.import_module("transformers")
    scored = auto != HubDecoder.auto
    labels = {"num_labels": 1} if scored else {}
    made = hub.AutoConfig.for_model(config.model_type, **_plain(config.fields) | labels)
    kind = getattr(hub, auto)
    if scored and not has_class(kind, type(made)):
        raise ValueError(
            f"{directory or '--model'}: model_type {config.model_type!r}: must be a model that "
            "transformers gives a head of scores (ForSequenceClassification), got one without"
        )
    how: dict[str, object] = {"dtype": torch.float32}
    if _number(config, "attn_logit_softcapping"):  # other attention kernels ignore it
        how["attn_implementation"] = "eager"
    if directory is None:
        return kind.from_config(made, **how)
    try:
        module, report = kind.from_pretrained(
            directory,
            config=made,
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are refused below, by name
            **how,
        )
    except Exception as error:  # the code of each architecture raises what it likes
        raise ValueError(
            f"{directory}: must be a model that transformers loads, got "
            f"{type(error).__name__}: {shortened(' '.join(said(error).split()), 200)}"
        ) from error
    _check_loaded(module, report, fresh, directory)
    return module


def _check_loaded(
    module: nn.Module, report: Foreign, fresh: Sequence[str], directory: Path
) -> None:
    """ValueError unless the files have the tensors of the module and no others, all finite;
    ``fresh``: tensors that may be missing.
    """
    for name, got, wanted in sorted(report["mismatched_keys"], key=str):
        raise ValueError(
            f"{directory}: {name}: must have the shape {[*wanted]} that config.json gives, got "
            f"{[*got]}"
        )
    if missing := sorted({*map(str, report["missing_keys"])} - {*fresh}):
        raise ValueError(
            f"{directory}: must have every tensor of its config.json, got all but {len(missing)}, "
            f"such as {missing[0]}"
        )
    if besides := sorted({*map(str, report["unexpected_keys"])} - ({HEAD} if fresh else set())):
        raise ValueError(
            f"{directory}: must have the tensors of its config.json, got {len(besides)} besides, "
            f"such as {shortened(besides[0])}; is the config.json of another model?"
        )
    for name, x in module.named_parameters():
        if not x.isfinite().all():
            raise ValueError(f"{directory}: {name}: must be finite numbers, got nan or inf")


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the warnings of transformers back; what they tell of is checked here."""
    logging: Foreign = importlib.import_module("transformers").utils.logging
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def _refusal(where: str, config: HubConfig, got: str) -> str:
    return (
        f"{where}: model_type {config.model_type!r}: must be a causal model of keys and values "
        f"with a linear head, as most of transformers' are, got {got[:200]}"
    )


def _number(config: HubConfig, name: str) -> float:
    value = config.fields.get(name)
    return float(value) if isinstance(value, int | float) else 0.0


def _cache_name(body: nn.Module) -> str:
    """Return the name of the cache argument, which differs between versions of transformers."""
    return "cache" if "cache" in inspect.signature(body.forward).parameters else "past_key_values"


def _worth_a_mask(layout: Layout, width: int) -> bool:
    """Return whether groups as rows with a mask cost less than samples as rows.

    A token costs a layer about 24 width^2 products, and 4 width for each key that it sees.
    """
    groups = (layout.prompts + layout.tokens).astype(np.float64)
    each = (layout.prompts[layout.group] + layout.lengths).astype(np.float64)
    if not len(each) or int(groups.max()) > max(width, SHORT):  # a mask above the activations
        return False
    masked, alone = ((x * (6 * width + x)).sum() for x in (groups, each))
    return bool(masked < alone)


def _rows(layout: Layout) -> list[np.ndarray]:
    """Return the rows of each sample with its prompt, and of each prompt without samples."""
    rows = []
    for begin, prompt in zip(layout.begins[layout.tokens == 0], layout.prompts[layout.tokens == 0]):
        rows.append(np.arange(begin, begin + prompt))
    for start, length, group in zip(layout.starts, layout.lengths, layout.group, strict=True):
        begin, prompt = layout.begins[group], layout.prompts[group]
        rows.append(np.r_[begin : begin + prompt, start : start + length])
    return [one for one in rows if len(one)]


def make_slots(slots: int, length: int) -> Foreign:
    """Return a cache of transformers for the keys and values of ``slots`` texts of at most
    ``length`` tokens. transformers is imported here alone, since it is optional.
    """
    from transformers.cache_utils import Cache

    class Slots(Cache):
        """Keys and values [slots, K, length, D] by layer, allocated at the first pass."""

        def __init__(self) -> None:
            super().__init__(layers=[])
            self.stored: dict[int, tuple[Tensor, Tensor]] = {}
            self._slots: Tensor | None = None  # of a prefill
            self._position: Tensor | None = None  # of a step
            self._slot = 0  # of a part of a prompt; it begins at ``_longest``
            self._longest = 0

        def begin(self, at: Tensor) -> None:
            """Let the next pass write whole prompts into the slots ``at`` [B]."""
            self._slots, self._position = at, None

        def extend(self, slot: int, begin: int) -> None:
            """Let the next pass write a part of a text into ``slot``, from ``begin`` on."""
            self._slots, self._position, self._slot, self._longest = None, None, slot, begin

        def go_on(self, position: Tensor, longest: int) -> None:
            """Let the next pass write a token at ``position`` [B] of the first slots."""
            self._slots, self._position, self._longest = None, position, longest

        def update(
            self,
            key_states: Tensor,
            value_states: Tensor,
            layer_idx: int,
            *args: object,
            **kwargs: object,
        ) -> tuple[Tensor, Tensor]:
            key, value = key_states, value_states
            if layer_idx not in self.stored:
                self.stored[layer_idx] = (_room(key), _room(value))
            keys, values = self.stored[layer_idx]
            for store, x in ((keys, key), (values, value)):
                if self._slots is not None:
                    store[self._slots, :, : x.shape[2]] = x
                elif self._position is not None:
                    row = torch.arange(len(x), device=x.device)
                    store[row, :, self._position] = x[:, :, 0]
                else:
                    store[self._slot, :, self._longest : self._longest + x.shape[2]] = x[0]
            if self._slots is not None:
                return key, value
            if self._position is None:
                upto = self._longest + key.shape[2]
                here = slice(self._slot, self._slot + 1)
                return keys[here, :, :upto], values[here, :, :upto]
            n, upto = len(key), self._longest + 1
            return keys[:n, :, :upto], values[:n, :, :upto]

        def get_seq_length(self, layer_idx: int = 0) -> int:
            return 0 if self._slots is not None else self._longest

    def _room(x: Tensor) -> Tensor:
        return x.new_zeros(slots, x.shape[1], length, x.shape[3])

    return Slots()


def _widened(layer: nn.Module, given: object, out: Tensor) -> Tensor:
    return out.float()


class HubDecoding(Passes):
    """One token of many texts at a time, as ``Decoding``."""

    _net: HubDecoder
    cache: Foreign

    def decode(self, token: Tensor, position: Tensor, shortest: int, longest: int) -> Tensor:
        """As ``Decoding.decode``."""
        unseen = torch.arange(longest + 1, device=token.device) > position[:, None]
        mask = torch.zeros(unseen.shape, dtype=self._net.head.dtype, device=token.device)
        mask = mask.masked_fill_(unseen, -torch.inf)[:, None, None]
        self.cache.go_on(position, longest)
        with self._autocast:
            return self._net.run(token[:, None], position[:, None], mask, self.cache)[:, 0]

    def twin(self, net: Decoder) -> HubDecoding:
        """Return the decoding of the same texts by another network of this kind."""
        assert isinstance(net, HubDecoder)
        return HubDecoding(net, self.cache)

    def give_back(self) -> None:
        """As ``Decoding.give_back``."""
        self.cache.stored.clear()

    def have_room(self) -> None:
        """The first pass allocates memory again."""

    def copy(self, source: Tensor, target: Tensor, length: int) -> None:
        """As ``Decoding.copy``."""
        for stored in self.cache.stored.values():
            for x in stored:
                x[target, :, :length] = x[source, :, :length]
