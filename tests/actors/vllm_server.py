"""A server that speaks vLLM's documented interface over our engine, as a process: for tests.

    python tests/actors/vllm_server.py CONFIG.json [--rows N] [--length N] [--vllm 0.33.0] [--fault F]

It prints its port. Routes and forms are those of vLLM 0.32 (see ``vllm_exchanges.json``, recorded
from it) and of 0.33, which adds ``weight_versions``. ``--fault`` makes it break a promise.
"""  # noqa: E501

from __future__ import annotations

import argparse
import json
import math
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import torch
from safetensors.torch import load_file

from equipoise.actors.engine.drawing import index_keys
from equipoise.actors.engine.engine import Continuation, Sampled
from equipoise.actors.engine.torch_engine import GROUP, INDEX, KEY, Ends, TorchEngine, _Group
from equipoise.nets.decoder import Decoder, DecoderConfig
from equipoise.nets.packing import packed_texts
from equipoise.nets.token_logp import token_logp
from equipoise.types.packed import Stop

# parts of a stream that are wrong in one way each, by the fault's name
GARBAGE: dict[str, dict[str, Any]] = {
    "token of text": {"token_ids": ["x"]},
    "token too large": {"token_ids": [10**9]},
    "more tokens": {"token_ids": [4, 4, 4, 4]},
    "no log-probabilities": {"logprobs": None},
    "a chance above 1": {"logprobs": {"token_logprobs": [0.5]}},
    "nan": {"logprobs": {"token_logprobs": [math.nan]}},
    "another choice": {"index": 77},
    "an unknown end": {"finish_reason": "abort"},
    "an end too soon": {"finish_reason": "length"},
    "an end by no end": {"finish_reason": "stop", "stop_reason": 5},
    "foreign weights": {
        "finish_reason": "length",
        "weight_versions": [{"start": 0, "end": 1, "version": "other-1"}],
    },
    "torn spans": {
        "finish_reason": "length",
        "weight_versions": [{"start": 3, "end": 9, "version": "other-1"}],
    },
}


class SeededEngine(TorchEngine):
    """A ``TorchEngine`` whose groups have seeds of their own."""

    seeds: dict[int, int]

    def _begin(self, groups: list[_Group], end: torch.Tensor | None = None) -> torch.Tensor:
        first = self.live
        hidden = super()._begin(groups, end)
        rows = self._rows[:, first : self.live]
        for one in groups:
            mine = rows[GROUP] == one.group
            key = np.full(int(mine.sum()), self.seeds[one.group], np.int64)
            rows[KEY, mine] = index_keys(key, rows[INDEX, mine])
        return hidden


