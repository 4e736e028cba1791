"""What becomes of samples when a server of the engine fails: they begin again on another, or the
error is one sentence. No sample of weights that a server was not proven to have is handed on.
"""

from __future__ import annotations

import http.server
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from equipoise.actors.engine import server_engine
from equipoise.actors.engine.engine import Continuation
from equipoise.actors.engine.sent_weights import PREFIX, Proof, SentWeights
from equipoise.actors.engine.server_engine import Drawing, EngineFailed, ServerEngine
from equipoise.actors.engine.vllm import (
    Address,
    Server,
    ServerFailed,
    addresses,
    token_for,
)
from equipoise.nets.decoder import Decoder
from tests.actors.decoders import small_decoder
from tests.actors.test_engine_conformance import (
    EOS,
    LENGTH,
    SEED,
    WORDS,
    Samples,
    collected,
    moved,
    prompt,
    same,
    update,
    wrong_logps,
)
from tests.actors.vllm_process import VERSIONS, Process, served


@pytest.fixture(scope="module")
def net() -> Decoder:
    torch.set_num_threads(1)
    return small_decoder(words=WORDS, length=LENGTH)


@pytest.fixture(scope="module")
def _started(net: Decoder, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Process]]:
    place = tmp_path_factory.mktemp("servers")
    with served(place, net.config, (EOS,), "--length", str(LENGTH), count=2) as both:
        yield both


@pytest.fixture
def pair(_started: list[Process]) -> Iterator[list[Process]]:
    """Two servers without a fault."""
    yield _started
    for one in _started:
        one.server().call("POST", "/fault", {"fault": "", "version": "0.33.0"})
        one.server().resume()


@contextmanager
def engine(
    processes: list[Process], net: Decoder, *, deadline_s: float = 60.0, **how: Any
) -> Iterator[tuple[ServerEngine, list[str]]]:
    """An engine with version 0, and its notes."""
    notes = list[str]()
    given: dict[str, Any] = {"on_update": "keep", "versions": VERSIONS}
    one = ServerEngine(
        [process.server(deadline_s=deadline_s) for process in processes],
        small_decoder(words=WORDS, length=LENGTH),
        Drawing(seed=SEED, eos=[EOS], length=LENGTH, **given | how),
        note=notes.append,
    )
    try:
        update(one, 0, dict(net.named_parameters()))
        yield one, notes
    finally:
        one.close()


def broken(process: Process, fault: str, version: str = "0.33.0") -> None:
    process.server().call("POST", "/fault", {"fault": fault, "version": version})


def submitted(one: ServerEngine, groups: range = range(8)) -> None:
    for group in groups:
        one.submit(group, prompt(group), 4, limit=20)


@pytest.mark.parametrize("how", ["killed", pytest.param("stopped", marks=pytest.mark.thorough)])
def test_a_server_that_dies_costs_what_it_had_in_flight(
    tmp_path: Path, net: Decoder, how: str
) -> None:
    with (
        served(tmp_path, net.config, (EOS,), "--length", str(LENGTH), count=2) as pair,
        engine(pair, net, deadline_s=6.0 if how == "stopped" else 60.0) as (one, notes),
    ):
        submitted(one)
        whole = collected(one)
        pair[0].server().pause(finish=False)  # so that its samples are under way when it dies
        submitted(one)
        found = {(x.group, x.index): x for x in one.step()}
        pair[0].kill() if how == "killed" else pair[0].stop()
        found |= collected(one)
        assert same(found, whole) and one.restarted == 16
        (note,) = notes
        assert f"{pair[0].url} " in note and "16 samples begin again" in note
        # the other goes on, also with new weights
        update(one, 1, moved(net, 1))
        submitted(one, range(8, 12))
        found = collected(one)
        assert len(found) == 16 and wrong_logps(net, moved(net, 1), found) < 1e-5
        pair[0].kill()
        pair[0].start()
        update(one, 2, moved(net, 2))
        assert notes[-1].endswith("draws again")
        submitted(one, range(12, 16))
        found = collected(one)
        assert len(found) == 16 and wrong_logps(net, moved(net, 2), found) < 1e-5


