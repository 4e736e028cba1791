"""A tiny model for Hangman of verifiers' own taskset ``textarena``, and moves to begin with.

    PYTHON benchmarks/hangman.py DIR

PYTHON has ours, ``verifiers`` and ``textarena``. Writes ``DIR/model``, random weights with a tokenizer
that has the moves ``[A]`` to ``[Z]`` as tokens, and ``DIR/moves.jsonl``, 300 prompts of the taskset
with a random letter each. ``docs/guides/conversations.md`` has the commands that train on both.
"""  # noqa: E501

from __future__ import annotations

import importlib
import json
import random
import string
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from equipoise.language import files
from equipoise.nets.decoder import Decoder, DecoderConfig

TOKENS, PROMPTS, GAMES = 400, 300, 60
TEMPLATE = (
    "{% for m in messages %}{{ '<' + m.role + '>' + m['content'] + '<end>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<assistant>' }}{% endif %}"
)


def main() -> None:
    to = Path(sys.argv[1])
    vf: Any = importlib.import_module("verifiers.v1")
    played: Any = importlib.import_module("verifiers.v1.tasksets.textarena.taskset")
    tokenizers: Any = importlib.import_module("tokenizers")
    transformers: Any = importlib.import_module("transformers")
    config = vf.resolve_env_config({"taskset": {"id": "textarena", "game": "Hangman-v0"}})
    tasks = [*islice(vf.load_environment(config).taskset, PROMPTS)]
    texts = [text for one in tasks[:GAMES] for text in (one.data.system_prompt, one.data.prompt)]
    for seed in range(GAMES):  # what the game answers to random letters
        random.seed(seed)
        game = played.ta.make(env_id="Hangman-v0")
        game.reset(num_players=1)
        for letter in random.sample(string.ascii_uppercase, 26):
            game.step(f"[{letter}]")
            if game.state.done:
                break
            texts.append(played._latest_feedback(str(game.get_observation()[1])))
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    lines = tokenizers.Regex(r"[^\n]*\n+|[^\n]+")
    made.pre_tokenizer = tokenizers.pre_tokenizers.Split(lines, "isolated")
    made.decoder = tokenizers.decoders.Fuse()
    letters = sorted({*"".join(texts), *string.printable[:95], "\n"})
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=TOKENS, initial_alphabet=letters, show_progress=False, min_frequency=20
    )
    made.train_from_iterator(texts, trainer)
    both = transformers.PreTrainedTokenizerFast(tokenizer_object=made, eos_token="<end>")
    both.add_special_tokens({"additional_special_tokens": ["<system>", "<user>", "<assistant>"]})
    moves = [f"[{letter}]" for letter in string.ascii_uppercase]
    both.add_tokens([tokenizers.AddedToken(one, normalized=False) for one in moves])
    both.chat_template = TEMPLATE
    both.save_pretrained(to / "model")
    torch.manual_seed(0)
    shape = DecoderConfig(
        family="qwen3",
        vocab_size=len(both),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        head_dim=16,
        intermediate_size=128,
        max_position_embeddings=1024,
    )
    net = Decoder(shape)
    files.write(to / "model", shape, dict(net.named_parameters()), eos=(both.eos_token_id,))
    draw = random.Random(0)
    with (to / "moves.jsonl").open("w") as file:
        for one in tasks:
            asked = [("system", one.data.system_prompt), ("user", one.data.prompt)]
            prompt = [{"role": role, "content": text} for role, text in asked]
            completion = [{"role": "assistant", "content": draw.choice(moves)}]
            file.write(json.dumps({"prompt": prompt, "completion": completion}) + "\n")


if __name__ == "__main__":
    main()
