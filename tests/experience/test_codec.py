"""Codecs: what comes back is what went in, of every shape and dtype, at every place; what is not
there is refused.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from equipoise.experience.replay import codec, leaves
from equipoise.experience.replay.leaves import Leaf, Packed, Plain
from equipoise.tree import ArraySpec

names = st.sampled_from(sorted(codec.CODECS))


def content(draw: Any, shape: tuple[int, ...]) -> Any:
    """Noise, a few shades, or one: what hardly shrinks and what hardly leaves anything."""
    shades, seed = draw(st.sampled_from([1, 3, 256])), draw(st.integers(0, 2**32 - 1))
    return np.random.default_rng(seed).integers(0, shades, shape, np.uint8)


@given(
    st.data(),
    names,
    st.integers(1, 6),
    st.integers(codec.SHORTEST, 3000) | st.integers(1, codec.SHORTEST + 10),
)
def test_rows_come_back_but_for_their_tails(data: Any, name: str, count: int, size: int) -> None:
    """Also the shortest that one call decodes, and shorter ones by themselves."""
    count = count if size >= codec.SHORTEST else 1
    rows, made = content(data.draw, (count, size)), codec.CODECS[name]()
    rows[:, data.draw(st.integers(0, size)) :] = 7
    before, out = rows.copy(), np.full_like(rows, 7)
    encoded = made.encode(rows)
    order = data.draw(st.permutations(range(count)))
    codec.CODECS[name]().decode([encoded[i] for i in order], out)
    np.testing.assert_array_equal(out[:, : -codec.TAIL], before[order, : -codec.TAIL])
    np.testing.assert_array_equal(rows, before)


def test_a_row_like_the_one_before_leaves_nothing_where_noise_is_all_there_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 100_000, np.uint8)
    rows = np.stack([noise] * 4)[:, None]
    rows[2, 0, 500] ^= 1
    sizes = {}
    for name in ("lz4", "delta"):
        packed = Packed(
            ArraySpec((100_000,), "uint8"), name, slots=4, streams=1, unroll=4, threads=1, pool=None
        )
        packed.put(rows, 0, slice(0, 1), anew=True)
        sizes[name] = packed.nbytes
    assert sizes["lz4"] > 3.9 * len(noise) and sizes["delta"] < 1.1 * len(noise)


SHAPES = [
    ((300,), "float32"),
    ((16, 70), "uint8"),
    ((5, 10, 30), "bool"),
    ((129,), "int64"),
    ((1,), "uint8"),
]


@given(
    st.data(), names, st.sampled_from(SHAPES), st.sampled_from([1, 2, 3, 4, 5, 7, 9]), st.booleans()
)
def test_encoded_leaves_are_as_plain_ones(
    data: Any, name: str, shape: tuple[tuple[int, ...], str], unroll: int, edge: bool
) -> None:
    """Blocks of two actors, once round and further, with gaps; then any places, black ones and
    repeated ones among them.
    """
    spec, streams, count = ArraySpec(*shape), 4, 3
    sizes: Any = {"slots": count * unroll, "streams": streams, "unroll": unroll}
    with ThreadPoolExecutor(1) as pool, pytest.MonkeyPatch.context() as patch:
        patch.setattr(leaves, "SCRATCH", 5 * spec.nbytes)
        patch.setattr(leaves, "NEAR", 3)
        packed = Packed(spec, name, **sizes, threads=2, pool=pool)
        plain = Plain(spec, **sizes, folder="")
        last: dict[int, Any] = {}
        each: tuple[Leaf, ...] = (packed, plain)
        for block in range(data.draw(st.integers(0, 5))):
            for column in (0, 2):
                raw = content(data.draw, (unroll + edge, 2, spec.nbytes))
                rows = (
                    (raw % 2 if spec.dtype == "bool" else raw)
                    .view(spec.dtype)
                    .reshape(unroll + edge, 2, *spec.shape)
                )
                anew = not edge or column not in last or data.draw(st.booleans())
                if not anew:
                    rows[0] = last[column]
                last[column] = rows[-1]
                for leaf in each:
                    leaf.put(rows, block % count * unroll, slice(column, column + 2), anew=anew)
        held = np.arange(count * unroll * streams + 1)
        # of the block that is given up only what stands at its beginning is there
        if edge and last:
            given_up = (block + 1) % count * unroll
            slots = held // streams
            held = held[(slots <= given_up) | (slots >= given_up + unroll)]
        places = np.array(
            data.draw(st.lists(st.sampled_from(held.tolist()), max_size=40)), np.int64
        )
        found = [np.full((len(places), *spec.shape), 1, spec.dtype) for _ in range(2)]
        for leaf, out in zip(each, found, strict=True):
            leaf.take(places, out)
        assert found[0].tobytes() == found[1].tobytes()  # nan is nan


def test_a_gap_of_an_encoded_leaf_may_be_written_over() -> None:
    """``set`` is what a resume does with the row that stands at the head."""
    spec = ArraySpec((300,), "float32")
    packed = Packed(spec, "delta", slots=8, streams=2, unroll=4, threads=1, pool=None)
    rows, out = (
        np.random.default_rng(0).normal(size=(2, 300)).astype(np.float32),
        np.empty((2, 300), np.float32),
    )
    packed.set(np.array([8, 1]), rows)
    packed.take(np.array([8, 1]), out)
    np.testing.assert_array_equal(out, rows)


LARGE, SMALL = ["obs/image", "obs/map"], ["row", "obs/vector"]


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("", {}),
        ("none", {}),
        ("delta", dict.fromkeys(LARGE, "delta")),
        ("obs/map=zstd", {"obs/map": "zstd"}),
        ("obs/image=delta, obs/map=none", {"obs/image": "delta"}),
        ("obs/image=lz4,obs/map=zstd", {"obs/image": "lz4", "obs/map": "zstd"}),
    ],
)
def test_a_codec_is_of_all_large_keys_or_of_some(said: str, found: dict[str, str]) -> None:
    assert codec.chosen(said, LARGE, SMALL) == found


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ("detla", r"one of delta, lz4, none, zstd \(nearest: 'delta'\), got 'detla'"),
        ("obs/image=lz44", r"\(nearest: 'lz4'\), got 'lz44'"),
        ("obs/imag=lz4", r"one of obs/image, obs/map \(nearest: 'obs/image'\), got 'obs/imag'"),
        (
            "obs/vector=lz4",
            "got 'obs/vector', which is too small to have memory of its own and lies in the rows' "
            "records",
        ),
        ("obs/map=zstd,lz4", "got ''"),
        ("obs/map=delta,obs/map=lz4", "'obs/map' once, got delta and lz4 for it"),
    ],
)
def test_a_codec_or_a_key_that_is_not_there_is_refused(said: str, match: str) -> None:
    with pytest.raises(ValueError, match=r"^replay\.codec: expected .*" + match):
        codec.chosen(said, LARGE, SMALL)


def test_rows_without_a_large_key_have_no_use_for_a_codec() -> None:
    with pytest.raises(
        ValueError, match=r"replay\.codec: expected none, since no key of a row is large enough"
    ):
        codec.chosen("delta", [], SMALL)
    assert codec.chosen("none", [], SMALL) == codec.chosen("", [], SMALL) == {}


@pytest.mark.parametrize(
    ("name", "library"), [("delta", "cramjam"), ("lz4", "cramjam"), ("zstd", "zstandard")]
)
def test_a_library_that_is_not_there_is_named(
    name: str, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(
        ImportError, match=rf"replay\.codec needs the package {library}: pip install .*{library}>="
    ):
        codec.installed([name])
