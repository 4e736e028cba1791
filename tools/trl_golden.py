"""Write the losses and gradients of TRL's trainers on random batches of pairs, which
``tests/algorithms/test_pairs_golden.py`` compares ours with.

``python tools/trl_golden.py`` in an environment with trl 1.16, transformers and this package.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import Tensor

sys.path.insert(0, str(Path(__file__).parents[1]))
from equipoise.language import files
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets.decoder import Decoder
from equipoise.nets.scored import ScoredDecoder
from tests.algorithms.pairs import SHAPE, filled, measured

FILE = Path(__file__).parents[1] / "tests/algorithms/trl_golden.json"
LETTERS = CharTokenizer("abcdefgh")
ROWS = 6
DPO: dict[str, dict[str, object]] = {
    "sigmoid": {"loss_type": ["sigmoid"], "beta": 0.3},
    "ipo": {"loss_type": ["ipo"], "beta": 0.3},
    "sigmoid_norm": {"loss_type": ["sigmoid_norm"], "beta": 2.0},
}
REWARD: dict[str, dict[str, object]] = {
    "plain": {},
    "margin": {},
    "center": {"center_rewards_coefficient": 0.05},
}
KTO: dict[str, dict[str, object]] = {
    "kto": {"beta": 0.3, "desirable_weight": 1.3, "undesirable_weight": 0.7}
}


def batches(seed: int) -> list[dict[str, Any]]:
    """Ragged pairs of tokens, each completion with its end, and a margin of each."""
    rng = random.Random(seed)

    def text(least: int, most: int) -> list[int]:
        return [rng.randrange(len(LETTERS.alphabet)) for _ in range(rng.randint(least, most))]

    return [
        {
            "prompt_ids": text(1, 5),
            "chosen_ids": [*text(1, 9), *LETTERS.eos],
            "rejected_ids": [*text(1, 9), *LETTERS.eos],
            "margin": round(rng.uniform(0, 2), 3),
        }
        for _ in range(ROWS)
    ]


def step(trainer: Any, inputs: Mapping[str, Any]) -> dict[str, Any]:
    trainer.model.zero_grad()
    loss: Tensor = trainer.compute_loss(trainer.model, dict(inputs))
    loss.backward()  # type: ignore[no-untyped-call]
    grads = {name: x.grad for name, x in trainer.model.named_parameters() if x.grad is not None}
    return {"loss": loss.item(), "gradient": measured(grads)}


def main() -> None:
    from datasets import Dataset
    from transformers import (
        AutoModelForCausalLM,
        AutoModelForSequenceClassification,
        AutoTokenizer,
    )
    from trl import DPOConfig, DPOTrainer, KTOConfig, KTOTrainer, RewardConfig, RewardTrainer

    rows = batches(0)
    golden: dict[str, Any] = {
        "trl": version("trl"),
        "rows": rows,
        "dpo": {},
        "reward": {},
        "kto": {},
    }
    with tempfile.TemporaryDirectory() as place:
        folders = {}
        for name, cls, seed in (
            ("policy", Decoder, 1),
            ("reference", Decoder, 2),
            ("reward", ScoredDecoder, 1),
        ):
            folders[name] = Path(place, name)
            net = filled(cls(SHAPE), seed)
            files.write(
                folders[name],
                SHAPE,
                dict(net.named_parameters()),
                eos=LETTERS.eos,
                special=LETTERS.special,
                scored=name == "reward",
            )
            LETTERS.save(folders[name])
        tokenizer = AutoTokenizer.from_pretrained(folders["policy"])
        pairs = Dataset.from_list([{"prompt": "ab", "chosen": "cd", "rejected": "e"}] * 2)
        labelled = Dataset.from_list(
            [{"prompt": "ab", "completion": one, "label": one == "cd"} for one in ("cd", "e")]
        )
        usual: dict[str, Any] = {
            "output_dir": str(Path(place, "out")),
            "use_cpu": True,
            "bf16": False,
            "gradient_checkpointing": False,
            "report_to": [],
        }

        def policy(name: str) -> Any:
            return AutoModelForCausalLM.from_pretrained(folders[name])

        for name, given in DPO.items():
            trainer = DPOTrainer(
                policy("policy"),
                ref_model=policy("reference"),
                args=DPOConfig(**usual, **given),
                train_dataset=pairs,
                processing_class=tokenizer,
            )
            golden["dpo"][name] = given | step(trainer, trainer.data_collator(rows))
        for name, given in REWARD.items():
            model = AutoModelForSequenceClassification.from_pretrained(
                folders["reward"], num_labels=1
            )
            trainer = RewardTrainer(
                model,
                args=RewardConfig(**usual, **given),
                train_dataset=pairs,
                processing_class=tokenizer,
            )
            kept = ("chosen_ids", "rejected_ids", *(["margin"] if name == "margin" else []))
            said = [
                {key: row[key] for key in kept}
                | {
                    "chosen_ids": row["prompt_ids"] + row["chosen_ids"],
                    "rejected_ids": row["prompt_ids"] + row["rejected_ids"],
                }
                for row in rows
            ]
            golden["reward"][name] = given | step(trainer, trainer.data_collator(said))
        for name, given in KTO.items():
            trainer = KTOTrainer(
                policy("policy"),
                ref_model=policy("reference"),
                args=KTOConfig(**usual, **given, per_device_train_batch_size=2),
                train_dataset=labelled,
                processing_class=tokenizer,
            )
            said = [
                {
                    "prompt_ids": row["prompt_ids"],
                    "completion_ids": row["chosen_ids"],
                    "KL_completion_ids": rows[(i + 1) % ROWS]["rejected_ids"],
                    "label": i % 3 != 0,
                }
                for i, row in enumerate(rows)
            ]
            golden["kto"][name] = given | step(trainer, trainer.data_collator(said))
    FILE.write_text(json.dumps(golden, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
