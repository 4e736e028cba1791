"""Clips for the page: the frames of a segment, or curves of its numbers over time.

The page reads these arrays of a segment:

- ``frames``: images [T, H, W, 3], uint8. With frames there are no curves.
- ``fps``: frames or steps per second, one number (default 30).
- ``observations``: images of uint8 are shown as frames: [T, H, W], [T, H, W, 1 or 3], and the
  last image of the stacks [T, S, H, W] and [T, S, H, W, 1 or 3]. Each number of other observations
  [T, ...] is a curve. Without observations, all other arrays are drawn.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from equipoise.feedback.items import Arrays
from equipoise.pages.responses import encoded

FPS, MOST_FPS = 30.0, 240.0
MOST_CURVES = 12
MOST_POINTS = 1000  # of a curve
SMALLEST = 8  # side of an image; smaller arrays of bytes are numbers


def packed(arrays: Arrays) -> bytes:
    """Return a clip as the page reads it: 4 bytes with the length of a JSON head (little-endian),
    the head, and the bytes of the frames.

    The head has fps, steps, the shape of ``frames`` or null, and ``curves``: name and points
    [[step, value], ...] of each. ValueError if there is nothing to show.
    """
    frames = arrays["frames"] if "frames" in arrays else _images(arrays.get("observations"))
    head: dict[str, object] = {"fps": _fps(arrays.get("fps")), "frames": None, "curves": []}
    data = b""
    if frames is not None:
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[-1] != 3 or not frames.size:
            raise ValueError(
                "segment.frames: must be images [T, H, W, 3] of uint8, got "
                f"{list(frames.shape)} of {frames.dtype}"
            )
        head |= {"steps": len(frames), "frames": list(frames.shape)}
        data = frames.tobytes()
    else:
        numbers = _numbers(arrays)
        curves = [one for name, array in numbers.items() for one in _curves(name, array)]
        total = sum(array.size // len(array) for array in numbers.values())
        shown = curves[:MOST_CURVES]
        head |= {"steps": len(next(iter(numbers.values()))), "curves": shown}
        head["more"] = total - len(shown)
    said = encoded(head)
    return len(said).to_bytes(4, "little") + said + data


def _images(seen: NDArray[np.generic] | None) -> NDArray[np.generic] | None:
    """Return observations that are images as frames [T, H, W, 3]; None for others."""
    if seen is None or seen.dtype != np.uint8 or seen.ndim not in (3, 4, 5) or not seen.size:
        return None
    if seen.ndim == 5 or (seen.ndim == 4 and seen.shape[-1] not in (1, 3)):
        seen = seen[:, -1]  # a stack of images, the newest last
    images = seen if seen.ndim == 4 else seen[..., None]
    if images.shape[-1] not in (1, 3) or min(images.shape[1:3]) < SMALLEST:
        return None
    return np.ascontiguousarray(np.broadcast_to(images, (*images.shape[:3], 3)))


def _fps(given: NDArray[np.generic] | None) -> float:
    fps = float(given.reshape(-1)[0]) if given is not None and given.size == 1 else FPS
    return fps if math.isfinite(fps) and 0 < fps <= MOST_FPS else FPS


def _numbers(arrays: Arrays) -> dict[str, NDArray[np.generic]]:
    """The arrays that are drawn, all with the same number of steps."""
    names = ["observations"] if "observations" in arrays else sorted(set(arrays) - {"fps"})
    there = [name for name in names if arrays[name].ndim and arrays[name].size]
    if not there:
        raise ValueError("segment: must have frames or numbers over time, got none")
    longest = max(len(arrays[name]) for name in there)
    return {name: arrays[name] for name in there if len(arrays[name]) == longest}


def _curves(name: str, array: NDArray[np.generic]) -> list[dict[str, object]]:
    """The first curves of an array [T, ...]."""
    steps = np.unique(np.linspace(0, len(array) - 1, MOST_POINTS).astype(np.int64))
    columns = array.reshape(len(array), -1)[steps, :MOST_CURVES].astype(np.float64)  # [points, N]
    single = array.size == len(array)
    return [
        {
            "name": name if single else f"{name}[{i}]",
            "points": [[int(at), float(f"{value:.6g}")] for at, value in zip(steps, column)],
        }
        for i, column in enumerate(columns.T)
    ]
