"""The page's server on a real port: what it shows, what it pushes, and whom it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import quote, urljoin

import pytest

from equipoise import web
from equipoise.pages import responses
from equipoise.registry import Registry
from equipoise.watching import guard, page
from equipoise.watching.versions import Versions
from tests.registry.made import artifact
from tests.report import made
from tests.watching.opened import TOKEN, Client, opened
from tests.watching.test_runs import write_live

STATIC = Path(page.__file__).parent / "static"
SHARED = Path(responses.__file__).parent / "static"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Two runs, one of which goes on."""
    made.run(tmp_path / "runs/a", summary=False)
    made.run(tmp_path / "runs/b", algorithm="dqn", said={"notes": ["<img src=x onerror=alert(1)>"]})
    write_live(tmp_path / "runs/a")
    return tmp_path / "runs"


@pytest.fixture
def client(place: Path) -> Iterator[Client]:
    with opened(place) as one:
        yield one


# -------------------------------------------------------------------------------------------- files


def test_every_file_of_the_page_is_served_and_names_no_other_host(client: Client) -> None:
    status, body, headers = client.ask("/")
    assert status == 200 and headers["content-type"].startswith("text/html")
    policy = headers["content-security-policy"]
    assert (
        "default-src 'none'" in policy
        and "require-trusted-types-for 'script'" in policy
        and "http" not in policy
    )
    assert headers["x-content-type-options"] == "nosniff"
    names = set(re.findall(r'"static/([^"]+)"', body.decode()))
    assert {"app.js", "style.css", "palette.css", "theme.js", "icon.svg"} <= names
    for name in sorted(names | {file.name for file in [*STATIC.iterdir(), *SHARED.iterdir()]}):
        status, body, headers = client.ask(f"/static/{name}")
        assert status == 200 and body, name
        assert client.ask(f"/static/{name}", If_None_Match=headers["etag"])[0] == 304
        for url in re.findall(rb"https?://[^\"'\s)]+", body):
            assert url == b"http://www.w3.org/2000/svg", f"{name} names another host"
        imported = re.findall(r'from "\./([\w.]+)"', body.decode())
        assert all((STATIC / one).is_file() or (SHARED / one).is_file() for one in imported), (
            f"{name} imports what is not there"
        )


def test_no_script_makes_html_of_a_text() -> None:
    for file in [*STATIC.glob("*.js"), *SHARED.glob("*.js")]:
        found = re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new "
            r"Function|DOMParser|srcdoc",
            file.read_text(),
        )
        assert found == [], file.name


@pytest.mark.parametrize(
    "path",
    ["/static/../page.py", "/static/%2e%2e/page.py", "/static/none.js", "/etc/passwd", "/static/"],
)
def test_no_other_file_is_served(client: Client, path: str) -> None:
    assert client.ask(path)[0] == 404


# ------------------------------------------------------------------------------------------- pushed


def test_what_changes_is_pushed(client: Client, place: Path) -> None:
    with client.events("/api/events?run=a") as events:
        assert next(events)[0] == "hello"
        name, news = next(events)
        assert (
            name == "runs"
            and news["all"]
            and {row["id"]: row["status"] for row in news["rows"]}
            == {"a": "running", "b": "completed"}
        )
        name, told = next(events)
        assert name == "run" and told["id"] == "a" and told["verdict"].startswith("Sampling-bound")
        write_live(place / "a", verdict="Learning-bound: wait.", cause="Learning-bound")
        found = dict([next(events), next(events)])  # within 20 s, which is the client's timeout
        assert found["run"]["cause"] == "Learning-bound" and [
            row["id"] for row in found["runs"]["rows"]
        ] == ["a"]
        write_live(place / "a", pid=os.getpid(), born=1)
        assert next(events)[1]["rows"][0]["status"] == "killed"


