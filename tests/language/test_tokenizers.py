"""Tokenizers: text to tokens and back, and what does not fit."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from equipoise.language.tokenizers import STRANGE, CharTokenizer, HubTokenizer, check_fits, with_end


def test_text_comes_back() -> None:
    own = CharTokenizer("012>")
    assert own.encode("201>") == own.prompt("201>") == [2, 0, 1, 3]
    assert own.decode([2, 0, 1, 3]) == "201>"
    assert own.decode([2, 0, *own.eos]) == "20"
    assert CharTokenizer.from_json(own.to_json()) == own


def test_the_end_and_the_pad_are_two_tokens_and_are_no_text() -> None:
    own = CharTokenizer("ab")
    assert own.size == 4 and len({*own.eos, own.pad, *own.encode("ab")}) == 4
    # a sampled pad must not be rewarded as if it were not there
    assert own.decode([0, own.pad, *own.eos]) == f"a{STRANGE}"
    assert own.decode([0, *own.eos, 1]) == f"a{STRANGE}b"
    assert own.decode([]) == ""


def test_what_is_no_text_of_the_alphabet() -> None:
    with pytest.raises(ValueError, match="'ab\\?', character 3: expected one of 'ab', got '\\?'"):
        CharTokenizer("ab").encode("ab?")
    with pytest.raises(
        ValueError, match="expected a text, since the tokenizer of characters has no chat template"
    ):
        CharTokenizer("ab").prompt([{"role": "user", "content": "a"}])
    with pytest.raises(ValueError, match="each once, got 'a' twice"):
        CharTokenizer("aba")
    with pytest.raises(ValueError, match="at least one character, and each once, got none"):
        CharTokenizer("")


def test_a_tokenizer_larger_than_the_embedding() -> None:
    check_fits(CharTokenizer("ab"), 4)
    with pytest.raises(
        ValueError,
        match="each of the tokenizer's 4 tokens, got 3; the nearest that fits is vocab_size=4",
    ):
        check_fits(CharTokenizer("ab"), 3)


def test_a_tokenizer_without_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CharTokenizer, "eos", ())
    with pytest.raises(ValueError, match="DIR: expected a tokenizer with a token that ends a text"):
        check_fits(CharTokenizer("ab"), 4, "DIR")


def words(
    directory: Path, *, template: str | None = None, ends: str = "<end>", begins: bool = False
) -> Path:
    """Save a small tokenizer of Hugging Face's libraries."""
    tokenizers = pytest.importorskip("tokenizers")
    transformers = pytest.importorskip("transformers")
    vocabulary = {
        name: i
        for i, name in enumerate(("<end>", "<begin>", "<unk>", "<user>", "<model>", "a", "b", "c"))
    }
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    if begins:
        made.post_processor = tokenizers.processors.TemplateProcessing(
            single="<begin> $A <end>", special_tokens=[("<begin>", 1), ("<end>", 0)]
        )
    names = {"eos_token": ends, "pad_token": ends} if ends else {}
    both = transformers.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", **names)
    both.add_special_tokens({"additional_special_tokens": ["<begin>", "<user>", "<model>"]})
    both.chat_template = template
    both.save_pretrained(directory)
    return directory


def test_a_directory_of_hugging_face(tmp_path: Path) -> None:
    own = HubTokenizer(words(tmp_path, begins=True))
    assert own.encode("a b c") == [5, 6, 7] and own.prompt("a b c") == [1, 5, 6, 7]
    assert own.decode([1, 5, 6, 0]) == "a b"
    assert (own.size, own.eos) == (8, (0,)) and own.pad not in own.eos
    (tmp_path / "generation_config.json").write_text('{"eos_token_id": [0, 4], "top_p": 0.9}')
    assert HubTokenizer(tmp_path).eos == (0, 4)


CHAT = (
    "{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}{% if "
    "add_generation_prompt %}<model>{% endif %}"
)


def test_messages_need_a_chat_template(tmp_path: Path) -> None:
    asked = [{"role": "user", "content": "a b"}]
    assert HubTokenizer(words(tmp_path / "chat", template=CHAT)).prompt(asked) == [3, 5, 6, 4]
    with pytest.raises(
        ValueError,
        match="expected a text, since the tokenizer in .*plain has no chat template, got messages",
    ):
        HubTokenizer(words(tmp_path / "plain")).prompt(asked)
    picky = HubTokenizer(
        words(tmp_path / "picky", template="{{ raise_exception('Only users may speak') }}")
    )
    with pytest.raises(
        ValueError,
        match="expected messages that the chat template in .*picky takes, got user: Only users may",
    ):
        picky.prompt(asked)


