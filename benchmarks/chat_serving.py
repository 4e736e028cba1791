"""A served language model beside its engine: tokens a second of 64 clients over HTTP, in turns.

    .venv/bin/python benchmarks/chat_serving.py [--models tiny,1m,25m] [--clients 64] [--seconds 4]
        [--rounds 3] [--swaps]

Each client asks again at once, for an answer of at most 128 tokens at temperature 1. The models
have random weights and a token for each letter; one of about a hundred tokens ends an answer.

    engine           the engine of training in this process, with as many samples side by side as
                     there are clients, each replaced at once
    whole, stream    answers of ``equipoise serve`` in a process of its own, to a client's process

Tokens are counted where they are drawn. ``ratio`` is that of tokens a second to the engine's of the
same round; ``cpu ratio`` that of tokens per second of processor time, which a busy machine moves
less. A line has the medians of the rounds. Wanted: a ratio of at least 0.8.

``--swaps``: what newer weights cost. The server's writer has as many answers under way as there are
clients, and gets newer weights 10 times. Answers that were begun finish first, so the others wait.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch
from chat_load import LIMIT, PROMPT

from equipoise.actors.engine.request_engine import RequestEngine, Sampling
from equipoise.actors.engine.torch_engine import Ends, TorchEngine
from equipoise.language import files
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.serving.chat.writer import Job, Reply, Writer

ALPHABET = "".join(map(chr, range(32, 127)))
SIZES = {  # hidden size, layers, heads
    "tiny": (48, 3, 4),
    "1m": (128, 5, 4),
    "25m": (512, 8, 8),
}


def config(name: str, vocabulary: int) -> DecoderConfig:
    hidden, layers, heads = SIZES[name]
    return DecoderConfig(
        family="llama",
        vocab_size=vocabulary,
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=hidden // heads,
        intermediate_size=hidden * 8 // 3 // 16 * 16,
        max_position_embeddings=256,
    )


def write(name: str, to: Path) -> tuple[Decoder, CharTokenizer]:
    """A model with random weights, in a folder and in memory."""
    tokenizer = CharTokenizer(ALPHABET)
    torch.manual_seed(0)
    net = Decoder(config(name, tokenizer.size))
    files.write(
        to, net.config, dict(net.named_parameters()), eos=tokenizer.eos, special=tokenizer.special
    )
    tokenizer.save(to)
    return net, tokenizer


def of_engine(
    net: Decoder, tokenizer: CharTokenizer, clients: int, seconds: float
) -> dict[str, float]:
    """Rates of the engine alone."""
    engine = TorchEngine(net, rows=clients, length=256, ends=Ends(tokenizer.eos), seed=0)
    prompt, group, tokens, began, cpu = tokenizer.encode(PROMPT), 0, 0, 0.0, 0.0
    for group in range(clients):
        engine.submit(group, prompt, 1, limit=LIMIT)
    until = time.perf_counter() + 1 + seconds
    while (now := time.perf_counter()) < until:
        if not began and now > until - seconds:
            began, tokens, cpu = now, 0, time.process_time()
        tokens += engine.live
        for _ in engine.step():
            group += 1
            engine.submit(group, prompt, 1, limit=LIMIT)
    return {
        "tokens_per_s": tokens / (now - began),
        "tokens_per_cpu_s": tokens / (time.process_time() - cpu),
    }


class Serving(NamedTuple):
    """A server's port and process."""

    port: int
    pid: int


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[Serving]:
    """``equipoise serve`` of a model."""
    command = [sys.executable, "-m", "equipoise", "serve", str(folder), "--port", "0", *options]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        found = re.search(r":(\d+)/v1", process.stdout.readline())
        assert found, "the server did not start"
        try:
            yield Serving(int(found[1]), process.pid)
        finally:
            process.send_signal(signal.SIGTERM)


class Counted:
    """Tokens, processor seconds and the time, of a server."""

    def __init__(self, server: Serving) -> None:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.port}/metrics") as answer:
            page = answer.read().decode()
        self.tokens = float(page.partition("\nequipoise_tokens_total ")[2].split()[0])
        fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
        self.cpu = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        self.time = time.perf_counter()