class Model:
    """The engine in one thread, with vLLM's promises: what is queued while it is paused is drawn
    after it, in order; new weights draw from the next token on.
    """

    def __init__(self, config: DecoderConfig, rows: int, length: int, eos: list[int]) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(99)  # others than any run begins with
        net = Decoder(config)
        self.length = length
        self.engine = SeededEngine(
            net, rows=rows, length=length, ends=Ends(eos), seed=0, on_update="keep"
        )
        self.engine.seeds = {}
        self.labels = ["default"]  # by the engine's version
        self.paused = False
        self.lock = threading.Condition()
        self.open: dict[int, tuple[SimpleQueue[Sampled | None], int]] = {}
        self.mine: dict[int, int] = {}  # index of a continued sample
        self.temperature = 1.0
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            with self.lock:
                self.lock.wait_for(
                    lambda: not self.paused and bool(self.engine.live or self.engine.waiting)
                )
                for one in self.engine.step():
                    self.open[one.group][0].put(one)

    def ask(self, body: dict[str, Any]) -> SimpleQueue[Sampled | None]:
        with self.lock:
            group, answers = len(self.open), SimpleQueue[Sampled | None]()
            self.engine._temperature = float(body["temperature"])
            xargs = body.get("vllm_xargs", {}).get("equipoise")
            self.open[group] = answers, 0 if xargs is None else xargs[1]
            if xargs is None:
                self.engine.seeds[group] = body["seed"]
                self.engine.submit(group, body["prompt"], body["n"], limit=body["max_tokens"])
            else:
                key, index, prompt = xargs
                self.engine.seeds[group] = key
                self.engine.go_on(
                    Continuation(group, index, body["prompt"], prompt, body["max_tokens"])
                )
            self.lock.notify_all()
            return answers

    def pause(self) -> None:
        with self.lock:
            self.paused = True

    def resume(self) -> None:
        with self.lock:
            self.paused = False
            self.lock.notify_all()

    def reload(self, folder: str, *, half: bool = False, ignore: bool = False) -> None:
        """``half``: fail in the midst; ``ignore``: say that it is done, and do nothing."""
        params = load_file(Path(folder) / "model.safetensors")
        with self.lock:
            if ignore:
                return
            if half:
                for name, value in list(self.engine._now.params.items())[:5]:
                    value.data.copy_(params[name])
                raise RuntimeError("CUDA out of memory")
            for _ in self.engine.take(self.engine.version + 1, params, lambda: True):
                pass
            self.labels.append(self.labels[-1])

    def logps(self, text: list[int]) -> list[float]:
        with self.lock, torch.no_grad():
            data = packed_texts([(text[:1], [text[1:]])])
            logp, _ = token_logp(self.engine._now.net, data, entropy=False)
            return list(logp[data.chosen].tolist())


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model: Model
    version = "0.33.0"
    fault = ""
    token = ""

    def log_message(self, *_: object) -> None: ...

    def answer(self, body: object, status: int = 200) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        model, path = self.model, urlsplit(self.path).path
        if self.fault == "html":
            self.answer("<html>It works!</html>")
        elif path == "/version":
            self.answer({"version": self.version})
        elif path == "/health":
            self.answer(None)
        elif path == "/v1/models":
            one = {"id": "model", "object": "model", "max_model_len": model.length}
            self.answer({"object": "list", "data": [one]})
        elif path == "/server_info" and self.fault != "no dev mode":
            mode = "raw_logprobs" if self.fault == "raw" else "processed_logprobs"
            self.answer({"vllm_config": {"model_config": {"logprobs_mode": mode}}})
        elif path == "/is_paused":
            self.answer({"is_paused": model.paused})
        elif path == "/weight_info":
            self.answer({"weight_version": model.labels[-1]})
        else:
            self.answer({"detail": "Not Found"}, 404)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"{}")
        model, parts = self.model, urlsplit(self.path)
        if self.token and self.headers.get("Authorization") != f"Bearer {self.token}":
            self.answer({"error": "Unauthorized"}, 401)
        elif parts.path == "/fault":  # of the tests alone
            type(self).fault = body["fault"]
            type(self).version = body.get("version", self.version)
            self.answer({})
        elif parts.path == "/v1/completions":
            self.complete(body)
        elif parts.path == "/pause":
            assert parse_qs(parts.query)["mode"] == ["keep"]
            model.pause()
            self.answer({"status": "paused"})
        elif parts.path == "/resume":
            model.resume()
            self.answer({"status": "resumed"})
        elif parts.path == "/collective_rpc":
            assert body["method"] == "reload_weights"
            try:
                model.reload(
                    body["kwargs"]["weights_path"],
                    half=self.fault == "half",
                    ignore=self.fault == "stale",
                )
            except RuntimeError as error:
                self.answer({"error": {"message": f"Worker failed: {error}"}}, 500)
                return
            self.answer({"results": [None]})
        elif parts.path == "/update_weight_version":
            model.labels[-1] = body["new_version"]
            self.answer({"success": True, "new_version": body["new_version"]})
        elif parts.path == "/reset_prefix_cache":
            with model.lock:
                model.engine._recompute()
            self.answer({"success": True})
        else:
            self.answer({"detail": "Not Found"}, 404)

    def complete(self, body: dict[str, Any]) -> None:
        model = self.model
        if "prompt_logprobs" in body:
            text = body["prompt"]
            found = [{str(token): {"logprob": logp}} for token, logp in
                     zip(text[1:], model.logps(text), strict=True)]  # fmt: skip
            self.answer({"choices": [{"index": 0, "prompt_logprobs": [None, *found]}]})
            return
        answers = model.ask(body)
        if self.fault == "html":
            self.answer("<html>It works!</html>")
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        first = body.get("vllm_xargs", {}).get("equipoise", [0, 0])[1]
        for _ in range(body["n"]):
            one = answers.get()
            assert one is not None
            if self.fault == "hangs up":
                self.close_connection = True
                return
            for chunk in self.chunks(one, one.index - first, body["stream_interval"]):
                self.send(f"data: {json.dumps({'choices': [chunk]})}\n\n".encode())
        self.send(b"data: [DONE]\n\n")
        self.send(b"")

    def chunks(self, one: Sampled, index: int, every: int) -> Iterator[dict[str, Any]]:
        """The parts of a sample: the first token, then ``every`` tokens at a time."""
        at = 0
        while at < len(one.token):
            end = min(at + (every if at else 1), len(one.token))
            last = end == len(one.token)
            stop = one.stop == Stop.EOS
            chunk: dict[str, Any] = {
                "index": index,
                "text": "",
                "logprobs": {"token_logprobs": [float(x) for x in one.logp[at:end]]},
                "token_ids": one.token[at:end].tolist(),
                "finish_reason": ("stop" if stop else "length") if last else None,
                "stop_reason": int(one.token[-1]) if last and stop else None,
            }
            if last and not self.version.startswith("0.32"):
                chunk["weight_versions"] = list(self.spans(one))
            yield chunk | GARBAGE.get(self.fault, {})
            at = end

    def spans(self, one: Sampled) -> Iterator[dict[str, Any]]:
        start = 0
        for end in [*(np.flatnonzero(np.diff(one.version)) + 1).tolist(), len(one.token)]:
            label = self.model.labels[int(one.version[start])]
            yield {"start": start, "end": end, "version": label}
            start = end

    def send(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()


class QuietServer(ThreadingHTTPServer):
    """Clients that leave are no error."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exc_info()[1], ConnectionError):
            super().handle_error(request, client_address)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("config", type=Path)
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--vllm", default="0.33.0")
    parser.add_argument("--fault", default="")
    parser.add_argument("--token", default="")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    about = json.loads(given.config.read_text())
    eos = about.pop("eos")
    Handler.model = Model(DecoderConfig(**about), given.rows, given.length, eos)
    Handler.version, Handler.fault, Handler.token = given.vllm, given.fault, given.token
    server = QuietServer(("127.0.0.1", given.port), Handler)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdin.read()  # until the caller ends


if __name__ == "__main__":
    main()
