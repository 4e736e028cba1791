"""Losses, advantages and gradients beside TRL's own code, on random batches of a small Llama;
nothing is timed.

    benchmarks/peers/setup.sh trl PYTHONPATH=src ~/.cache/equipoise-peers/trl/bin/python
    benchmarks/peers/trl_losses.py [--batches N]

TRL generates, scores and computes its loss; ours gets the same tokens, rewards and
log-probabilities as ``Packed`` rows and the same weights in its own decoder. A row: the setting,
and the largest differences of loss (as a share of the mean advantage, since its terms cancel out),
advantages and gradient (of the greatest). The exit code is 1 where one is above 1e-5.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from equipoise.algorithms.grpo import GRPO
from equipoise.algorithms.rloo import RLOO
from equipoise.learners.pool import ALONE
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.types import Batch, Packed

GROUP, GROUPS, LONGEST, WORDS = 4, 4, 12, 32
# PAD is a word like others to the model: transformers' padding_idx gives it no gradient
PAD, EOS, ALLOWED = 0, 1, 1e-5
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
}
KL = {"beta": 0.1, "target_every": 10**9}
CASES: dict[str, tuple[dict[str, Any], Any]] = {  # attributes of TRL's trainer, and ours
    f"grpo: {loss_type}, {scale}": (
        {"loss_type": loss_type, "scale_rewards": scale},
        GRPO(loss_type=loss_type, scale_rewards=scale, max_completion=LONGEST),
    )
    for loss_type in ("dapo", "grpo", "dr_grpo")
    for scale in ("group", "batch", "none")
} | {
    "grpo: clip 0.2, 0.28": ({"loss_type": "dapo", "epsilon_high": 0.28}, GRPO(epsilon_high=0.28)),
    "grpo: sequence": (
        {"loss_type": "grpo", "importance_sampling_level": "sequence"},
        GRPO(loss_type="grpo", importance="sequence"),
    ),
    "grpo: cispo": (
        {"loss_type": "cispo", "epsilon_high": 1.3},
        GRPO(surrogate="cispo", epsilon_high=0.3),
    ),
    "grpo: beta": ({"loss_type": "dapo", "beta": 0.1}, GRPO(**KL)),
    "grpo: beta, grpo": ({"loss_type": "grpo", "beta": 0.1}, GRPO(loss_type="grpo", **KL)),
    "grpo: beta, times the ratio": (
        {"loss_type": "dapo", "beta": 0.1, "kl_ratio": True},
        GRPO(kl_ratio=True, **KL),
    ),
    "grpo: truncated weights": (
        {"loss_type": "dapo", "weights": "token"},
        GRPO(anchor="recomputed", correction="token_tis", cap=1.2),
    ),
    "grpo: truncated weights of samples": (
        {"loss_type": "dapo", "weights": "sequence"},
        GRPO(anchor="recomputed", correction="sequence_tis", cap=1.2),
    ),
    "rloo": ({}, RLOO()),
    "rloo: beta": ({"beta": 0.1}, RLOO(**KL)),
}
DEFAULTS = {
    "beta": 0.0,
    "epsilon_low": 0.2,
    "epsilon_high": 0.2,
    "importance_sampling_level": "token",
    "scale_rewards": "group",
    "current_gradient_accumulation_steps": 1,
}


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(
        models.WordLevel(
            {"<pad>": PAD, "<eos>": EOS} | {f"w{i}": i for i in range(2, WORDS)}, unk_token="<pad>"
        )
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", eos_token="<eos>", padding_side="left"
    )


def llama(seed: int) -> Any:
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        **SHAPE, eos_token_id=EOS, pad_token_id=None, bos_token_id=EOS, initializer_range=0.3
    )
    return LlamaForCausalLM(config)


def reward(completion_ids: list[list[int]], **_: Any) -> list[float]:
    """Something that differs; a quarter of the groups get nothing."""
    return [float(sum(ids) % 7) / 3 if ids[0] % 4 else 0.0 for ids in completion_ids]


def trainers(folder: str) -> dict[str, Any]:
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer
    from trl.trainer.grpo_trainer import add_fused_lm_head

    common: dict[str, Any] = {
        "output_dir": folder,
        "per_device_train_batch_size": GROUP * GROUPS,
        "num_generations": GROUP,
        "use_cpu": True,
        "max_completion_length": LONGEST,
        "bf16": False,
        "report_to": "none",
        "beta": 0.0,
        "gradient_checkpointing": False,
    }
    rows = Dataset.from_dict({"prompt": ["w2 w3"] * GROUPS})
    made = {}
    for name, config, trainer in (
        ("grpo", GRPOConfig, GRPOTrainer),
        ("rloo", RLOOConfig, RLOOTrainer),
    ):
        made[name] = trainer(
            model=llama(1),
            reward_funcs=reward,
            args=config(**common),
            train_dataset=rows,
            processing_class=tokenizer(),
        )
        made[name].ref_model = llama(2)
        add_fused_lm_head(made[name].ref_model, temperature=1.0, cast_lm_head_to_fp32=False)
    return made


def scored(trainer: Any, rng: np.random.Generator) -> dict[str, Any]:
    """A batch as TRL makes it, with other log-probabilities of then,
    so that ratios differ from 1.
    """
    prompts = [
        " ".join(f"w{i}" for i in rng.integers(2, WORDS, rng.integers(1, 5))) for _ in range(GROUPS)
    ]
    inputs = [{"prompt": prompt} for prompt in prompts for _ in range(GROUP)]
    made: dict[str, Any] = trainer._generate_and_score_completions(inputs)
    return made


def spoken(trainer: Any, made: dict[str, Any], model: Any) -> Tensor:
    ids = torch.cat([made["prompt_ids"], made["completion_ids"]], 1)
    mask = torch.cat([made["prompt_mask"], made["completion_mask"]], 1)
    with torch.no_grad():
        return trainer._get_per_token_logps_and_entropies(
            model, ids, mask, made["completion_ids"].shape[1]
        )[0]


def packed(made: dict[str, Any], logp: Tensor) -> Packed:
    """TRL's padded rows without their padding."""
    rows, lengths = list[tuple[Any, ...]](), list[int]()
    for m in range(GROUP * GROUPS):
        prompt = made["prompt_ids"][m][made["prompt_mask"][m].bool()].tolist()
        if m % GROUP == 0:
            rows += [(token, n, -1, False, 0.0, -1, 0.0) for n, token in enumerate(prompt)]
        lengths.append(len(prompt))
        size = int(made["completion_mask"][m].sum())
        ids = made["completion_ids"][m, :size].tolist()
        paid = reward([ids])[0]
        rows += [
            (token, len(prompt) + n, m, True, float(logp[m, n]), 0, paid if n == size - 1 else 0.0)
            for n, token in enumerate(ids)
        ]
    token, position, sample, chosen, logps, version, rewards = map(
        torch.tensor, zip(*rows, strict=True)
    )
    number = torch.arange(GROUP * GROUPS)
    return Packed(
        token=token,
        position=position,
        sample=sample,
        chosen=chosen,
        logp=logps,
        version=version,
        reward=rewards,
        prompt=torch.tensor(lengths),
        group=number // GROUP,
        stop=torch.ones_like(number),
        task=number // GROUP,
        refills=0 * number,
    )


