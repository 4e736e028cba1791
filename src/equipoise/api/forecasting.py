"""How a run would do on a cluster that is only described: ``forecast``."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from equipoise.balance.forecast import Bytes, Cluster, Forecast, read
from equipoise.balance.forecast import forecast as simulated
from equipoise.balance.model import Ring
from equipoise.console.curves import figure_of
from equipoise.envs.spaces import observation_spec
from equipoise.files import parse_toml, read_json
from equipoise.record import playable
from equipoise.record.checkpoint import SPEC, WEIGHTS
from equipoise.record.directory import RunDirectory
from equipoise.record.measured import measured
from equipoise.tree import nbytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Forecast", "forecast", "forecast_curve"]

# bytes of a step besides its observation: action, reward, versions, flags (docs/guides/scaling.md)
REST = 26.0
MOST = 10_000  # actors of a curve


def forecast(
    cluster: str | os.PathLike[str],
    *,
    run: str | os.PathLike[str] | None = None,
    trust: Sequence[str] = (),
) -> Forecast:
    """Forecast the speed of a run on the machines that a TOML file describes.

    Args:
        cluster: The file.
        run: A run whose workers measured the cost of a step and of a batch; without it the file's
            ``[work]`` has both.
        trust: Modules and ``module:callable`` that a run from elsewhere may import.

    Returns:
        The forecast: ``forecast.steps_per_s``, ``forecast.lag``, ``forecast.bound``.

    Raises:
        ValueError: The file cannot be read, or the cost is given twice or not at all.

    Example:
        >>> eq.forecast("cluster.toml", run="runs/NAME").steps_per_s  # doctest: +SKIP
        104_000.0
    """
    described, ring, sizes, at_home = _described(cluster, run, trust)
    return simulated(ring, described, sizes, at_home=at_home)


def forecast_curve(
    cluster: str | os.PathLike[str],
    *,
    run: str | os.PathLike[str] | None = None,
    trust: Sequence[str] = (),
) -> list[Forecast]:
    """Forecast with fewer and more machines for actors, one of each kind to 10,000 actors."""
    described, ring, sizes, at_home = _described(cluster, run, trust)
    if not described.nodes:
        raise ValueError(
            f"{cluster}: expected nodes for a curve over their number, got none; add [[nodes]]"
        )
    found: dict[int, Forecast] = {}
    each = sum(one.actors * one.count for one in described.nodes)
    factor = 1 / max(one.count for one in described.nodes)
    while each * factor <= MOST or not found:
        one = simulated(ring, described.times(factor), sizes, at_home=at_home)
        found[one.actors] = one
        factor *= 2
    return list(found.values())


def _described(
    cluster: str | os.PathLike[str], run: str | os.PathLike[str] | None, trust: Sequence[str]
) -> tuple[Cluster, Ring, Bytes, int]:
    try:
        data = parse_toml(Path(cluster).read_bytes(), os.fspath(cluster))
    except OSError as error:
        raise ValueError(
            f"{cluster}: expected a cluster file, got none that can be read ({error.strerror})"
        ) from None
    described, ring, sizes = read(data, str(cluster))
    if (run is None) == (ring is None):
        got = "both" if run is not None else "neither"
        raise ValueError(
            f"{cluster}: expected what the work costs from a run or from [work], got {got}"
        )
    at_home = 0
    if run is not None:
        directory = RunDirectory.open(Path(run), trusted=trust)
        known = measured(directory)
        ring, sizes = known.ring, _sizes(directory, trust)
        at_home = 0 if described.nodes else len(known.ring.actors)
    elif not described.nodes:
        raise ValueError(f"{cluster}: expected nodes with actors, got none; add [[nodes]]")
    assert ring is not None and sizes is not None
    return described, ring, sizes, at_home


def _sizes(run: RunDirectory, trust: Sequence[str]) -> Bytes:
    """The bytes of a step and of a version; of a stack of frames the newest one crosses."""
    step = 0.0
    for one in playable.from_json(
        read_json(run.path / SPEC), run.path / SPEC, trusted=trust
    ).values():
        whole = nbytes(observation_spec(one.spec.observation))
        step += len(one.spec.places) * (
            whole / max((stack.frames for stack in one.spec.stacks.values()), default=1) + REST
        )
    newest = run.latest_checkpoint()
    if newest is None:
        raise ValueError(
            f"{run.path}: expected a checkpoint, which says how large the weights are, got none"
        )
    return Bytes(step=step, version=float((newest / WEIGHTS).stat().st_size))


def drawn(found: Sequence[Forecast]) -> Figure:
    """Steps/s over actors, as a figure."""
    x, y = [one.actors for one in found], [one.steps_per_s for one in found]
    return figure_of({"forecast": (x, y)}, "actors", "env steps/s", logarithmic=True)
