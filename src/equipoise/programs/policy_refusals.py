"""Refusals of one policy: an algorithm, an optimizer, rewards and a replay that cannot work
together or on this placement.
"""

from __future__ import annotations

from equipoise.facts import as_text, values_of
from equipoise.programs.limits import block_problems
from equipoise.programs.ranges import out_of_range
from equipoise.sources.source import source_of
from equipoise.sums import ENV, parsed
from equipoise.types import Policy, Program, ReplaySettings, Rewards, learning

__all__ = ["policy_problems"]


def policy_problems(program: Program, policy: Policy) -> list[str]:
    place = program.placement
    problems = [*out_of_range(policy), *out_of_range(policy.algorithm, "algorithm.")]
    problems += out_of_range(policy.optimizer, "optimizer.")
    problems += _rewards_problems(policy)
    if policy.algorithm.target_every and not policy.algorithm.has_target:
        name = type(policy.algorithm).__name__
        problems.append(
            f"algorithm.target_every: expected 0, since {name} has no target network, got "
            f"{policy.algorithm.target_every}"
        )
    if problems or place.envs_per_actor < 1 or place.actors < 1:
        return problems  # the rest divides by these
    if values_of(policy.algorithm).get("torso") == "vae":
        problems += _latent_problems(program, policy)
    problems += _collecting_problems(program, policy)
    if policy.replay is not None:
        return problems + _replay_problems(program, policy, policy.replay)
    if policy.algorithm.needs_replay:
        return [
            *problems,
            f"policy: expected a replay, which {type(policy.algorithm).__name__} learns from, got "
            "none",
        ]
    problems += _batch_problems(program, policy)
    if refused := policy.algorithm.refused(place.max_lag):
        problems.append(refused)
    problems += source_of(program).policy_problems(policy)
    rows, parts = policy.unroll * policy.batch, policy.algorithm.minibatches
    if rows % parts:
        fits = max(n for n in range(1, parts + 1) if rows % n == 0)
        problems.append(
            f"algorithm.minibatches: expected a divisor of the {rows} rows of a batch (unroll "
            f"{policy.unroll} x batch {policy.batch}), got {parts}; the nearest below is {fits}"
        )
    if place.max_lag is not None and policy.publish_every != 1:
        problems.append(
            f"publish_every: expected 1 with a bounded max_lag ({place.max_lag}), got "
            f"{policy.publish_every}: the lag would exceed the bound; or use max_lag=none"
        )
    return problems


def _rewards_problems(policy: Policy) -> list[str]:
    rewards, name = policy.rewards, type(policy.algorithm).__name__
    problems = out_of_range(rewards, "rewards.")
    problems += _sum_problems(policy)
    if not policy.algorithm.reads_rewards and rewards != Rewards():
        problems.append(
            f"rewards: expected the defaults, since {name} learns from no rewards, got {rewards}"
        )
    if rewards.normalize and policy.replay is not None:
        problems.append(
            f"rewards.normalize: expected false with {name}, got true: the deviation of a return "
            "takes whole streams, and the "
            "batches of a replay are windows of the past; use rewards.scale"
        )
    elif rewards.normalize and not hasattr(policy.algorithm, "gamma"):
        problems.append(
            f"rewards.normalize: expected false with {name}, which has no gamma, got true"
        )
    return problems


def _sum_problems(policy: Policy) -> list[str]:
    rewards, algorithm = policy.rewards, policy.algorithm
    if rewards.sum == ENV and not rewards.terms:
        outputs = values_of(algorithm).get("value_heads", 1)
        return [
            f"algorithm.value_heads: must be 1 without a term that has a head, got {outputs}; try "
            "reward.TERM.head=true"
        ] * (outputs != 1)
    if algorithm.needs_task:
        return [
            "rewards.sum: must be env on text, whose rewards are functions, got "
            f"{rewards.sum!r}; try --reward module:function"
        ]
    from equipoise.rewards.terms import following  # it loads torch

    try:
        terms = following(rewards, algorithm)
    except ValueError as error:
        return [str(error)]
    problems = [
        problem for name, term in terms.items() for problem in out_of_range(term, f"reward.{name}.")
    ]
    return problems + _head_problems(policy, [name for name, term in terms.items() if term.head])