def test_a_directory_without_a_tokenizer_or_without_an_end(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"expected a directory with tokenizer.json and tokenizer_config.json, got one "
        r"without both",
    ):
        HubTokenizer(tmp_path)
    with pytest.raises(ValueError, match="got no such directory"):
        HubTokenizer(tmp_path / "nowhere")
    with pytest.raises(
        ValueError,
        match="expected a tokenizer with a token that ends a text, got one without; name it as "
        "eos_token",
    ):
        HubTokenizer(words(tmp_path / "endless", ends=""))
    torn = words(tmp_path / "torn")
    (torn / "tokenizer.json").write_text((torn / "tokenizer.json").read_text()[:100])
    with pytest.raises(ValueError, match="torn: expected a tokenizer that transformers reads, got"):
        HubTokenizer(torn)


def test_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        ImportError,
        match=r"its tokenizer needs transformers: (pip install|install its extra 'language')",
    ):
        HubTokenizer(tmp_path)


def test_characters_as_hugging_face_reads_them(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    own = CharTokenizer("0 \n1>")
    own.save(tmp_path)
    theirs = HubTokenizer(tmp_path)
    assert (theirs.size, theirs.eos, theirs.pad) == (own.size, own.eos, own.pad)
    text = "10 0\n\n1 >"
    assert theirs.encode(text) == theirs.prompt(text) == own.encode(text)
    assert theirs.decode([*own.encode(text), *own.eos]) == text
    with pytest.raises(Exception, match="WordLevel error"):  # no character is left out in silence
        theirs.encode("12")


TURNS = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<model> {{ m.content }} <end> {% else %}"
    "<user> {{ m.content }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<model> {% endif %}"
)
ASKED = [{"role": "user", "content": "a"}]
SAID = [
    {"role": "assistant", "content": "b b"},
    {"role": "user", "content": "c"},
    {"role": "assistant", "content": "a"},
]
MARKED = TURNS.replace(
    "<model> {{ m.content }} <end> ",
    "<model> {% generation %}{{ m.content }} <end> {% endgeneration %}",
)


@pytest.mark.parametrize("template", [TURNS, MARKED, MARKED.replace("<end> {% e", "{% e")])
def test_what_the_assistant_wrote_in_a_conversation(template: str, tmp_path: Path) -> None:
    own = HubTokenizer(words(tmp_path, template=template))
    tokens, chosen = own.conversation(ASKED, SAID)
    end, user, model, a, b, c = own.encode("<end> <user> <model> a b c")
    middle = [end] if "<end> {% e" in template or template == TURNS else []
    assert tokens == [b, b, *middle, user, c, model, a, end]
    assert chosen == [True] * (2 + len(middle)) + [False] * 3 + [True] * 2
    # a single answer is what it is as a completion
    assert own.conversation(ASKED, SAID[:1])[0] == with_end(own, own.encode("b b"))


def test_conversations_that_a_template_cannot_tell(tmp_path: Path) -> None:
    last = TURNS.replace("{{ m.content }} <end>", "{{ m.content if loop.last else 'a' }} <end>")
    endless = TURNS.replace(" <end>", "")
    silent = MARKED.replace("generation %}{{ m.content }}", "generation %}").replace(
        "<end> {% e", "{% e"
    )
    for name, template, wrong in (
        ("last", last, "must keep earlier turns .* by {% generation %}"),
        ("endless", endless, "message 2: expected the assistant's turn to have one end, got 0"),
        ("silent", silent, "got a conversation without a marked token"),
    ):
        with pytest.raises(ValueError, match=wrong):
            HubTokenizer(words(tmp_path / name, template=template)).conversation(ASKED, SAID)
    spelled = [{"role": "assistant", "content": "b <end> b"}, *SAID[1:]]
    with pytest.raises(
        ValueError, match="message 2: expected the assistant's turn to have one end, got 2"
    ):
        HubTokenizer(words(tmp_path / "kept", template=TURNS)).conversation(ASKED, spelled)
    with pytest.raises(ValueError, match="the tokenizer of characters has no chat template"):
        CharTokenizer("ab").conversation(ASKED, SAID)


@pytest.mark.thorough
@pytest.mark.parametrize("cleans", [False, True])
def test_a_text_is_that_of_transformers(tmp_path: Path, cleans: bool) -> None:
    place = words(tmp_path, template=CHAT)
    config = json.loads((place / "tokenizer_config.json").read_text())
    config["clean_up_tokenization_spaces"] = cleans
    (place / "tokenizer_config.json").write_text(json.dumps(config))
    read = HubTokenizer(place)
    assert (read._direct is None) == cleans
    for tokens in ([], [0], list(range(read.size)), [read.size + 99], [*range(read.size)][::-1]):
        assert read.decode(tokens) == read._read.decode(tokens, skip_special_tokens=True)
