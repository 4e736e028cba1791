"""Which machine does which work: pure functions of a run's workers, the machines' free cores and
the settings of the cluster.

A *cell* is the least that can be moved: an actor, or an inference worker with the actors that it
acts for, or a learner or a shard with the actors that feed it, or a scorer. A *site* is some cells
that are moved together: the cells of one machine at the start. A site keeps its cells as long as
the run lives, and goes to another machine when its own is lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from equipoise.hints import hint
from equipoise.plans.blueprint import Blueprint
from equipoise.programs.cluster import At, Cluster
from equipoise.workers.kind import (
    KeepingKind,
    LearningKind,
    Member,
    Movable,
    Placed,
    ServingKind,
    SteppingKind,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine of the cluster."""

    name: str
    cores: float  # in all
    used: float = 0.0  # by sites of this run
    labels: Mapping[str, str] = field(default_factory=dict)
    home: bool = False
    draining: bool = False  # it is about to be taken away

    @property
    def free(self) -> int:
        return int(self.cores - self.used)


@dataclass(frozen=True, slots=True)
class Cell:
    """Workers that share memory, and so a machine."""

    titles: tuple[str, ...]
    actors: int  # the cells among them that step envs
    cores: int  # one for each thread that they compute with
    scores: bool = False  # is it a scorer, which may have machines of its own?


@dataclass(frozen=True, slots=True)
class Dealt:
    """The work of the machines at the start."""

    sites: Mapping[str, tuple[str, ...]]  # the titles of the workers of each site
    nodes: Mapping[str, str]  # the machine of each site that has one


def cells(
    blue: Blueprint,
    members: Sequence[Member],
    inference_at: At = "actors",
    learners_at: At = "home",
    shards_at: At = "home",
) -> list[Cell]:
    """The cells of a run: in the order of their first envs, then kinds that are ``Movable`` or
    ``Placed``, and cells with learners last.

    Inference workers that stay with the learner are in none, nor are learners and shards that stay
    at home.
    """
    found: list[tuple[set[int | str], list[Member]]] = []
    for member in members:
        groups: set[int | str]
        kind = member.kind
        if isinstance(kind, LearningKind) and member.index > 0 and learners_at == "actors":
            groups = set(blue.groups_of(member.index))
        elif isinstance(kind, KeepingKind) and shards_at == "actors":
            groups = set(groups_of_shard(blue, member.index))
        elif isinstance(kind, SteppingKind) or (
            isinstance(kind, ServingKind) and inference_at == "actors"
        ):
            groups = set(member.groups(blue))
        elif isinstance(kind, Movable):
            groups = {kind.name}
        elif isinstance(kind, Placed):
            groups = {member.title}
        else:
            continue
        mine = [cell for cell in found if cell[0] & groups]
        found = [cell for cell in found if not cell[0] & groups]
        found.append(
            (
                groups.union(*(cell[0] for cell in mine)),
                [one for cell in mine for one in cell[1]] + [member],
            )
        )
    first = [
        min((group for group in groups if isinstance(group, int)), default=blue.program.groups)
        for groups, _ in found
    ]
    order = sorted(
        range(len(found)),
        key=lambda at: (any(isinstance(one.kind, LearningKind) for one in found[at][1]), first[at]),
    )
    return [
        Cell(
            tuple(one.title for one in cell),
            sum(isinstance(one.kind, SteppingKind) for one in cell),
            sum(one.threads(blue) for one in cell),
            any(isinstance(one.kind, Placed) for one in cell),
        )
        for cell in (found[at][1] for at in order)
    ]


def groups_of_shard(blue: Blueprint, index: int) -> range:
    """The groups of envs whose rows a worker of ``Blueprint.shards`` keeps."""
    name, number = blue.shards[index]
    return range(number, blue.program.groups, sum(one == name for one, _ in blue.shards))


def check_inference(blue: Blueprint) -> None:
    """ValueError if nothing acts that could be at the learner."""
    if not blue.inferences:
        got = blue.program.placement.inference
        raise ValueError(
            "cluster.inference_at=home: expected a run with --inference central, got one with "
            f"{got}"
        )