@pytest.mark.thorough
def test_nothing_is_read_while_nobody_looks(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks, inner = list[int](), client.page.folder.poll

    def noted() -> None:
        looks.append(1)
        inner()

    monkeypatch.setattr(client.page.folder, "poll", noted)
    with client.events() as events:
        next(events), next(events)
        end = time.monotonic() + 10
        while len(looks) < 3 and time.monotonic() < end:
            time.sleep(0.05)
        assert len(looks) >= 3 and client.page.viewers == 1
    end = time.monotonic() + 10
    while client.page.viewers or client.page._looking is not None:
        assert time.monotonic() < end, "the look goes on after the last viewer"
        time.sleep(0.05)
    before = len(looks)
    time.sleep(3 * page.EVERY_S)
    assert len(looks) == before


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_look_that_fails_ends_the_streams(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    with client.events() as events:
        next(events), next(events)
        with monkeypatch.context() as broken:
            broken.setattr(client.page.folder, "poll", lambda: 1 / 0)
            assert list(events) == [], "a stream that nobody feeds would hang"
    with client.events() as events:
        assert next(events)[0] == "hello"


def test_too_many_viewers_are_told_so(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MOST_VIEWERS", 1)
    with client.events() as events:
        next(events)
        assert client.ask("/api/events")[0] == 503


# ---------------------------------------------------------------------------------------- asked for


def test_curves_and_settings(client: Client, place: Path) -> None:
    status, found, _ = client.ask("/api/curves?run=a&run=b&y=return&y=learner/entropy&x=wall")
    assert (
        status == 200
        and set(found) == {"a", "b"}
        and found["a"]["of"]["learner/entropy"][0][0] == 2.0
    )
    status, found, _ = client.ask("/api/settings?run=a&run=b")
    assert found["differ"]["algorithm.name"] == ["ppo", "dqn"] and found["alike"] > 5
    with (place / "a/metrics.jsonl").open("a") as out:
        out.write("{broken\n")
    client.ask("/api/curves?run=a&y=return")
    assert "line 21" in client.ask("/api/run?run=a")[1]["problems"][0]


def test_a_clip_is_served_in_pieces_and_no_other_file_is(client: Client, place: Path) -> None:
    (place / "a/videos").mkdir()
    (place / "a/videos/one.mp4").write_bytes(b"0123456789")
    (place / "a/videos/.hidden.mp4").write_bytes(b"secret")
    status, found, headers = client.ask("/api/clip?run=a&name=one.mp4")
    assert (status, found, headers["content-type"]) == (200, b"0123456789", "video/mp4")
    assert "media-src 'self'" in headers["content-security-policy"]
    assert client.ask("/api/clip?run=a&name=one.mp4", Range="bytes=2-4")[:2] == (206, b"234")
    for name in ("two.mp4", ".hidden.mp4", "../run.json", "..%2Frun.json", ""):
        status, found, _ = client.ask(f"/api/clip?run=a&name={name}")
        assert status == 404 and "unknown clip" in found["error"], name


def test_an_unknown_run_is_told_with_the_nearest(client: Client) -> None:
    status, found, _ = client.ask("/api/run?run=../../etc")
    assert (
        status == 404
        and "unknown '../../etc'" in found["error"]
        and "valid: a, b" in found["error"]
    )
    assert client.ask("/api/registry")[0] == 404 and client.ask("/api/curves?run=c")[0] == 404


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Host": "evil.example"}, 421),
        ({"Host": "evil.example:80"}, 421),
        ({"Host": ""}, 421),
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Host": "localhost:1234"}, 200),
        ({"Host": "[::1]:1234"}, 200),
        ({"Host": "192.168.1.9:80"}, 200),
    ],
)
def test_strangers_are_refused(client: Client, headers: dict, status: int) -> None:
    got, body, answered = client.ask("/api/run?run=a", **headers)
    assert got == status and (
        status == 200
        or ("expected" in body["error"] and "access-control-allow-origin" not in answered)
    )


def test_the_own_origin_may_ask(client: Client) -> None:
    assert (
        client.ask(
            "/api/run?run=a", Origin=f"http://127.0.0.1:{client.port}", Sec_Fetch_Site="same-origin"
        )[0]
        == 200
    )


def test_bodies_are_bounded(client: Client) -> None:
    assert client.ask("/api/enter", b"x" * 9000)[0] == 413
    assert client.ask("/api/enter", b"{}", Content_Type="text/plain")[0] == 415
    for body in (
        b"{",
        b"[]",
        b"{}",
        b'{"token": 3}',
        b'{"token": "a", "b": "c"}',
        b"[" * 5000,
        b"\xff",
    ):
        status, said, _ = client.ask("/api/enter", body)
        assert status == 400 and said["error"].startswith("body: expected"), body
    with socket.create_connection(("127.0.0.1", client.port), timeout=10) as raw:
        raw.sendall(
            b"POST /api/enter HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        assert b"411" in raw.recv(200)


def test_a_page_that_others_reach_needs_the_token(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "WRONG_S", 0.0)
    with opened(place, closed=True) as client:
        assert client.ask("/")[0] == 200, "the empty page says nothing of the runs"
        for path in (
            "/api/run?run=a",
            "/api/events",
            "/api/curves?run=a",
            "/api/registry",
            "/api/settings?run=a",
            "/api/clip?run=a&name=one.mp4",
        ):
            assert client.ask(path)[0] == 401, path
        assert client.ask("/api/run?run=a", Authorization="Bearer wrong")[0] == 401
        assert client.ask("/api/run?run=a", **BEARER)[0] == 200
        for wrong in ("wrong", "\ud800"):
            assert client.ask("/api/enter", {"token": wrong})[0] == 401
        status, _, headers = client.ask("/api/enter", {"token": TOKEN})
        cookie = headers["set-cookie"]
        assert (
            status == 200
            and "HttpOnly" in cookie
            and "SameSite=strict" in cookie
            and TOKEN not in cookie
        )
        assert client.ask("/api/run?run=a", Cookie=cookie.partition(";")[0])[0] == 200
        assert client.ask("/api/run?run=a", Cookie=cookie.partition("=")[0] + "=x")[0] == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "10.0.0.3", "::", "elsewhere"])
