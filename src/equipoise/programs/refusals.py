"""Refusals: programs that cannot work, settings that nothing would read, resumes that a saved state
does not fit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence

from equipoise.hints import hint
from equipoise.programs import fields
from equipoise.programs.combinations import combination_problems
from equipoise.programs.fields import why_unread
from equipoise.programs.policy_refusals import policy_problems
from equipoise.programs.program import (
    algorithm_class,
    algorithm_name,
    algorithm_names,
    differences,
    to_plain,
)
from equipoise.programs.ranges import out_of_range
from equipoise.programs.sampling_refusals import (
    device_env_problems,
    partial_problems,
    text_placement_problems,
)
from equipoise.programs.shard_refusals import shard_problems
from equipoise.sources.source import source_of
from equipoise.types import (
    PRECISIONS,
    EnvFactory,
    Frozen,
    Policy,
    Program,
    learning,
)

__all__ = [
    "check",
    "check_read",
    "check_replays",
    "check_resume",
    "fixed",
    "problems",
    "refuse",
    "unread",
]


# ------------------------------------------------------------------------------------------ program


def check(program: Program) -> None:
    """Check a program; one ValueError lists every problem, each with a value that works."""
    refuse(problems(program))


def problems(program: Program) -> list[str]:
    """Everything that cannot work, a sentence each; empty for a program that can."""
    env = [] if program.source.played is None else _env_problems(program.source.played)
    env += device_env_problems(program)
    env += text_placement_problems(program)
    found = [
        *_run_problems(program),
        *_source_problems(program),
        *env,
        *_together_problems(program),
    ]
    found += combination_problems(program)
    found += shard_problems(program)
    for name, policy in learning(program).items():
        room = f"policies.{name}." if len(program.policies) > 1 else ""
        found += [room + problem for problem in policy_problems(program, policy)]
    return found or _learners_problems(program)


def refuse(problems: Sequence[str]) -> None:
    """Raise a ValueError with all problems, if there are any."""
    if len(problems) == 1:
        raise ValueError(problems[0])
    if problems:
        raise ValueError(
            f"{len(problems)} settings cannot work:"
            + "".join(f"\n  {problem}" for problem in problems)
        )


def _run_problems(program: Program) -> list[str]:
    place = program.placement
    problems = [
        problem for room, part in fields.parts(program) for problem in out_of_range(part, room)
    ]
    if place.actors == 0:
        at = next(
            n for n, problem in enumerate(problems) if problem.startswith("placement.actors:")
        )
        problems[at] += "; 'train --dataset ID' learns from recorded rows alone"
    nearest = {"tf32": "medium", "fp16": "bf16"}.get(place.precision)
    if place.device == "cpu" and nearest is not None:
        problems.append(
            f"placement.precision: expected one of {', '.join(PRECISIONS['cpu'])} with device=cpu, "
            f"which has no {place.precision}, got {place.precision!r}; did you mean {nearest!r}?"
        )
    measurable = fields.measurable(program)
    problems += [
        f"placement.auto: expected some of {', '.join(measurable)}, got "
        f"{name!r}{hint(name, measurable)}"
        for name in place.auto
        if name not in measurable
    ]
    if place.inference == "central":
        problems += _central_problems(program)
    problems += partial_problems(program)
    if place.acting_precision != "fp32" and not program.actors:
        problems.append(
            "placement.acting_precision: expected fp32 without actors, since none acts, got "
            f"{place.acting_precision!r}"
        )
    names: Sequence[str] = program.source.reported
    if isinstance(names, str):
        problems.append(
            "source.metrics: expected a tuple of names, such as ('success',), got the text "
            f"{names!r}"
        )
    elif wrong := [name for name in names if not name.strip("/") or names.count(name) > 1]:
        problems.append(
            "source.metrics: expected different names of the env's info, such as success or "
            f"episode/r, got {wrong[0]!r}"
        )
    problems += _balance_problems(program)
    if not re.fullmatch(r"cpu|cuda(:\d+)?", place.device):
        problems.append(f"placement.device: expected cpu, cuda or cuda:N, got {place.device!r}")
    if program.evaluation.stop_at is not None and math.isnan(program.evaluation.stop_at):
        problems.append("evaluation.stop_at: expected a number, got nan")
    return problems


def _balance_problems(program: Program) -> list[str]:
    place, key = program.placement, "placement.balance"
    if place.balance != "auto" or not program.actors:
        return []
    if kept := [name for name, policy in learning(program).items() if policy.replay is not None]:
        return [
            f"{key}: expected off with a replay, in which the rows of actors that pause would grow "
            f"old ({kept[0]}), got 'auto'"
        ]
    least = max(place.least_actors, place.learners)
    if place.least_actors > place.actors:
        return [
            f"placement.least_actors: expected at most actors={place.actors}, got "
            f"{place.least_actors}"
        ]
    if least == place.actors and place.max_lag in (None, 1):
        lag = "none" if place.max_lag is None else place.max_lag
        return [
            f"{key}: expected something to change, such as more actors than {least}, which are the "
            f"least here, or max_lag of at least 2, got actors={place.actors} and max_lag={lag}"
        ]
    return []


def _learners_problems(program: Program) -> list[str]:
    """The parts that cannot be dealt evenly to several learners."""
    place, learners = program.placement, program.placement.learners
    if learners == 1:
        return []
    if not program.actors:
        return [
            "placement.learners: expected 1 without actors, whose rows are dealt to the learners, "
            f"got {learners}"
        ]
    if place.device not in ("cpu", "cuda"):
        return [
            f"placement.device: expected cuda with {learners} learners, which take cuda:0 and so "
            f"on, got {place.device!r}"
        ]
    for one in learning(program).values():
        if one.replay is not None and one.replay.dataset and one.replay.selector == "prioritized":
            return [
                f"replay.selector: expected uniform for a replay with a data set that {learners} "
                "learners share, since weights "
                "are divided by the largest one of all learners' live rows, got 'prioritized'"
            ]
    parts = {
        f"the {program.groups} groups of envs"
        if place.halves > 1
        else f"the {place.actors} actors": program.groups
    }
    for policy in learning(program).values():
        if policy.replay is None:
            blocks = policy.batch // place.group_envs
            parts[
                f"the {blocks} blocks of a batch of {policy.batch} ({place.group_envs} envs each)"
            ] = blocks
            if not policy.unroll * policy.batch // learners % policy.algorithm.minibatches:
                continue
            minibatches = policy.algorithm.minibatches
            rows = policy.unroll * policy.batch // minibatches
            parts[
                f"the {rows} rows of each of {minibatches} minibatches (policy.unroll x "
                "policy.batch of them)"
            ] = rows
        else:
            parts[f"the {policy.batch} items of a batch"] = policy.batch
            if policy.replay.shards > 1:
                parts[f"the {policy.replay.shards} shards of a replay"] = policy.replay.shards
    wrong = [what for what, count in parts.items() if count % learners]
    if not wrong:
        return []
    fits = [
        n
        for n in range(1, math.gcd(*parts.values()) + 1)
        if not any(count % n for count in parts.values())
    ]
    below = max(n for n in fits if n <= learners)
    near = sorted({below, min((n for n in fits if n > learners), default=below)})
    more = (
        f", or --actors {-(-place.actors // learners) * learners}"
        if program.groups % learners and len(wrong) == 1
        else ""
    )
    return [
        f"placement.learners: expected a divisor of {' and of '.join(wrong)}, since each learner "
        f"has its share of them, got {learners}; {' and '.join(map(str, near))} would work{more}"
    ]


def _central_problems(program: Program) -> list[str]:
    place = program.placement
    problems = []
    if program.actors == 0:
        problems.append(
            "placement.inference: expected local without actors, since nothing acts, got central"
        )
    elif program.outside:
        problems.append(
            f"placement.inference: expected local with {program.env.target}, whose actors have the "
            "worlds, got central"
        )
    elif place.inference_workers > program.actors:
        problems.append(
            f"placement.inference_workers: expected at most {program.actors}, as many as actors, "
            f"since each acts for the envs of whole actors, got {place.inference_workers}"
        )
    if 0 < place.inference_batch < place.group_envs:
        problems.append(
            f"placement.inference_batch: expected 0 or at least {place.group_envs}, the envs that "
            f"are stepped together, got {place.inference_batch}"
        )
    return problems


def _source_problems(program: Program) -> list[str]:
    recorded, problems = program.source.recorded, source_of(program).problems()
    if not recorded:
        return problems
    for policy in learning(program).values():
        if policy.replay is None:
            problems.append(
                f"source.dataset: expected an algorithm with a replay ({', '.join(_replaying())}), "
                f"got {_theirs(program)}"
            )
        elif policy.replay.dataset:
            problems.append(
                f"replay.dataset: cannot be set with source.dataset={recorded}, whose rows are all "
                f"there is, got {policy.replay.dataset}"
            )
    return problems


def _env_problems(env: EnvFactory) -> list[str]:
    problems = []
    if not re.fullmatch(r"auto|info|none|obs/.+", env.action_mask):
        problems.append(
            f"source.env.action_mask: expected auto, info, none or obs/KEY, got {env.action_mask!r}"
        )
    if (target := str(env.target)).strip() != target or not target:
        near = f"; did you mean {target.strip()!r}?" if target.strip() else ""
        problems.append(
            f"env: expected a Gymnasium id, module:id or module:callable, got {env.target!r}{near}"
        )
    try:
        to_plain(env.kwargs, "env")
    except ValueError as error:
        problems.append(str(error))
    return problems


def _together_problems(program: Program) -> list[str]:
    """Problems between policies, which learn from the same steps and publish together."""
    learn, problems = learning(program), []
    if not learn:
        return [f"policies: expected one that learns, got {sorted(program.policies) or 'none'}"]
    problems += [
        f"policies: expected names of letters, digits and _, got {name!r}"
        for name in program.policies
        if not name.isidentifier()
    ]
    for name, policy in program.policies.items():
        if isinstance(policy, Frozen):
            problems += [f"policies.{name}.{problem}" for problem in out_of_range(policy)]
            if policy.of not in learn:
                problems.append(
                    f"policies.{name}.of: expected a policy that learns, got "
                    f"{policy.of!r}{hint(policy.of, learn)}"
                )
    (first, one), *others = learn.items()
    for name, policy in others:
        problems += [f"policies.{name}.{problem}" for problem in _apart(first, one, policy)]
    problems += [
        f"route.{agent}: expected one of the policies, got "
        f"{policy!r}{hint(policy, program.policies)}"
        for agent, policy in program.route.items()
        if policy not in program.policies
    ]
    return problems


def _apart(first: str, one: Policy, policy: Policy) -> list[str]:
    """The reason why ``policy`` cannot learn together with ``one``, which has the name
    ``first``.
    """
    if (one.replay is None) != (policy.replay is None):
        wanted, got = ("none, as", "one") if one.replay is None else ("one, as", "none")
        return [
            f"replay: expected {wanted} {first!r} has, since a round of a replay has rows of all "
            "envs and is learned from "
            f"several times, and a round without one is one batch, got {got}"
        ]
    alike = {
        "unroll": (one.unroll, policy.unroll),
        "batch": (one.batch, policy.batch if one.replay is None else one.batch),
        "publish_every": (one.publish_every, policy.publish_every),
    }
    problems = [
        f"{field}: expected {its}, that of {first!r}, since both learn from the same steps of the "
        f"same envs, got {mine}"
        for field, (its, mine) in alike.items()
        if mine != its
    ]
    if one.replay is None or policy.replay is None:
        return problems
    if (mine := policy.replay.updates) != (its := one.replay.updates):
        problems.append(
            f"replay.updates: expected {its}, that of {first!r}, since both make their updates "
            "after the same rounds, got "
            f"{mine}; batch={max(policy.batch * mine // its, 1)} learns from as many items a round"
        )
    return problems


# ----------------------------------------------------------------------------------------- settings


def check_read(program: Program, settings: Collection[str]) -> None:
    """Raise ValueError if nothing reads some of these settings (KEY each), with the other settings
    as they are.
    """
    if found := unread(program, settings):
        raise ValueError(f"expected settings that change something, got {'; '.join(found)}")


def unread(program: Program, settings: Collection[str]) -> list[str]:
    """The settings (KEY each) that nothing reads, each with the reason."""
    return [f"{key}, since {why}" for key in settings if (why := _unread(program, key))]


def check_replays(program: Program, settings: Collection[str]) -> None:
    """Raise ValueError for a setting (KEY each) of a replay if no learning policy has one."""
    learn = learning(program)
    if any(policy.replay is not None for policy in learn.values()):
        return
    if (
        key := next((key for key in settings if re.match(r"(policies\.\w+\.)?replay\.", key)), None)
    ) is not None:
        raise ValueError(
            f"{key}: expected an algorithm with a replay ({', '.join(_replaying())}), got "
            f"{_theirs(program)}"
        )


def _replaying() -> list[str]:
    return [name for name in algorithm_names() if algorithm_class(name).needs_replay]


def _theirs(program: Program) -> str:
    names = sorted(
        {algorithm_name(type(policy.algorithm)) for policy in learning(program).values()}
    )
    return f"{' and '.join(names)}, whose rows are learned from once"


def _unread(program: Program, key: str) -> str:
    """The reason why nothing reads a setting; "" if something may."""
    reasons = [why_unread(program, setting) for setting in fields.named(program, key)]
    return reasons[0] if reasons and all(reasons) else ""


# ------------------------------------------------------------------------------------------- resume


def fixed(old: Program, new: Program) -> list[str]:
    """The differences that a resume cannot make."""
    settings = {setting.key: setting for setting in (*fields.settings(old), *fields.settings(new))}
    return [
        key for key in differences(old, new) if key not in settings or settings[key].rule == "kept"
    ]


def check_resume(old: Program, new: Program) -> dict[str, list[object]]:
    """Return the differences; ValueError for a difference that does not fit the saved state."""
    changes = differences(old, new)
    for setting in fields.of(new.placement, "placement."):
        if setting.rule == "kept" and setting.fact.name in new.placement.auto:
            raise ValueError(
                f"{setting.key}: expected {setting.value}, which a run that goes on keeps, got auto"
            )
    if refused := fixed(old, new):
        said = ", ".join(f"{key} ({changes[key][0]!r} -> {changes[key][1]!r})" for key in refused)
        free = [
            setting.key
            for room, part in fields.parts(new)
            for setting in fields.of(part, room)
            if setting.rule == "free"
        ]
        raise ValueError(
            f"a run that goes on keeps what its state was saved of; cannot change {said}. Can "
            f"change: {', '.join(free)}, algorithm.* and optimizer.* otherwise; for the rest begin "
            "a new run with 'train --init-from DIR'"
        )
    inside = [
        policy
        for policy in learning(old).values()
        if policy.replay is not None and policy.replay.shards == 1
    ]
    if inside and "placement.learners" in changes:
        raise ValueError(
            f"placement.learners: expected {old.placement.learners} as before, since each learner "
            f"keeps the rows of its actors in its own process, got {new.placement.learners}; a run "
            "that is begun with more replay.shards can change it"
        )
    before, now = changes.get("source.kv_tokens", (0, 0))
    if (before == 0) != (now == 0):  # saved samples have columns about a shared memory, or not
        wanted = "0, as the run began" if before == 0 else f"auto or at least 1, as {before} before"
        raise ValueError(
            f"source.kv_tokens: expected {wanted}, got {now}; for the other begin a new run with "
            "'train --init-from DIR'"
        )
    check_read(new, changes)
    return changes
