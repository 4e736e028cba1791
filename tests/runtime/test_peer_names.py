"""The tables of the names that peers have. What each is answered with:
tests/cli/test_wrong_inputs.py.
"""

from __future__ import annotations

import re
from collections import Counter

from equipoise import api
from equipoise.console.options import flags
from equipoise.programs.peer_names import (
    algorithm_of_peer,
    key_of_peer,
    peer_names,
    words_of_peer,
)
from equipoise.programs.program import algorithm_names
from equipoise.programs.settings import setting_types

NAMES = ("ppo", "impala", "appo", "a3c", "dqn", "r2d2", "apex_dqn", "sac", "td3", "tqc")


def settable(algorithm: str) -> set[str]:
    env = "Pendulum-v1" if algorithm in ("sac", "td3", "tqc") else "CartPole-v1"
    return set(setting_types(api.program(env, algorithm)))


def test_every_key_of_the_table_is_a_setting_of_ours() -> None:
    known = set().union(*(settable(name) for name in NAMES))
    keys = {one.key for one in peer_names().settings}
    assert {key for key in keys if not key.startswith("env.")} <= known


def test_a_name_stands_once_and_is_none_of_ours() -> None:
    found = peer_names()
    # a name may be of several settings: of the first that the program has
    names = Counter({name for one in found.settings for name in one.names})
    for table in (found.options, found.words):
        names.update(name for names in table.values() for name in names)
    assert [name for name, times in names.items() if times > 1] == []
    pairs = [(one.key, name) for one in found.settings for name in one.names]
    assert len(pairs) == len(set(pairs))
    options = {name.replace("-", "_") for name in flags()}
    assert not options & names.keys()


def test_what_the_algorithm_has_not_is_not_said() -> None:
    assert key_of_peer("buffer_size", settable("ppo")) == ("", "")
    assert key_of_peer("num_minibatches", settable("ppo"))[0] == "algorithm.minibatches"
    assert "not a share" in key_of_peer("exploration_fraction", settable("dqn"))[1]


def test_what_is_said_of_algorithms_names_ours_and_their_settings() -> None:
    known, settings = set(algorithm_names()), set().union(*(settable(name) for name in NAMES))
    for said, names in peer_names().algorithms.items():
        assert set(re.findall(r"'(\w+)'", said)) <= known and not set(names) & known, said
        assert set(re.findall(r"(?:algorithm|replay)\.\w+", said)) <= settings, said
    times = Counter(name for names in peer_names().algorithms.values() for name in names)
    assert max(times.values()) == 1


def test_what_is_of_no_peer_is_not_said() -> None:
    assert words_of_peer("gamma") == words_of_peer("envy") == ""
    assert (
        algorithm_of_peer("my_algorithm", algorithm_names())
        == algorithm_of_peer("poo", algorithm_names())
        == ""
    )