def test_others_need_a_token_from_the_start(host: str) -> None:
    with pytest.raises(
        ValueError, match="must have a token if other machines can connect, got none"
    ):
        guard.check_host(host, None)
    guard.check_host("localhost", None)
    guard.check_host(host, TOKEN)


# ----------------------------------------------------------------------------------------- versions


def registry_of(place: Path) -> tuple[Registry, str, str]:
    """A registry with a champion, and a child of it."""
    registry = Registry(place, create=True)
    one = registry.add(
        artifact(place.parent / "one", "one", {"run": "runs/a", "step": 100}),
        "pong",
        reason="first",
    )
    two = registry.add(
        artifact(place.parent / "two", "two", {"run": "runs/a", "step": 200, "parent": one}), "pong"
    )
    registry.alias("pong", "champion", one)
    return registry, one, two


def test_versions_are_shown_and_moved_with_the_token(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page, "WRONG_S", 0.0)
    registry, one, two = registry_of(tmp_path / "registry")
    move = {
        "policy": "pong",
        "alias": "champion",
        "version": two,
        "expect": one,
        "reason": "better",
    }
    with opened(place, tmp_path / "registry") as client:
        status, found, _ = client.ask("/api/registry")
        (policy,) = found["policies"]
        assert (
            status == 200
            and policy["aliases"] == {"champion": one}
            and [v["version"] for v in policy["versions"]] == [two, one]
        )
        assert (
            policy["versions"][0]["lineage"]["parent"] == one
            and policy["audit"][0]["reason"] == "first"
        )
        for headers in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN + "x"},
            {"Authorization": "Bearer "},
        ):
            assert client.ask("/api/alias", move, **headers)[0] == 401
        assert registry.aliases("pong")["champion"] == one, "nothing is moved without the token"
        assert client.ask("/api/alias", move, Origin="http://evil.example", **BEARER)[0] == 403
        with client.events() as events:
            assert [name for name, _ in (next(events), next(events), next(events))] == [
                "hello",
                "runs",
                "versions",
            ]
            assert client.ask("/api/alias", move, **BEARER)[:2] == (200, {"version": two})
            assert next(events)[0] == "versions", "viewers hear of it"
        status, said, _ = client.ask("/api/alias", move, **BEARER)
        assert status == 409 and "it was moved meanwhile" in said["error"], (
            "a move that saw an older champion is refused"
        )
        assert client.ask(
            "/api/rollback", {"policy": "pong", "expect": two, "reason": "worse"}, **BEARER
        )[:2] == (
            200,
            {"version": one},
        )
        last = client.ask("/api/registry")[1]["policies"][0]["audit"][-1]
        assert (
            last["kind"] == "rollback"
            and last["reason"] == "worse"
            and "by the page from 127.0.0.1" in last["who"]
        )
        for bad in (
            {"policy": "../x"},
            {"policy": "none"},
            {"alias": "king"},
            {"version": "zz"},
            {"alias": "previous"},
        ):
            status, said, _ = client.ask("/api/alias", move | {"expect": one} | bad, **BEARER)
            assert status == 409 and "error" in said, bad
        (tmp_path / "registry/artifacts" / two / "edge.py").unlink()
        assert "edge.py" in str(
            client.ask("/api/registry")[1]["policies"][0]["versions"][0]["problem"]
        )