def test_samples_that_hang_are_found_also_while_new_weights_wait_for_them(
    pair: list[Process], net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_engine, "LIFE_S", 0.05)
    with engine(pair, net, deadline_s=1.0, on_update="finish") as (one, notes):
        submitted(one)
        pair[0].server().pause(finish=False)  # it is alive, and draws nothing
        found = {(x.group, x.index): x for x in one.step()}
        until = time.monotonic() + 30
        for _ in one.take(1, moved(net, 1), lambda: True):
            found |= {(x.group, x.index): x for x in one.step()}
            assert time.monotonic() < until
        found |= collected(one)
        assert len(found) == 32 and "has drawn no token for 1 s" in notes[0]


def test_no_two_turns_of_a_conversation_have_one_seed(net: Decoder) -> None:
    one = ServerEngine([], net, Drawing(seed=SEED, eos=[EOS], length=LENGTH))
    # a rendered text may be as long as an earlier one, and the sample longer than it
    for text, place in (([4, 5, 6], 2), ([4, 5, 6], 1), ([4, 5, 6], -2), ([4, 5], -1)):
        one.go_on(Continuation(3, 1, text, place, 4))
    asks = [ask.draws for ask in one._queue]
    one.close()
    assert len({ask.seed for ask in asks}) == 4
    assert [ask.extra["equipoise"][2] for ask in asks] == [2, 1, -2, -1]


FAULTS = (
    "token of text",
    "token too large",
    "more tokens",
    "no log-probabilities",
    "a chance above 1",
    "nan",
    "another choice",
    "an unknown end",
    "an end too soon",
    "an end by no end",
    "foreign weights",
    "torn spans",
    "hangs up",
    "html",
)


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_that_are_none_cost_the_server(
    pair: list[Process], net: Decoder, fault: str
) -> None:
    with engine(pair, net) as (one, notes):
        submitted(one)
        whole = collected(one)
        broken(pair[1], fault)
        submitted(one)
        assert same(collected(one), whole) and one.restarted > 0
        assert len(notes) == 1 and pair[1].url in notes[0]
        broken(pair[0], fault)
        submitted(one)
        with pytest.raises(EngineFailed, match="no server is left to draw samples: vllm at") as got:
            collected(one)
        assert "\n" not in str(got.value) and len(str(got.value)) < 1000


@pytest.mark.parametrize(
    ("fault", "said"), [("half", "CUDA out of memory"), ("stale", "still draws with older weights")]
)
def test_weights_that_did_not_arrive_draw_nothing(
    pair: list[Process], net: Decoder, fault: str, said: str
) -> None:
    with engine(pair, net) as (one, notes):
        submitted(one)  # half of them are under way there while weights come
        broken(pair[0], fault)
        found = {(x.group, x.index): x for x in one.step()}
        params = moved(net, 1, 0.01)
        update(one, 1, params)
        assert said in notes[0] and pair[0].url in notes[0]
        found |= collected(one)
        assert len(found) == 32
        submitted(one, range(8, 16))
        found = collected(one)
        assert len(found) == 32 and wrong_logps(net, params, found) < 1e-5
        assert all((sample.version == 1).all() for sample in found.values())
        broken(pair[1], fault)
        with pytest.raises(EngineFailed, match=said):
            update(one, 2, moved(net, 2, 0.01))


def test_a_stale_server_is_found_after_updates_too_small_to_see() -> None:
    """Between libraries log-probabilities differ by more than one update changes them."""
    draw = np.random.default_rng(0)
    base, step = draw.normal(-3, 1, 63), draw.normal(0, 0.004, 63)

    def noise() -> np.ndarray:
        return draw.normal(0, 0.01, 63)

    fresh, stale = Proof(), Proof()
    found = -1
    for update_ in range(60):
        now = base + update_ * step
        assert fresh.complaint(now, (now + noise()).tolist()) == ""
        if stale.complaint(now, (base + noise()).tolist()) and found < 0:
            found = update_
    assert 5 < found < 30
    assert "other log-probabilities" in Proof().complaint(base, (base + 1.0).tolist())
    assert "other log-probabilities" in Proof().complaint(base, [float("nan")] * 63)