def of_server(server: Serving, clients: int, seconds: float, stream: bool) -> dict[str, float]:
    """Rates of a server under load."""
    words = [str(server.port), str(clients), str(seconds + 1.5), *(["--stream"] if stream else [])]
    command = [sys.executable, str(Path(__file__).with_name("chat_load.py")), *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(1)
        first = Counted(server)
        time.sleep(seconds)
        last = Counted(server)
        found: dict[str, float] = json.loads(process.stdout.read())
    tokens = last.tokens - first.tokens
    rates = {
        "tokens_per_s": tokens / (last.time - first.time),
        "tokens_per_cpu_s": tokens / (last.cpu - first.cpu),
    }
    return found | rates


async def swapped(net: Decoder, tokenizer: CharTokenizer, clients: int) -> dict[str, float]:
    """Seconds of swaps, and the longest and usual seconds until an answer begins."""
    engine = RequestEngine(net, rows=clients, length=256, eos=tokenizer.eos, seed=0)
    engine.make_room()
    writer = Writer(engine, tokenizer.decode, "0", asyncio.get_running_loop())
    job = Job(
        prompts=[tokenizer.encode(PROMPT)],
        sampling=[Sampling()],
        n=1,
        limit=LIMIT,
        stop=(),
        stream=True,
        with_logprobs=False,
    )
    params = {name: x.clone() for name, x in net.named_parameters()}
    begun: dict[bool, list[float]] = {False: [], True: []}
    over, swapping, swaps = False, False, list[float]()

    async def client() -> None:
        while not over:
            asked, reply = time.perf_counter(), Reply(job)
            writer.write(reply)
            await reply.next()
            begun[swapping].append(time.perf_counter() - asked)
            while await reply.next():
                pass

    writer.start()
    callers = [asyncio.create_task(client()) for _ in range(clients)]
    for number in range(1, 11):
        swapping = False
        await asyncio.sleep(1)
        swapping, asked = True, time.perf_counter()
        writer.offer(str(number), params, print)
        while writer.version != str(number):
            await asyncio.sleep(0.001)
        swaps.append(time.perf_counter() - asked)
        await asyncio.sleep(0.1)  # those that waited begin
    over = True
    await asyncio.gather(*callers)
    writer.close()
    return {
        "swap_p50_s": statistics.median(swaps),
        "swap_max_s": max(swaps),
        "first_token_p50_s": statistics.median(begun[False]),
        "first_token_p50_in_swaps_s": statistics.median(begun[True]),
        "first_token_max_in_swaps_s": max(begun[True]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="tiny,1m,25m")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--swaps", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.models.split(","):
        rounds: dict[str, list[float]] = {}
        with tempfile.TemporaryDirectory() as folder:
            net, tokenizer = write(name, Path(folder))
            if given.swaps:
                for measure, value in asyncio.run(swapped(net, tokenizer, given.clients)).items():
                    print(f"{name:5} {measure:26} {value:8.2f}", flush=True)
                continue
            options = ("--batch", str(given.clients), "--context", "256")
            for _ in range(given.rounds):
                engine = of_engine(net, tokenizer, given.clients, given.seconds)
                sides = {"engine": engine}
                with serving(Path(folder), *options) as server:
                    for side in ("whole", "stream"):
                        found = of_server(server, given.clients, given.seconds, side == "stream")
                        found["ratio"] = found["tokens_per_s"] / engine["tokens_per_s"]
                        found["cpu ratio"] = found["tokens_per_cpu_s"] / engine["tokens_per_cpu_s"]
                        sides[side] = found
                for side, measures in sides.items():
                    for measure, value in measures.items():
                        rounds.setdefault(f"{side} {measure}", []).append(value)
        for measure, values in rounds.items():
            print(f"{name:5} {measure:24} {statistics.median(values):12,.2f}", flush=True)


if __name__ == "__main__":
    main()