def test_a_move_that_takes_long_keeps_no_viewer_waiting(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, one, two = registry_of(tmp_path / "registry")
    going, goes_on, inner = threading.Event(), threading.Event(), Versions.alias

    def slow(self: Versions, **how: str) -> str:
        going.set()
        assert goes_on.wait(20)
        return inner(self, **how)

    monkeypatch.setattr(Versions, "alias", slow)
    move = {
        "policy": "pong",
        "alias": "champion",
        "version": two,
        "expect": one,
        "reason": "better",
    }
    with opened(place, tmp_path / "registry") as client, ThreadPoolExecutor(1) as hands:
        moved = hands.submit(client.ask, "/api/alias", move, **BEARER)
        try:
            assert going.wait(20)
            assert client.ask("/api/run?run=a")[0] == 200 and not moved.done()
        finally:
            goes_on.set()
        assert moved.result(20)[:2] == (200, {"version": two})


# -------------------------------------------------------------------------------------- the command


def test_a_registry_that_goes_is_said(place: Path, tmp_path: Path) -> None:
    registry_of(tmp_path / "registry")
    with opened(place, tmp_path / "registry") as client:
        (tmp_path / "registry/policies/pong/audit").rename(tmp_path / "registry/policies/pong/else")
        (tmp_path / "registry/policies/pong/audit").symlink_to(tmp_path)
        with client.events() as events:
            assert [name for name, _ in (next(events), next(events), next(events))] == [
                "hello",
                "runs",
                "versions",
            ]
        assert client.ask("/api/registry")[0] in (200, 409)


def start(*words: str, cwd: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "equipoise", "watch", "--port", "0", *words]
    return subprocess.Popen(
        command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


@pytest.mark.thorough
def test_the_command_serves_until_ctrl_c(place: Path, tmp_path: Path) -> None:
    registry_of(tmp_path / "registry")
    process = start("runs", "--registry", "registry", cwd=tmp_path)
    try:
        assert process.stdout is not None
        first, second = process.stdout.readline(), process.stdout.readline()
        assert first.startswith("watching runs at http://127.0.0.1:") and re.fullmatch(
            r"token, to move a version: \S{20,}\n", second
        )
        client = Client(None, int(re.search(r":(\d+)/", first)[1]))  # type: ignore[index, arg-type]
        with client.events() as events:
            assert next(events)[1]["registry"] and len(next(events)[1]["rows"]) == 2
            modules = (
                json.loads(json.dumps(Path(f"/proc/{process.pid}/maps").read_text()))
                if sys.platform == "linux"
                else ""
            )
            assert "libtorch" not in modules and "onnxruntime" not in modules
            process.send_signal(signal.SIGINT)
            assert process.wait(10) == 130, "a stream that is open keeps it from nothing"
    finally:
        process.kill()
        process.communicate()


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none"], "expected a folder with runs, got none"),
        (["runs", "--host", "0.0.0.0"], "must have a token"),
        (["runs", "--registry", "runs"], "expected a registry"),
        (
            ["runs", "--host", "999.1.1.1", "--token-file", "token"],
            "expected an address and a port that are free here",
        ),
        (["runs", "--token-file", "short"], "--token-file: expected a token of 16 to"),
    ],
)
def test_what_cannot_be_is_one_line(
    place: Path, tmp_path: Path, words: list[str], said: str
) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    (tmp_path / "short").write_text("short")
    process = start(*words, cwd=tmp_path)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 2 and out == "" and said in err and err.count("\n") == 1