def _collecting_problems(program: Program, policy: Policy) -> list[str]:
    """Problems with terms of the rewards that see each new row."""
    if policy.rewards.sum == ENV or policy.algorithm.needs_task:
        return []
    from equipoise.rewards.terms import collecting, made

    terms = {name: one for name, one in made(policy.rewards).items() if collecting(one)}
    learners, shards = (
        program.placement.learners,
        1 if policy.replay is None else policy.replay.shards,
    )
    problems = [
        f"placement.shard: must be none or fsdp with reward {name} and several learners, got tensor"
        for name, term in terms.items()
        if term.together and learners > 1 and program.placement.shard == "tensor"
    ]
    for name in list(terms)[:1]:
        why = f"with reward {name}, which sees the rows as they arrive at the learner"
        if shards > 1:
            problems.append(f"replay.shards: must be 1 {why}, got {shards}")
        if not program.actors:
            problems.append(f"source.dataset: must be none {why}, got one; try without --dataset")
        if values_of(policy.algorithm).get("torso") == "vae":
            problems.append(f"algorithm.torso: must not be vae {why}, got vae")
    return problems


def _head_problems(policy: Policy, headed: list[str]) -> list[str]:
    """Problems with terms that have a value output of their own."""
    from equipoise.rewards.terms import names_of

    algorithm, text = policy.algorithm, policy.rewards.sum
    outputs, wanted = values_of(algorithm).get("value_heads"), len(headed) + 1
    problems = []
    if headed and outputs is None:
        problems.append(
            f"reward.{headed[0]}.head: must be false with {type(algorithm).__name__}, whose value "
            "has one output, got true; try ppo"
        )
    elif outputs not in (None, wanted):
        problems.append(
            f"algorithm.value_heads: must be {wanted}, one more than the terms with a head, got "
            f"{outputs}"
        )
    factors = {name for one in parsed(text, "reward") if len(one.names) > 1 for name in one.names}
    return problems + [
        f"reward.{name}.head: must be false for a factor of a product, got true"
        for word, name in names_of(text).items()
        if word in factors and name in headed
    ]


def _replay_problems(program: Program, policy: Policy, replay: ReplaySettings) -> list[str]:
    place = program.placement
    problems = [*out_of_range(replay, "replay."), *block_problems(program, policy)]
    if len(learning(program)) > 1:
        problems += _alone_problems(program, replay)
    if not policy.algorithm.needs_replay:
        name = type(policy.algorithm).__name__
        problems.append(
            f"replay: cannot be set, since {name} learns from the newest policy's rows alone"
        )
    if policy.publish_every != 1 and place.max_lag is not None:
        problems.append(
            f"publish_every: expected 1 with a bounded max_lag ({place.max_lag}), got "
            f"{policy.publish_every}"
        )
    rows = policy.unroll * program.actors * place.envs_per_actor
    recorded = replay.dataset or program.source.recorded
    if policy.algorithm.needs_dataset and not recorded:
        name = type(policy.algorithm).__name__
        problems.append(
            f"source.dataset: expected a data set, which {name} learns from, got none: it would "
            "only learn to do what it does; "
            "'train --dataset ID' learns from one, and 'equipoise collect' makes one of a run"
        )
    if recorded:
        problems += _dataset_problems(program, policy, replay)
    elif replay.selector == "fifo" and replay.updates * policy.batch > rows:
        problems.append(
            f"replay.updates: expected at most {rows // policy.batch} of batch {policy.batch}, "
            f"since fifo gives the {rows} rows of a round once, got {replay.updates}"
        )
    if replay.shards > 1:
        problems += _shard_problems(program, replay)
    if recorded and replay.relabel:
        problems.append(
            "replay.relabel: expected 0 with a data set, whose goals stay as they are, got "
            f"{replay.relabel:g}"
        )
    if replay.encodes and replay.file:
        problems.append(
            f"replay.file: cannot be set with replay.codec={replay.codec}, which is for memory, "
            f"got {replay.file}"
        )
    if replay.encodes and replay.memory:
        problems.append(
            f"replay.memory: expected 0 with replay.codec={replay.codec}, since how small rows "
            f"become is not known before, got {replay.memory:,}; use replay.capacity"
        )
    passes = {"minibatches": policy.algorithm.minibatches, "epochs": policy.algorithm.epochs}
    problems += [
        f"algorithm.{name}: expected 1 with a replay, got {count}: use replay.updates"
        for name, count in passes.items()
        if count != 1
    ]
    return problems


