"""The space of a study: texts to ranges and choices, the unit cube, and back."""

from __future__ import annotations

import math

import numpy as np
import pytest

from equipoise.studies.space import Choice, Parameter, Range, Space, read_parameter, read_space

GOOD = {
    "a.lr=log:1e-5..1e-2": Range("a.lr", 1e-5, 1e-2, "log"),
    "a.lr=0.1..0.5": Range("a.lr", 0.1, 0.5),
    "n=1..8": Range("n", 1, 8, whole=True),
    "n=int:1..8": Range("n", 1, 8, whole=True),
    "n=log:1..1024": Range("n", 1, 1024, "log", whole=True),
    "x=uniform:-1.0..+1": Range("x", -1, 1),
    "x=-5..-1": Range("x", -5, -1, whole=True),
    "x=.1..1.": Range("x", 0.1, 1.0),
    " x = 0.0..1 ": Range("x", 0, 1),
    "x=1E3..1e+4": Range("x", 1e3, 1e4),
    "g=0.95,0.99": Choice("g", (0.95, 0.99)),
    "g=5": Choice("g", (5,)),
    "g=tanh, relu": Choice("g", ("tanh", "relu")),
    "g=true,false,1,0": Choice("g", (True, False, 1, 0)),
    'g="1",1': Choice("g", ("1", 1)),
    "g=null,none": Choice("g", ("null", "none")),
    "g=[1],{}": Choice("g", ("[1]", "{}")),
    "g=a=b": Choice("g", ("a=b",)),
    'g="",b': Choice("g", ("", "b")),
    "g=é,日本": Choice("g", ("é", "日本")),
    "é=1,2": None,
    "1=1,2": None,
    "=1,2": None,
    "g": None,
    "g=": None,
    "": None,
    "a b=1,2": None,
    "g=1,,2": None,
    "g=,": None,
    "g=1,1": None,
    "g=1,1.0": None,
    "g=0.0,-0.0": None,
    "g=NaN": None,
    "g=1,Infinity": None,
    "g=1e999,2": None,
    "x=1..1": None,
    "x=2..1": None,
    "x=1e400..1": None,
    "x=-1e308..1e308": None,
    "x=log:0..1": None,
    "x=log:-1..1": None,
    "x=int:0.5..1": None,
    "x=ln:1..2": None,
    "x=LOG:1..2": None,
    "x=a..b": None,
    "x=1..": None,
    "x=..1": None,
    "x=1...5": None,
    "x=1..2..3": None,
    "x=nan..1": None,
    "x=9007199254740992..9007199254740993": None,
    "g=" + ",".join(map(str, range(257))): None,
    "k" * 101 + "=1,2": None,
}
PARAMETERS = [one for one in GOOD.values() if one is not None]
RANGES = [one for one in PARAMETERS if isinstance(one, Range)]


@pytest.mark.few(len(GOOD))
@pytest.mark.parametrize("text", GOOD, ids=lambda text: text[:30])
def test_a_text_is_read_or_refused_in_one_sentence(text: str) -> None:
    expected = GOOD[text]
    if expected is None:
        with pytest.raises(ValueError, match=r"^space: .*got .*") as error:
            read_parameter(text)
        assert len(str(error.value)) < 250 and "\n" not in str(error.value)
    else:
        found = read_parameter(text)
        assert found == expected
        if isinstance(found, Choice) and isinstance(expected, Choice):
            assert list(map(type, found.values)) == list(map(type, expected.values))


def test_very_deep_json_is_a_text() -> None:
    assert read_parameter("g=" + "[" * 100_000).holds("[" * 100_000)


def test_too_many_settings_and_a_setting_twice_are_refused() -> None:
    with pytest.raises(ValueError, match="at most 64 settings, got 65"):
        read_space([f"k{i}=1,2" for i in range(65)])
    with pytest.raises(ValueError, match="got 'a' twice"):
        read_space(["a=1,2", "b=1,2", "a=1..2"])


@pytest.mark.few(len(PARAMETERS))
@pytest.mark.parametrize("one", PARAMETERS, ids=str)
def test_a_parameter_prints_what_it_is_read_from(one: Parameter) -> None:
    again = read_parameter(str(one))
    assert again == one and str(again) == str(one)


@pytest.mark.parametrize(
    "values", [(" a",), ("a ", "b"), ("1", "true"), ('"a"',), ("é",), ("NaN",), ("",)]
)
@pytest.mark.few(7)
def test_odd_texts_of_a_choice_print_what_they_are_read_from(values: tuple[str, ...]) -> None:
    one = Choice("k", values)
    assert read_parameter(str(one)) == one


@pytest.mark.few(len(PARAMETERS))
@pytest.mark.parametrize("one", PARAMETERS, ids=str)
def test_a_value_is_at_its_share(one: Parameter) -> None:
    for share in np.linspace(0, 1, 101):
        value = one.at(float(share))
        assert one.holds(value)
        again = one.at(one.share(value))
        if isinstance(one, Range) and not one.whole:
            assert again == pytest.approx(value, rel=1e-9, abs=1e-12)
            assert one.share(value) == pytest.approx(share, abs=1e-9)
        else:
            assert again == value and type(again) is type(value)
    for share in (-1e-9, 1 + 1e-9):
        assert one.holds(one.at(share))


@pytest.mark.few(len(RANGES))
@pytest.mark.parametrize("one", RANGES, ids=str)
def test_a_range_reaches_both_bounds_exactly(one: Range) -> None:
    assert (one.at(0.0), one.at(1.0)) == (one.low, one.high)
    assert one.grid(3)[0] == one.low and one.grid(3)[-1] == one.high
    assert one.holds(one.low) and one.holds(one.high)
    for odd in (math.nan, math.inf, -math.inf, one.high + 1, one.low - 1, "1", True):
        assert not one.holds(odd)
    assert one.clipped(1e9) == one.high and one.clipped(-1e9) == one.low


def test_whole_numbers_are_equally_likely() -> None:
    one = Range("n", 1, 4, whole=True)
    drawn = [one.at(float(share)) for share in np.random.default_rng(0).random(8000)]
    counts = [drawn.count(n) for n in range(1, 5)]
    assert min(counts) > 1800 and sum(counts) == 8000
    assert not one.holds(1.5) and one.holds(2.0)


def test_a_logarithmic_range_has_as_much_below_as_above_its_geometric_mean() -> None:
    one = Range("lr", 1e-5, 1e-1, "log")
    assert one.at(0.5) == pytest.approx(1e-3)
    assert one.share(1e-4) == pytest.approx(0.25)


def test_true_and_one_are_two_values() -> None:
    one = Choice("k", (1, True))
    assert (one.index(1), one.index(True)) == (0, 1)
    assert one.holds(True) and not Choice("k", (1,)).holds(True)
    with pytest.raises(ValueError):
        one.index("1")


def test_a_space_samples_holds_and_counts() -> None:
    space = read_space(["a=log:1e-3..1.0", "b=1..3", "c=x,y"])
    settings = dict(space.sample(np.random.default_rng(1)))
    assert list(settings) == ["a", "b", "c"] and space.holds(settings)
    assert space.at(space.shares(settings)) == pytest.approx(settings)
    assert not space.holds({**settings, "d": 1}) and not space.holds({"a": 0.5, "b": 1})
    assert len(space.grid(3)) == 3 * 3 * 2 and all(map(space.holds, space.grid(4)))
    with pytest.raises(ValueError, match="at most 100,000 combinations, got 1,000,000"):
        Space((Range("x", 0, 1), Range("y", 0, 1))).grid(1000)