def test_samples_wait_until_the_weights_are_proven(
    pair: list[Process], net: Decoder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sample that a server ends after it got weights is handed on after the proof."""
    proven, go = threading.Event(), threading.Event()
    asked = Server.logps

    def slow(self: Server, text: Any, salt: str) -> list[float]:
        proven.set()
        assert go.wait(60)
        return asked(self, text, salt)

    with engine(pair[:1], net) as (one, _):
        submitted(one)
        found: Samples = {(x.group, x.index): x for x in one.step()}
        monkeypatch.setattr(Server, "logps", slow)
        parts = one.take(1, moved(net, 1), lambda: True)
        before = -1
        until = time.monotonic() + 60
        while before < 0 and time.monotonic() < until:
            next(parts)
            found |= {(x.group, x.index): x for x in one.step()}
            if proven.is_set():
                before = len(found)
        for _ in range(20):
            next(parts)
            found |= {(x.group, x.index): x for x in one.step()}
        assert len(found) <= before + 4 and len(found) < 32  # one request was read before
        go.set()
        for _ in parts:
            pass
        assert len(found | collected(one)) == 32


# ------------------------------------------------------------------------------------- the start


@pytest.mark.parametrize(
    ("fault", "version", "said"),
    [
        ("", "0.19.1", r"is version '0.19.1', tested are 0.32, 0.33; --set source.engine_versions"),
        ("", "0.32.0", "--set source.on_update=finish"),
        ("no dev mode", "0.33.0", "must run with VLLM_SERVER_DEV_MODE=1"),
        ("raw", "0.33.0", "--logprobs-mode processed_logprobs"),
        ("html", "0.33.0", "answered without 'version': '<html>It works"),
    ],
)
def test_a_server_that_is_none_of_the_tested_is_refused(
    pair: list[Process], fault: str, version: str, said: str
) -> None:
    server = pair[0].server()
    broken(pair[0], fault, version)
    with pytest.raises(ServerFailed, match=said):
        server.check(VERSIONS, LENGTH, "keep")
    broken(pair[0], "")
    server.check(VERSIONS, LENGTH, "keep")
    with pytest.raises(ServerFailed, match="start it with --max-model-len 49"):
        server.check(VERSIONS, LENGTH + 1, "keep")


class Strange(http.server.BaseHTTPRequestHandler):
    """Answers that no JSON reader likes, by the path's first answer."""

    bodies = (b"", b"[]", b"null", b'{"version": 3}', b"{" * 5000, b"\xff\xfe", b'{"version": ""}')
    number = 0

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        body = self.bodies[type(self).number]
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def test_a_url_that_is_no_vllm_is_one_sentence() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Strange)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        for number in range(len(Strange.bodies)):
            Strange.number = number
            with pytest.raises(ServerFailed):
                Server(Address("127.0.0.1", server.server_port, False), None, 5.0).check(
                    VERSIONS, LENGTH, "keep"
                )
    finally:
        server.shutdown()
        server.server_close()
    with pytest.raises(ServerFailed, match="could not be asked for /version"):
        Server(Address("127.0.0.1", server.server_port, False), None, 5.0).check(
            VERSIONS, LENGTH, "keep"
        )


