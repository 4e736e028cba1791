"""GRPO of TRL on a task's prompts: seconds and reward of each update, as one JSON object.

    PYTHONPATH=src ~/.cache/equipoise-peers/trl/bin/python benchmarks/peers/run_trl.py MODEL_DIR
    PROMPTS.jsonl
        [--updates 40] [--threads 2] [--bf16] [--paged] [--completion 7] [--groups 32] [--group 8]
        [--rate 1e-3] [--lora RANK]

A line of PROMPTS.jsonl has a prompt and the answer that it wants. The reward is that of our own
tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from equipoise.language.scoring.own import answered


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model")
    parser.add_argument("prompts", type=Path)
    parser.add_argument("--updates", type=int, default=40)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--paged", action="store_true")
    parser.add_argument("--completion", type=int, default=7)
    parser.add_argument("--groups", type=int, default=32)
    parser.add_argument("--group", type=int, default=8)
    parser.add_argument("--rate", type=float, default=1e-3)
    parser.add_argument("--lora", type=int, default=0, help="rank; 0: the whole model learns")
    parser.add_argument("--seed", type=int, default=1)
    a = parser.parse_args()
    import torch

    torch.set_num_threads(a.threads)
    from datasets import Dataset
    from transformers import AutoTokenizer, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    rows = [json.loads(line) for line in a.prompts.read_text().splitlines()]

    tokenizer = AutoTokenizer.from_pretrained(a.model)

    def reward(
        completions: list[str], completion_ids: list[list[int]], answer: list[str], **_: Any
    ) -> list[float]:
        ended = [ids[-1] == tokenizer.eos_token_id for ids in completion_ids]
        return answered(completions, answer=answer, ended=ended)

    at, tokens, rewards = list[float](), list[float](), list[float]()

    class Clock(TrainerCallback):
        def on_step_end(self, *_: Any, **__: Any) -> None:
            at.append(time.perf_counter())

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **_: Any) -> None:
            if logs and "reward" in logs:
                rewards.append(logs["reward"])
                tokens.append(logs["completions/mean_length"])

    with tempfile.TemporaryDirectory() as folder:
        adapters = None
        if a.lora:
            from peft import LoraConfig

            # scale and layers as ours
            adapters = LoraConfig(
                r=a.lora, lora_alpha=16, lora_dropout=0.0, target_modules="all-linear"
            )
        paged = {"use_transformers_continuous_batching": True} if a.paged else {}
        args = GRPOConfig(
            output_dir=folder,
            per_device_train_batch_size=a.groups * a.group,
            num_generations=a.group,
            max_steps=a.updates,
            max_completion_length=a.completion,
            learning_rate=a.rate,
            lr_scheduler_type="linear",
            beta=0.0,
            bf16=a.bf16,
            loss_type="dapo",
            scale_rewards="none",
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            logging_steps=1,
            gradient_checkpointing=False,
            temperature=1.0,
            seed=a.seed,
            disable_tqdm=True,
            **paged,
        )
        trainer = GRPOTrainer(
            model=a.model,
            reward_funcs=reward,
            args=args,
            train_dataset=Dataset.from_list(rows),
            callbacks=[Clock()],
            peft_config=adapters,
            processing_class=tokenizer,
        )
        began = time.perf_counter()
        trainer.train()
    json.dump({"began": began, "at": at, "reward": rewards, "length": tokens}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
