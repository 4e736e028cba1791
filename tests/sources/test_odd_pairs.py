"""Settings of text that cannot work together, engines' addresses that are none, and a server that
is no vLLM: each is refused in one sentence before the run.
"""

import http.server
import threading

import pytest

import equipoise as eq
from equipoise.actors.engine.vllm import Server, ServerFailed, addresses
from equipoise.language.files import write
from equipoise.language.models import from_scratch
from equipoise.language.tokenizers import CharTokenizer
from equipoise.nets.decoder import Decoder
from equipoise.sources.text import texts_of


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("placement.text=together", "placement.text: must be apart with proxy:8102"),
        ("placement.auto=text", "placement.text: must be apart with proxy:8102.*got auto"),
        ("source.scorers=2", "source.scorers: must be 0 with proxy:8102"),
        ("source.history=render", "source.history: must be append with proxy:8102"),
    ],
)
def test_a_run_of_calls_refuses_what_it_would_not_read(setting, said):
    arguments = "source.arguments=alphabet=abc"
    with pytest.raises(ValueError, match=said):
        eq.program("proxy:8102", "grpo", settings=[arguments, setting], max_lag=0)


def test_a_run_has_at_most_1024_scorers():
    with pytest.raises(ValueError, match="source.scorers: .*1000000"):
        eq.program("sort", "grpo", settings=["source.scorers=1000000"])


@pytest.mark.parametrize("named", ["vllm:http://me:secret@h:80", "vllm:http://me:secret@h:99999"])
def test_a_password_in_an_address_is_refused_and_not_repeated(named):
    with pytest.raises(ValueError, match="must be URLs") as refused:
        addresses(named)
    assert "secret" not in str(refused.value)


class Page(http.server.BaseHTTPRequestHandler):
    """A server that answers everything with a page of several lines."""

    def do_GET(self):
        self.send_response(404)
        self.end_headers()
        self.wfile.write(b"<html>\n\n<h1>None\x1b[31m</h1>\n</html>")

    def log_message(self, *arguments):
        """Print nothing."""


def test_a_page_of_another_server_is_said_in_one_line():
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            (named,) = addresses(f"vllm:http://127.0.0.1:{server.server_port}")
            with pytest.raises(ServerFailed, match="status 404: <html> <h1>None") as refused:
                Server(named, None, 5.0).check((), 64, "finish")
            assert str(refused.value).isprintable()
        finally:
            server.shutdown()
            thread.join()


def test_the_model_of_calls_is_asked_by_texts_if_its_tokenizer_has_no_template(tmp_path):
    letters = CharTokenizer("012>")
    shape = "llama:hidden_size=8,num_hidden_layers=1,num_attention_heads=1"
    config = from_scratch(shape, letters.size)
    write(tmp_path, config, dict(Decoder(config).named_parameters()), eos=tuple(letters.eos))
    letters.save(tmp_path)
    made = eq.program("proxy:8102", "grpo", model=str(tmp_path), max_completion_length=4)
    assert not texts_of(made).text().spec.chat
