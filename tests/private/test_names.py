"""No file outside of ``private/`` reads a private name of another library."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src/equipoise"
# Documented in spite of their first letter, or a fact about an env that is kept as data.
ALLOWED = {
    "sys._current_frames",
    "os._exit",
    "_thread",
    "config._fields",
    "one._asdict",
    "_elapsed_steps",
    "_np_random",
    "_max_episode_steps",
}
# the name of a private module, as import_module takes it
DOTTED = re.compile(r"[a-z]\w*(\.\w+)*\._[a-z]\w*(\.\w+)*")


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__")


def defined(trees: list[ast.AST]) -> set[str]:
    """The private names that the package itself gives: to functions, classes, fields and attributes
    of ``self``.
    """
    found = set()
    for node in (node for one in trees for node in ast.walk(one)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            found.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            found.add(node.id)
        elif (
            isinstance(node, ast.Attribute)
            and isinstance(node.ctx, ast.Store)
            and ast.unparse(node.value) == "self"
        ):
            found.add(node.attr)
    return found


def foreign(tree: ast.AST, ours: set[str]) -> list[str]:
    """The private names of others in a file: attributes, modules,
    and what is read by ``getattr``.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and is_private(node.attr) and node.attr not in ours:
            found.append(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom) and not (node.module or "").startswith(
            ("equipoise", "__")
        ):
            names = [*(node.module or "").split("."), *(one.name for one in node.names)]
            found += [f"{node.module}: {name}" for name in names if is_private(name)]
        elif isinstance(node, ast.Import):
            found += [
                one.name for one in node.names for name in one.name.split(".") if is_private(name)
            ]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "getattr",
            "hasattr",
            "setattr",
        ):
            texts = [
                one.value
                for one in node.args
                if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            found += [text for text in texts if is_private(text) and text not in ours]
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and DOTTED.fullmatch(node.value)
        ):
            found.append(node.value)
    return [name for name in found if name not in ALLOWED]


@pytest.mark.thorough
def test_private_names_of_libraries_are_read_in_one_room() -> None:
    files = {
        path: ast.parse(path.read_text())
        for path in SOURCE.rglob("*.py")
        if path.parent.name != "private"
    }
    assert len(files) > 400
    ours = defined(list(files.values()))
    assert {
        str(path.relative_to(SOURCE)): names
        for path, tree in files.items()
        if (names := foreign(tree, ours))
    } == {}


def test_the_look_finds_each_form() -> None:
    code = """
import ray._private
from h11._receivebuffer import ReceiveBuffer
from torch import _dynamo
importlib.import_module("torch._dynamo")
torch.ops.aten._softmax_backward_data(x)
function._dynamo_marked_constant = True
getattr(server, "_forkserver_pid")
self._mine + one._mine
"""
    assert set(foreign(ast.parse(code), {"_mine"})) == {
        "ray._private",
        "h11._receivebuffer: _receivebuffer",
        "torch: _dynamo",
        "torch._dynamo",
        "_forkserver_pid",
        "torch.ops.aten._softmax_backward_data",
        "function._dynamo_marked_constant",
    }


def test_every_name_says_what_was_tried_and_what_to_do() -> None:
    for path in (SOURCE / "private").glob("[a-z]*.py"):
        for node in ast.parse(path.read_text()).body:
            if (
                isinstance(node, ast.FunctionDef | ast.ClassDef)
                and not is_private(node.name)
                and node.name != "Received"
            ):
                said = ast.get_docstring(node) or ""
                assert "Tried: " in said and "If it is gone: " in said.replace("\n", " ").replace(
                    "     ", " "
                ), node.name
