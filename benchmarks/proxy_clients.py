"""OpenAI's client and openai-agents, unchanged, train a model through ``equipoise proxy``.

    .venv/bin/python benchmarks/proxy_clients.py model DIR
    equipoise train proxy:8000 --model DIR ...                 (docs/guides/proxy.md has the line)
    PYTHON benchmarks/proxy_clients.py openai|agents PORT SECONDS

PYTHON has ``openai`` or ``openai-agents``, and needs nothing of ours. The game is that of the task
``guess``: one of seven letters is guessed in three turns, and the hints are ``<`` and ``>``. Eight
conversations with one letter are a group. Prints the mean reward of each thousand conversations, and
of the first and the last 500.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import importlib
import random
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

LETTERS, TURNS, GROUP, PLAYERS = "abcdefg", 3, 8, 4
Play = Callable[[str, str, str], Awaitable[float]]


def hint(secret: str, text: str) -> str | None:
    """Return the answer to a guess; None if it is right."""
    guess = LETTERS.find(text) if len(text) == 1 else -1
    if guess == LETTERS.index(secret):
        return None
    return "?" if guess < 0 else "<" if LETTERS.index(secret) < guess else ">"


def model(to: Path) -> None:
    """Write a model with random weights, whose chat template writes the messages' texts alone."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    from equipoise.language import files
    from equipoise.nets.decoder import Decoder, DecoderConfig

    words = ["<end>", *f"{LETTERS}<>?"]
    made = Tokenizer(models.WordLevel({one: i for i, one in enumerate(words)}, unk_token="<end>"))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    fast: Any = PreTrainedTokenizerFast  # not typed
    both = fast(tokenizer_object=made, eos_token="<end>")
    both.chat_template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    both.save_pretrained(to)
    torch.manual_seed(0)
    config = DecoderConfig(
        family="llama",
        vocab_size=len(words),
        hidden_size=48,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=12,
        intermediate_size=160,
        max_position_embeddings=64,
    )
    files.write(to, config, dict(Decoder(config).named_parameters()), eos=(0,))


def by_openai(port: int) -> Play:
    """Play with OpenAI's client; one group in four is streamed."""
    openai: Any = importlib.import_module("openai")
    client = openai.AsyncOpenAI(
        base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=5
    )

    async def play(secret: str, group: str, name: str) -> float:
        messages, answer, said = [{"role": "user", "content": "?"}], None, None
        for _ in range(TURNS):
            asked = {"model": "gpt-4o", "messages": messages, "max_tokens": 1}
            asked["metadata"] = {"group": group}
            if int(group.rpartition("-")[2]) % 4:
                said = await client.chat.completions.create(**asked)
                text = said.choices[0].message.content or ""
            else:
                text = ""
                async for said in await client.chat.completions.create(stream=True, **asked):
                    text += (said.choices[0].delta.content or "") if said.choices else ""
            answer = hint(secret, text)
            if answer is None:
                break
            messages = [*messages, {"role": "assistant", "content": text}]
            messages.append({"role": "user", "content": answer})
        assert said is not None
        reward = float(answer is None)
        await client.post("/reward", body={"id": said.id, "reward": reward}, cast_to=object)
        return reward

    return play


def by_agents(port: int) -> Play:
    """Play with openai-agents; the names of a conversation are in its base URL."""
    agents: Any = importlib.import_module("agents")
    openai: Any = importlib.import_module("openai")
    agents.set_tracing_disabled(True)
    http = openai.DefaultAsyncHttpxClient()

    def client(path: str = "") -> Any:
        url = f"http://127.0.0.1:{port}{path}/v1"
        return openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=5, http_client=http)

    async def play(secret: str, group: str, name: str) -> float:
        answers = agents.OpenAIChatCompletionsModel(
            "gpt-4o", client(f"/groups/{group}/conversations/{name}")
        )
        how = agents.ModelSettings(max_tokens=1)
        agent = agents.Agent(name="guesser", model=answers, model_settings=how)
        asked: Any = "?"
        answer: str | None = None
        for _ in range(TURNS):
            try:
                result = await agents.Runner.run(agent, asked)
            except agents.ModelBehaviorError:  # an answer without a text
                answer = "?"
                break
            answer = hint(secret, result.final_output)
            if answer is None:
                break
            asked = [*result.to_input_list(), {"role": "user", "content": answer}]
        reward = float(answer is None)
        await client().post("/reward", body={"id": name, "reward": reward}, cast_to=object)
        return reward

    return play


async def played(play: Play, seconds: float) -> list[float]:
    """Play until the time is over or the run has ended; return the rewards."""
    begin, rewards, failed = time.monotonic(), list[float](), list[BaseException]()
    draw, deck = random.Random(0), list[str]()

    async def player(number: int) -> None:
        count = 0
        while time.monotonic() - begin < seconds and not failed:
            if not deck:  # each letter as often as the others
                deck.extend(draw.sample(LETTERS, len(LETTERS)))
            secret, group, count = deck.pop(), f"{number}-{count}", count + 1
            several = [play(secret, group, f"{group}-{i}") for i in range(GROUP)]
            for one in await asyncio.gather(*several, return_exceptions=True):
                if isinstance(one, BaseException):
                    failed.append(one)
                    continue
                rewards.append(one)
                if len(rewards) % 1000 == 0:
                    mean, took = sum(rewards[-1000:]) / 1000, time.monotonic() - begin
                    print(f"{len(rewards):,} conversations: {mean:.3f} ({took:.0f} s)", flush=True)

    await asyncio.gather(*(player(number) for number in range(PLAYERS)))
    if failed:
        print(f"ended by {type(failed[0]).__name__}: {str(failed[0])[:200]}")
    return rewards


def main() -> None:
    what, where, *more = sys.argv[1:]
    if what == "model":
        return model(Path(where))
    play = {"openai": by_openai, "agents": by_agents}[what](int(where))
    rewards = asyncio.run(played(play, float(more[0])))
    first, last = (sum(some) / max(1, len(some)) for some in (rewards[:500], rewards[-500:]))
    print(f"{len(rewards):,} conversations: first 500 {first:.3f}, last 500 {last:.3f}")
    return None


if __name__ == "__main__":
    main()