def check_learners(blue: Blueprint, inference_at: At) -> None:
    """ValueError if no learner can be on another machine."""
    wrong = ""
    if blue.learners == 1:
        wrong = "a run with --learners 2 or more, got one with 1"
    elif blue.replays:
        wrong = (
            "a run without a replay, whose rows are kept at home, got one of "
            f"{', '.join(blue.replays)}"
        )
    elif len(blue.learns) < len(blue.roles):
        wrong = "a run in which all policies learn, got one with a policy's past"
    elif blue.inferences and inference_at == "home":
        wrong = "inference_at=actors, got home"
    elif blue.program.placement.balance == "auto":
        wrong = "--balance off, since it is home that lets actors act, got auto"
    elif blue.weights is not None:
        wrong = "a new run or a resume, got one that begins with the weights of another run"
    if wrong:
        raise ValueError(
            f"cluster.learners_at=actors: expected {wrong}; with --cluster learners_at=home all "
            "are here"
        )


def check_shards(blue: Blueprint, inference_at: At) -> None:
    """ValueError if no shard can be on another machine."""
    replays = [policy.replay for policy in blue.policies.values() if policy.replay is not None]
    wrong = ""
    if not blue.shards:
        wrong = (
            "a run with --set replay.shards=2 or more, got one "
            f"{'with 1' if blue.replays else 'without a replay'}"
        )
    elif len(blue.roles) > 1:
        wrong = f"a run of one policy, got one of {', '.join(blue.roles)}"
    elif blue.learners > 1:
        wrong = f"a run with --learners 1, got one with {blue.learners}"
    elif any(replay.file for replay in replays):
        wrong = "a replay in memory, got one with replay.file, a directory of this machine"
    elif blue.inferences and inference_at == "home":
        wrong = "inference_at=actors, got home, which makes all rows"
    if wrong:
        raise ValueError(
            f"cluster.shards_at=actors: expected {wrong}; with --cluster shards_at=home all are "
            "here"
        )


def labels_of(cluster: Cluster, *, scores: bool) -> Mapping[str, str]:
    """The labels of the machines for a cell: scorers may have machines of their own."""
    return cluster.scorer_labels or cluster.labels if scores else cluster.labels


def fits(node: Node, labels: Mapping[str, str]) -> bool:
    """May a site be placed on this machine?"""
    return (
        not node.home
        and not node.draining
        and all(node.labels.get(key) == value for key, value in labels.items())
    )


def deal(run: Sequence[Cell], learners: int, nodes: Sequence[Node], cluster: Cluster) -> Dealt:
    """Deal the cells of a run to home and to the other machines, so that all have alike many free
    cores left.

    ``learners``: threads that home needs for learning. ValueError if there is no room, with what
    would work.
    """
    home = next(node for node in nodes if node.home)
    check_labels(nodes, cluster.labels, cluster.autoscale)
    apart = any(cell.scores for cell in run) and bool(cluster.scorer_labels)
    if apart:
        check_labels(nodes, cluster.scorer_labels, cluster.autoscale, "scorer_labels")
    away = [cell for cell in run if apart and cell.scores]
    here = [cell for cell in run if not (apart and cell.scores)]
    fit = {
        scores: sorted(
            (one for one in nodes if fits(one, labels_of(cluster, scores=scores))),
            key=lambda node: node.name,
        )
        for scores in (False, True)
    }
    others = fit[False]
    kept = _kept(here, learners, home, alone=not others and not cluster.autoscale, cluster=cluster)
    free = {node.name: node.free for node in (*others, *fit[True])}
    sites, places = dict[str, tuple[str, ...]](), dict[str, str]()
    waiting = dict[str, tuple[str, ...]]()
    # the workers with fewer machines to choose from come first
    for cells, there in sorted(
        ((away, fit[True]), (here[kept:], others)), key=lambda one: len(one[1])
    ):
        dealt: dict[str, list[str]] = {}
        left: list[Cell] = []
        for cell in cells:
            name = max((one.name for one in there), key=lambda one: free[one], default=None)
            if name is None or free[name] < cell.cores:
                left.append(cell)
                continue
            free[name] -= cell.cores
            dealt.setdefault(name, []).extend(cell.titles)
        if left and not cluster.autoscale:
            raise ValueError(_no_room(run, left, there, cluster))
        for node, titles in dealt.items():
            places[f"site {len(sites)}"] = node
            sites[f"site {len(sites)}"] = tuple(titles)
        size = max(
            (int(node.cores) for node in there),
            default=max(max((cell.cores for cell in left), default=1), 4),
        )
        waiting |= {f"{len(waiting) + at}": one for at, one in enumerate(_bundles(left, size))}
    for each in waiting.values():
        sites[f"site {len(sites)}"] = each
    return Dealt(sites, places)