def _latent_problems(program: Program, policy: Policy) -> list[str]:
    replay, name = policy.replay, type(policy.algorithm).__name__
    if replay is None:
        return [
            "algorithm.torso: vae needs a replay, which keeps its latents; got "
            f"{name}, which has none"
        ]
    if "encoder_rows" not in values_of(policy.algorithm):
        return [
            "algorithm.torso: vae needs an algorithm with encoder_rows (OffPolicyAlgorithm), "
            f"got {name}"
        ]
    given = {
        "placement.learners": (
            1,
            program.placement.learners,
            "since each learner would train an encoder of its own",
        ),
        "replay.shards": (1, replay.shards, "since the learner's process has the encoder"),
        "replay.dataset": (
            "",
            replay.dataset or program.source.recorded,
            "since a data set has images",
        ),
        "replay.relabel": (0, replay.relabel, "since an encoder does not distinguish goals"),
    }
    return [
        f"{key}: expected {as_text(usual)} with algorithm.torso=vae, {why}, got {as_text(got)}"
        for key, (usual, got, why) in given.items()
        if got != usual
    ]


def _alone_problems(program: Program, replay: ReplaySettings) -> list[str]:
    given = {"replay.dataset": replay.dataset, "replay.relabel": replay.relabel}
    learn = ", ".join(learning(program))
    return [
        f"{key}: expected one policy that learns, since it takes an env of one agent, got {learn}"
        for key, value in given.items()
        if value
    ]


def _shard_problems(program: Program, replay: ReplaySettings) -> list[str]:
    problems = []
    if program.actors and replay.shards > program.actors:
        problems.append(
            f"replay.shards: expected at most {program.actors}, as many as actors, since each "
            f"keeps the rows of whole actors, got {replay.shards}"
        )
    if replay.selector == "fifo":
        problems.append(
            "replay.selector: expected uniform or prioritized with shards, which have no one "
            "order, got fifo"
        )
    if replay.dataset or program.source.recorded:
        problems.append(
            "replay.shards: expected 1 with a data set, which the learner's process reads, got "
            f"{replay.shards}"
        )
    return problems


def _dataset_problems(program: Program, policy: Policy, replay: ReplaySettings) -> list[str]:
    problems = []
    if replay.selector == "fifo":
        problems.append(
            "replay.selector: expected uniform or prioritized with a data set, whose rows come "
            "again, got fifo"
        )
    recorded = replay.recorded(policy.batch)
    if program.actors and 0 <= replay.dataset_share <= 1 and not 0 < recorded < policy.batch:
        problems.append(
            f"replay.dataset_share: expected a share of which a batch of {policy.batch} has items "
            f"of the data set and of live experience, got {replay.dataset_share}, {recorded} of "
            "the data set; --dataset ID learns from the data set alone"
        )
    return problems


def _batch_problems(program: Program, policy: Policy) -> list[str]:
    place = program.placement
    block, batch, lag = place.envs_per_actor, policy.batch, place.max_lag
    streams = program.actors * block
    if batch % block:
        near = max(block, (batch + block // 2) // block * block)
        if policy.algorithm.group_size is not None:
            return [
                f"batch: expected a multiple of algorithm.num_generations={block}, so that a "
                "prompt's samples are never split "
                f"between batches, got {batch}; the nearest is {near}"
            ]
        return [
            f"batch: expected a multiple of envs_per_actor={block}, so that an actor's unroll is "
            f"never split between batches (it could deadlock), got {batch}; the nearest is {near}"
        ]
    if lag is not None and lag >= 0 and streams > (slots := batch * (lag + 1)):
        enough = -(-streams // ((lag + 1) * block)) * block
        return [
            f"batch: expected room for all {streams} streams ({program.actors} actors x {block}) "
            f"in batch x (max_lag + 1) = {slots} slots, or some actors would always idle, got "
            f"{batch}; use batch={enough}, actors={slots // block} or "
            f"max_lag={-(-streams // batch) - 1}"
        ]
    return block_problems(program, policy)