def test_a_listener_that_says_nothing_or_no_http_is_one_sentence() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(ServerFailed, match=r"did not answer /version within 0.2 s"):
            Server(Address("127.0.0.1", port, False), None, 0.2).check(VERSIONS, 9, "keep")

        def speak() -> None:
            with suppress(OSError):
                listener.accept()[0].close()  # of the first part
                conn, _ = listener.accept()
                conn.sendall(b"SSH-2.0-OpenSSH_9.6\r\n")
                conn.close()

        threading.Thread(target=speak, daemon=True).start()
        with pytest.raises(ServerFailed, match="could not be asked for /version"):
            Server(Address("127.0.0.1", port, False), None, 5.0).check(VERSIONS, 9, "keep")


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("vllm:", "must be URLs"),
        ("vllm", "must be URLs"),
        ("vllm:http://", "must be URLs"),
        ("vllm:ftp://127.0.0.1", "must be URLs"),
        ("vllm:http://a:b@127.0.0.1", "must be URLs"),
        ("vllm:http://127.0.0.1:99999", "must be URLs"),
        ("vllm:http://127.0.0.1:x", "must be URLs"),
        ("vllm:http://[::1", "must be URLs"),
        ("vllm:http://127.0.0.1/other", "must be URLs without a path"),
        ("vllm:http://127.0.0.1?a=b", "must be URLs without a query"),
        ("vllm:http://127.0.0.1:1,", "must be URLs"),
        ("vllm:http://127.0.0.1:1,http://127.0.0.1:1", "must be at most 64 different URLs"),
        ("vllm:http://127.0 .0.1:1", "must be URLs without spaces"),
        ("vlm:http://127.0.0.1:1", "must be torch, sim:... or vllm:URL.*did you mean 'vllm'"),
        ("sglang:http://127.0.0.1:1", "SGLang's server cannot tell which weights drew a token"),
    ],
)
def test_wrong_urls_are_refused(named: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        addresses(named)


def test_urls_and_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EQUIPOISE_ENGINE_TOKEN", raising=False)
    found = addresses("vllm:127.0.0.1:8000, http://localhost:8001/v1,http://[::1]:8002/")
    assert [str(one) for one in found] == [
        "http://127.0.0.1:8000",
        "http://localhost:8001",
        "http://[::1]:8002",
    ]
    assert token_for(found, "") is None
    far = addresses("vllm:https://10.0.0.7")
    assert far == [Address("10.0.0.7", 443, True)]
    with pytest.raises(ValueError, match="must have a token if other machines can connect"):
        token_for(far, "")
    file = tmp_path / "token"
    file.write_text("0123456789abcdef\n")
    assert token_for(far, str(file)) == "0123456789abcdef"


def test_the_token_is_sent(net: Decoder, tmp_path: Path) -> None:
    token = "0123456789abcdef"
    with served(
        tmp_path, net.config, (EOS,), "--length", str(LENGTH), "--token", token
    ) as processes:
        processes[0].server(token=token).resume()
        with pytest.raises(ServerFailed, match="status 401"):
            processes[0].server().resume()


def test_weights_of_killed_processes_are_removed(net: Decoder, tmp_path: Path) -> None:
    before = SentWeights(small_decoder(words=WORDS, length=LENGTH), str(tmp_path), length=9, seed=1)
    (mine,) = tmp_path.iterdir()
    before.close()
    left = tmp_path / mine.name.replace(f"-{os.getpid()}-", "-999999999-")
    left.mkdir()
    (left / "model.safetensors").write_bytes(b"x")
    # of a process of another machine, which shares the folder
    kept = tmp_path / f"{PREFIX}0123abcd-999999999-abc"
    kept.mkdir()
    sent = SentWeights(small_decoder(words=WORDS, length=LENGTH), str(tmp_path), length=9, seed=1)
    assert not left.exists() and kept.exists()
    params = dict(net.named_parameters())
    first, logps = sent.write(1, params)
    second, again = sent.write(2, params)
    assert not first.exists() and second.exists() and np.array_equal(logps, again)
    with pytest.raises(ValueError, match=r"update: must have model.embed_tokens.weight"):
        sent.write(3, {})
    sent.close()
    assert sorted(one.name for one in tmp_path.iterdir()) == [kept.name]
    with pytest.raises(ValueError, match="source.engine_folder: must be a folder"):
        SentWeights(small_decoder(words=WORDS, length=LENGTH), "/none", length=9, seed=1)