def _kept(run: Sequence[Cell], learners: int, home: Node, *, alone: bool, cluster: Cluster) -> int:
    """How many of the cells stay at home."""
    actors = sum(cell.actors for cell in run)
    if alone:
        if cluster.home_actors is not None and cluster.home_actors < actors:
            raise ValueError(
                f"home_actors: expected {actors}, since no other machine can have actors, got "
                f"{cluster.home_actors}; add machines, or leave it out"
            )
        return len(run)
    if cluster.home_actors is None:
        room, kept = int(home.cores) - learners - 1, 0  # one core for the proxy and the driver
        while kept < len(run) and run[kept].cores <= room:
            room -= run[kept].cores
            kept += 1
        return kept
    can = [sum(cell.actors for cell in run[:n]) for n in range(len(run) + 1)]
    if cluster.home_actors not in can:
        best = min(can, key=lambda n: abs(n - cluster.home_actors))  # type: ignore[operator]
        raise ValueError(
            f"home_actors: expected one of {', '.join(map(str, can))} (workers that share memory "
            f"share a machine), got {cluster.home_actors}; the nearest is {best}"
        )
    if cluster.home_actors == actors and (
        beside := [at for at in ("learners_at", "shards_at") if getattr(cluster, at) == "actors"]
    ):
        raise ValueError(
            f"home_actors: expected fewer than all {actors} actors with {beside[0]}=actors, "
            f"which puts learners next to them, got {actors}; the nearest is {can[-2]}"
        )
    return can.index(cluster.home_actors)


def _no_room(
    run: Sequence[Cell], left: Sequence[Cell], others: Sequence[Node], cluster: Cluster
) -> str:
    """The reason why these cells have no machine, and working settings."""
    labels = labels_of(cluster, scores=all(cell.scores for cell in left))
    wanted = f" with the labels {_told(labels)}" if labels else ""
    add = "add machines (with an autoscaler: --cluster autoscale=true)"
    if all(cell.scores for cell in left):
        got = sum(cell.scores for cell in run)
        return (
            f"source.scorers: expected at most {got - len(left)}, for which machines{wanted} have "
            f"free cores, got {got}; use fewer, or {add}"
        )
    if all(len(cell.titles) == cell.cores == 1 for cell in run):
        got = sum(cell.actors for cell in run)
        most = got - sum(cell.actors for cell in left)
        fewer = f"--actors {most}, " if most else ""
        return (
            f"actors: expected at most {most}, for which home and {len(others)} other "
            f"machines{wanted} have free cores, got {got}; use {fewer}more home_actors, or {add}"
        )
    large = max(left, key=lambda cell: cell.cores)
    names = ", ".join(large.titles[:4]) + (", ..." if len(large.titles) > 4 else "")
    free = ", ".join(str(node.free) for node in others) or "no other machine"
    return (
        f"cluster: expected a machine{wanted} with {large.cores} free cores for {names}, which "
        f"share memory, found none; free cores of the other machines, before this run: {free}; use "
        "fewer actors, or more learners, shards or inference workers, so that fewer share one, or "
        f"{add}"
    )


def _bundles(left: Sequence[Cell], size: int) -> list[tuple[str, ...]]:
    """Cells without a machine yet, as sites of at most ``size`` cores, or of one cell."""
    found: list[tuple[str, ...]] = []
    used = 0
    for cell in left:
        if found and used + cell.cores <= size:
            found[-1] += cell.titles
            used += cell.cores
        else:
            found.append(cell.titles)
            used = cell.cores
    return found


def check_labels(
    nodes: Sequence[Node], labels: Mapping[str, str], autoscale: bool, name: str = "labels"
) -> None:
    """ValueError if no machine has a label that is asked for. ``name``: of the setting."""
    if autoscale:
        return
    for key, value in labels.items():
        there = sorted({node.labels[key] for node in nodes if key in node.labels})
        if value in there:
            continue
        if there:
            raise ValueError(
                f"{name}: expected a machine with {key}={value}, found none{hint(value, there)}"
            )
        keys = {key for node in nodes for key in node.labels if not key.startswith("ray.io/")}
        raise ValueError(
            f"{name}: expected machines with the label {key!r}, found none{hint(key, keys)}"
        )


def placed(
    waiting: Mapping[str, int], nodes: Sequence[Node], labels: Mapping[str, str]
) -> dict[str, str]:
    """Give sites that have no machine a machine with room for all their workers. ``waiting``: the
    cores of each.
    """
    free = {node.name: node.free for node in nodes if fits(node, labels)}
    found = {}
    for site, cores in sorted(waiting.items(), key=lambda one: (-one[1], one[0])):
        name = max(sorted(free), key=lambda one: free[one], default=None)
        if name is not None and free[name] >= cores:
            free[name] -= cores
            found[site] = name
    return found


def _told(labels: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())