def test_a_slow_request_is_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger with half a request loses the connection."""
    monkeypatch.setattr(
        web.config, "__kwdefaults__", {**(web.config.__kwdefaults__ or {}), "request_s": 0.2}
    )
    with opened(place) as client, socket.create_connection(("127.0.0.1", client.port), 20) as slow:
        slow.sendall(b"GET / HTTP/1.1\r\nHost: 127.0")
        assert slow.recv(1 << 16).startswith(b"HTTP/1.1 408 ") and slow.recv(1) == b""


def test_the_page_works_below_any_path(client: Client) -> None:
    """Behind a proxy that strips /lab: whatever the page asks for stays below the address that it
    was opened at.
    """
    _, body, _ = client.ask("/")
    paths = re.findall(r'(?:href|src)="([^"#]+)"', body.decode())
    for name in ("app", "compare", "dom", "run", "ring", "chart", "shelf", "versions", "theme"):
        _, script, _ = client.ask(f"/static/{name}.js")
        text = script.decode()
        asked = re.findall(r'(?:ask|fetch|EventSource)\(\s*["`]([^"`?$]+)', text) + re.findall(
            r'"(/?api/[a-z]+)"', text
        )
        paths += asked + [f"static/{one[2:]}" for one in re.findall(r'from "(\./[^"]+)"', text)]
        assert not re.search(r'["`]/(?:api|static)', text)
    assert len(paths) > 15
    for path in set(paths):
        whole = urljoin("http://h/lab/", path)
        assert whole.startswith("http://h/lab/"), path
        if not path.startswith("api/"):
            assert client.ask(whole.removeprefix("http://h/lab"))[0] == 200


def test_one_odd_run_costs_its_own_row(client: Client, place: Path) -> None:
    whole = client.ask("/api/run?run=a")[1]
    for file, name in [
        ("metrics.jsonl", b"pipe"),
        ("summary.json", b"bytes-\xff\xfe"),
        ("live.json", b"c\xc3\x28"),
    ]:
        run = made.run(Path(os.fsdecode(os.fsencode(place) + b"/" + name)))
        (run / file).unlink(missing_ok=True)
        os.mkfifo(run / file)
    assert client.ask("/api/run?run=unknown")[0] == 404
    with client.events() as events:
        _, news = next(one for one in events if one[0] == "runs")
    assert {row["id"] for row in news["rows"]} == {"a", "b", "pipe", "bytes-\\xff\\xfe", "c\\xc3("}
    for row in news["rows"]:
        status, told, _ = client.ask(f"/api/run?run={quote(row['id'])}")
        assert status == 200 and told["id"] == row["id"]
    assert client.ask("/api/run?run=a")[1]["status"] == whole["status"]


def test_a_run_made_after_the_first_look_is_known(client: Client, place: Path) -> None:
    assert client.ask("/api/run?run=later")[0] == 404
    made.run(place / "later")
    assert client.ask("/api/run?run=later")[0] == 200


@pytest.mark.thorough
def test_a_gigabyte_keeps_nobody_waiting(
    client: Client, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from equipoise.watching import curves

    monkeypatch.setattr(curves, "AT_ONCE", 1 << 20)
    monkeypatch.setattr(curves, "PIECE", 1 << 18)
    run = made.run(place / "large")
    with (run / "metrics.jsonl").open("ab") as file:
        file.write(b"{}\n" * (1 << 20))
    one = curves.Curves(run / "metrics.jsonl")
    assert one.read() and one.behind and one._at < 2 << 20
    for _ in range(20):
        one.read()
    assert one._at == (run / "metrics.jsonl").stat().st_size and len(one.damaged) == 1000