def theirs(
    name: str, trainer: Any, settings: dict[str, Any], rng: np.random.Generator
) -> tuple[Any, Tensor, Tensor]:
    """-> the batch, log-probabilities of the engine [M, T] and the loss."""
    for key, value in (DEFAULTS | settings).items():
        setattr(trainer, key, value)
    trainer.args.use_bias_correction_kl = settings.get("kl_ratio", False)
    made = scored(trainer, rng)
    now = spoken(trainer, made, trainer.model)
    engine = now + 0.3 * torch.from_numpy(rng.standard_normal(now.shape)).float()
    weights = settings.get("weights")
    trainer.use_vllm = bool(weights)
    if name == "rloo":
        made["old_logps"] = (engine * made["completion_mask"]).sum(1)
        if trainer.beta:  # its reward was made with the log-probabilities of its model
            engine = now
            made["old_logps"] = (now * made["completion_mask"]).sum(1)
    elif weights:
        gap = (now - engine) * made["completion_mask"]
        ratio = (gap.sum(1, keepdim=True) if weights == "sequence" else gap).exp().clamp(max=1.2)
        made |= {"old_per_token_logps": now, "importance_sampling_ratio": ratio}
        trainer.vllm_importance_sampling_correction = True
    else:
        made["old_per_token_logps"] = engine
    trainer.model.train()
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, made)
    loss.backward()
    trainer.use_vllm = False
    return made, engine, loss.detach()


