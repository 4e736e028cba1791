"""Tokenizers of Hugging Face with chat templates, made from nothing, whose texts have many
tokenizations.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import pytest

from equipoise.language.tokenizers import HubTokenizer

TEXT = "the cat sat on the mat and the rat ran at the hat; user: model: tool_call {} \n\n end\n"
TURN = "{{ '<start>' + m['role'] + '\n' + %s + '<end>\n' }}"
LOOP = "{%% for m in messages %%}%s{%% endfor %%}{%% if add_generation_prompt %%}%s{%% endif %%}"
ASK = "{{ '<start>assistant\n' }}"
CALL = (
    "{% if m.tool_calls %}{{ m['content'] + '<tool_call>\n' + m.tool_calls[0].function.arguments "
    "+ '\n</tool_call>' }}{% else %}{{ m['content'] }}{% endif %}"
)
TEMPLATES: Mapping[str, str] = {
    "as it is": LOOP % (TURN % "m['content']", ASK),
    "strips white space": LOOP % (TURN % "m['content'].strip()", ASK),
    "adds a newline": LOOP % (TURN % "m['content'] + '\n'", ASK),
    "ends with a space": LOOP
    % ("{{ m['role'] + ': ' + m['content'] + '<end>\n' }}", "{{ 'assistant: ' }}"),
    "without ends": LOOP % ("{{ m['role'] + ':' + m['content'] + '\n' }}", "{{ 'assistant:' }}"),
    "without the first word": LOOP
    % (TURN % "(m['content'].split(' ')[1:] | join(' ') if m['role'] == 'assistant' "
       "else m['content'])", ASK),
    "adds a special token": LOOP
    % (TURN % "('<start>' if m['role'] == 'assistant' else '') + m['content']", ASK),
}  # fmt: skip
KINDS = ("byte-level", "byte-fallback")


@cache
def _trained(kind: str) -> str:
    """The JSON of a tokenizer with about 60 merges."""
    tokenizers = pytest.importorskip("tokenizers")
    pre, decoders = tokenizers.pre_tokenizers, tokenizers.decoders
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    if kind == "byte-level":
        made.pre_tokenizer = pre.ByteLevel(add_prefix_space=False)
        made.decoder = decoders.ByteLevel()
        alphabet = pre.ByteLevel.alphabet()
    else:
        made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
        made.decoder = decoders.Sequence(
            [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
        )
        alphabet = list(set(TEXT.replace(" ", "▁")))
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=len(alphabet) + 60, initial_alphabet=alphabet, show_progress=False
    )
    made.train_from_iterator([TEXT] * 20, trainer)
    data = json.loads(made.to_str())
    if kind == "byte-fallback":  # in front, as in Llama's
        bytes_ = [f"<0x{number:02X}>" for number in range(256)]
        names = [*bytes_, *sorted(data["model"]["vocab"], key=data["model"]["vocab"].get)]
        data["model"] |= {"vocab": {name: i for i, name in enumerate(names)}, "byte_fallback": True}
    return json.dumps(data)


def saved(directory: Path, kind: str, template: str) -> HubTokenizer:
    """A tokenizer of ``KINDS`` with a chat template of ``TEMPLATES``."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    made = transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizers.Tokenizer.from_str(_trained(kind)), eos_token="<end>"
    )
    made.add_special_tokens({"additional_special_tokens": ["<start>"]})
    made.chat_template = TEMPLATES[template]
    made.save_pretrained(directory)
    return HubTokenizer(directory)
