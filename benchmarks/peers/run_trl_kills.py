"""GRPO of TRL for ``benchmarks/lm_kills.py``: it goes on from its newest checkpoint, if it has one.

    PYTHONPATH=benchmarks python benchmarks/peers/run_trl_kills.py SCENARIO_JSON PLACE OUT

At a ``max_lag`` above 0 a batch is generated for so many updates at once (``steps_per_generation``),
which is how TRL learns from samples of earlier weights in one process.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import lm_kills_task
import torch
from datasets import Dataset
from transformers import AutoTokenizer, TrainerCallback
from transformers.trainer_utils import get_last_checkpoint
from trl import GRPOConfig, GRPOTrainer


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def main() -> None:
    scenario, place, out = json.loads(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    model = str(place / "model")
    tokenizer = AutoTokenizer.from_pretrained(model)
    train, held_out = (rows(place / f"{name}.jsonl") for name in ("prompts", "held_out"))
    known = {tuple(tokenizer(one["prompt"])["input_ids"]): one["id"] for one in train}
    seen: list[str] = []  # of the update that is being made

    class Logging(GRPOTrainer):
        def compute_loss(self, model: Any, inputs: Any, *given: Any, **more: Any) -> Any:
            if self.model.training:
                for ids, mask in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True):
                    seen.append(known[tuple(ids[mask.bool()].tolist())])
            return super().compute_loss(model, inputs, *given, **more)

    class Lines(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            lm_kills_task.log("trained", update=state.global_step - 1, ids=list(seen))
            seen.clear()

    config = GRPOConfig(
        output_dir=str(out),
        per_device_train_batch_size=scenario["prompts"] * scenario["group"],
        per_device_eval_batch_size=scenario["prompts"] * scenario["group"],
        num_generations=scenario["group"],
        steps_per_generation=max(scenario["max_lag"], 1),
        max_steps=scenario["updates"],
        max_completion_length=scenario["completion"],
        learning_rate=1e-3,
        beta=0.0,
        bf16=False,
        use_cpu=True,
        report_to="none",
        save_strategy="steps",
        save_steps=scenario["every"],
        eval_strategy="steps" if scenario["evaluated"] else "no",
        eval_steps=scenario["evaluated"] or None,
        logging_steps=10,
        gradient_checkpointing=False,
        temperature=1.0,
        seed=scenario["seed"],
        disable_tqdm=True,
    )
    trainer = Logging(
        model=model,
        reward_funcs=lm_kills_task.reward,
        args=config,
        train_dataset=Dataset.from_list(train),
        eval_dataset=Dataset.from_list(held_out),
        callbacks=[Lines()],
        processing_class=tokenizer,
    )
    there = out.is_dir() and get_last_checkpoint(str(out)) is not None
    trainer.train(resume_from_checkpoint=there)
    trainer.save_model(str(out / "final"))


if __name__ == "__main__":
    main()