def decoder(model: Any) -> Decoder:
    net = Decoder(DecoderConfig(family="llama", **SHAPE))
    # it is the embedding
    weights = {name: x for name, x in model.state_dict().items() if name != "lm_head.weight"}
    net.load_state_dict(weights)
    return net


def apart(ours: Tensor, other: Tensor) -> float:
    return float((ours - other).abs().max() / other.abs().max().clamp(min=1e-12))


def compared(
    name: str, trainer: Any, settings: dict[str, Any], algorithm: Any, rng: np.random.Generator
) -> dict[str, float]:
    made, engine, their_loss = theirs(name, trainer, settings, rng)
    data, net, reference = packed(made, engine), decoder(trainer.model), decoder(trainer.ref_model)
    with torch.no_grad():
        targets = algorithm.targets(net, reference, data, rng=torch.Generator(), pool=ALONE)
    items = GROUP * GROUPS
    batch = Batch(
        data=data, keys=np.zeros((items, 2), np.int64), weight=torch.ones(items), targets=targets
    )
    out = algorithm.loss(net, reference, batch, group="all", step=0.0, rng=torch.Generator())
    loss = out.loss / out.count
    loss.backward()
    gradients = dict(trainer.model.named_parameters())
    flat = [
        torch.cat([x.flatten() for x in xs])
        for xs in zip(*((p.grad, gradients[k].grad) for k, p in net.named_parameters()))
    ]
    firsts = [int((data.sample == m).nonzero()[0]) for m in range(items)]
    return {
        "loss": float((loss.detach() - their_loss).abs() / made["advantages"].abs().mean()),
        "advantage": apart(targets["advantage"][firsts], made["advantages"]),
        "gradient": apart(*flat),
    }


def results(batches: int) -> Iterator[tuple[str, dict[str, float]]]:
    with tempfile.TemporaryDirectory() as folder:
        made = trainers(folder)
        for case, (settings, algorithm) in CASES.items():
            rng, worst = np.random.default_rng(7), dict[str, float]()
            name = case.split(":")[0]
            for _ in range(batches):
                found = compared(name, made[name], settings, algorithm, rng)
                worst = {key: max(value, worst.get(key, 0.0)) for key, value in found.items()}
            yield case, worst


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batches", type=int, default=3, help="random batches of each setting")
    batches, wrong = parser.parse_args().batches, 0
    print(f"{'setting':38}{'loss':>10}{'advantage':>12}{'gradient':>12}")
    for case, worst in results(batches):
        print(
            f"{case:38}{worst['loss']:>10.1e}{worst['advantage']:>12.1e}{worst['gradient']:>12.1e}",
            flush=True,
        )
        wrong += any(value > ALLOWED for value in worst.values())
    print(f"{wrong} of {len(CASES)} settings differ by more than {ALLOWED:g}")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
