"""DPO on ragged pairs: tokens/s of our learner beside TRL's DPOTrainer, in turns A B A B.

    PYTHONPATH=src PYTHON_OF_TRL benchmarks/dpo.py [--turns 3] [--steps 4] [--pairs 16]

Run it with the Python of an environment that has trl and what Equipoise needs. A decoder of 1M
parameters, float32, one thread, the same first weights and pairs. A step is a whole one on both
sides: batch, loss, gradient, clip and Adam; start-up, tokens and first log-probabilities of the
reference are left out. Tokens are those of both texts of a pair, its prompt twice. TRL reads
log-probabilities of the reference that it computed before; with ``--reference`` it computes them in
each step, which is its default.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from equipoise.algorithms.dpo import DPO
from equipoise.language import files
from equipoise.language.tokenizers import CharTokenizer
from equipoise.learners.learner import Learner
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.types import Batch, Optimizer, Trajectory

SHAPE = DecoderConfig(
    vocab_size=512,
    hidden_size=128,
    num_hidden_layers=5,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=32,
    intermediate_size=352,
)
LETTERS = CharTokenizer("abcdefghijklmnopqrstuvwxyz")
RATE = 1e-6


def pairs(count: int) -> list[dict[str, str]]:
    """Prompts of 16 to 128 letters, completions of a lognormal length, 8 to 384."""
    rng = random.Random(0)

    def text(length: float) -> str:
        return "".join(rng.choice(LETTERS.alphabet) for _ in range(int(length)))

    def answer() -> str:
        return text(min(max(rng.lognormvariate(4.3, 0.8), 8), 384))

    return [
        {"prompt": text(rng.randint(16, 128)), "chosen": answer(), "rejected": answer()}
        for _ in range(count)
    ]


def slots(rows: list[dict[str, str]]) -> Batch:
    """The pairs as a batch of the queue."""
    end = LETTERS.eos[0]
    prompts = [LETTERS.encode(row["prompt"]) for row in rows for _ in range(2)]
    texts = [[*LETTERS.encode(row[name]), end] for row in rows for name in ("chosen", "rejected")]
    count, most = len(texts), max(map(len, texts))
    token = torch.zeros(count, most, dtype=torch.int64)
    prompt = torch.zeros(count, max(map(len, prompts)), dtype=torch.int64)
    for number, (asked, text) in enumerate(zip(prompts, texts, strict=True)):
        token[number, : len(text)] = torch.tensor(text)
        prompt[number, : len(asked)] = torch.tensor(asked)
    length = torch.tensor([len(one) for one in texts])
    chosen = torch.arange(most) < length[:, None]
    zero, place = torch.zeros(count, dtype=torch.int64), torch.arange(count)
    data = Trajectory(
        obs={},
        first=torch.ones(2, count, dtype=torch.bool),
        action={"token": token[None]},
        behaviour={
            "logp": torch.full((1, count, most), -3.3),
            "version": torch.zeros(1, count, most, dtype=torch.int64),
            "length": length[None],
            "stop": zero[None] + 1,
            "chosen": chosen[None],
        },
        reward=(1.0 - place % 2)[None],
        mask=torch.ones(1, count, dtype=torch.bool),
        bootstrap=torch.zeros(1, count, dtype=torch.bool),
        version=zero[None],
        state={},
        context={
            "stream": place,
            "start": zero,
            "task": place // 2,
            "group": place // 2,
            "refills": zero,
            "prompt_length": torch.tensor([len(one) for one in prompts]),
            "prompt": prompt,
        },
    )
    return Batch(
        data=data, keys=np.zeros((count, 2), np.int64), weight=torch.ones(count), targets={}
    )


def tokens(rows: list[dict[str, str]]) -> int:
    return sum(2 * len(r["prompt"]) + len(r["chosen"]) + len(r["rejected"]) + 2 for r in rows)


class Ours:
    def __init__(self, batches: list[list[dict[str, str]]], folder: Path) -> None:
        net = Decoder(SHAPE)
        files.load(net, folder)
        optimizer = Optimizer(
            name="adamw", learning_rate=RATE, schedule="constant", epsilon=1e-8, max_grad_norm=1.0
        )
        self.learner = Learner(
            DPO(), net, optimizer=optimizer, schedule_updates=1_000, seed=0, batch=len(batches[0])
        )
        self.batches = [slots(rows) for rows in batches]

    def run(self) -> float:
        start = time.perf_counter()
        for batch in self.batches:
            self.learner.step(batch)
        return time.perf_counter() - start


class Theirs:
    def __init__(
        self, batches: list[list[dict[str, str]]], folder: Path, *, precomputed: bool
    ) -> None:
        from datasets import Dataset
        from transformers import AutoModelForCausalLM, AutoTokenizer
        from trl import DPOConfig, DPOTrainer

        model = AutoModelForCausalLM.from_pretrained(folder)
        args: Any = DPOConfig(
            output_dir=str(folder / "out"),
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            report_to=[],
            per_device_train_batch_size=len(batches[0]),
            max_steps=len(batches),
            learning_rate=RATE,
            lr_scheduler_type="constant",
            precompute_ref_log_probs=precomputed,
            max_length=None,
            logging_steps=10_000,
            save_strategy="no",
            disable_tqdm=True,
        )
        self.trainer = DPOTrainer(
            model,
            args=args,
            train_dataset=Dataset.from_list([row for rows in batches for row in rows]),
            processing_class=AutoTokenizer.from_pretrained(folder),
        )

    def run(self) -> float:
        start = time.perf_counter()
        self.trainer.train()
        return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4)
    parser.add_argument("--pairs", type=int, default=16, help="pairs of a step")
    parser.add_argument("--reference", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    rows = pairs(given.steps * given.pairs)
    batches = [rows[n : n + given.pairs] for n in range(0, len(rows), given.pairs)]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        net = Decoder(SHAPE)
        params = dict(net.named_parameters())
        files.write(folder, SHAPE, params, eos=LETTERS.eos, special=LETTERS.special)
        LETTERS.save(folder)
        sides: dict[str, Ours | Theirs] = {
            "equipoise": Ours(batches, folder),
            "trl": Theirs(batches, folder, precomputed=not given.reference),
        }
        took: dict[str, list[float]] = {name: [] for name in sides}
        for turn in range(given.turns + 1):
            for name, side in sides.items():
                seconds = side.run()
                if turn:  # the first is a warm-up
                    took[name].append(seconds)
    count = tokens(rows)
    speeds = {name: count / statistics.median(some) for name, some in took.items()}
    ratios = [theirs / ours for ours, theirs in zip(*took.values(), strict=True)]
    print(json.dumps({"tokens": count, "tokens/s": speeds, "ratios": ratios}, indent=1))
    print(f"median ratio {statistics.median(ratios):.2f}")


if __name__ == "__main__":
    main()
