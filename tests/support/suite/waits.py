"""Calls in source code that may wait for ever: read from the syntax tree, judged by names.

It sees no locks that `with` takes, no reads of pipes and sockets, and nothing that waits within a library.
"""

import ast
from collections.abc import Iterator

SILENT = {"wait", "join", "result", "acquire", "get", "communicate", "wait_closed", "accept"}
"""Methods of events, threads, processes, futures, locks, queues and sockets that wait without an argument."""
TAKE_TIMEOUT = {
    "ray.get",
    "ray.wait",
    "subprocess.run",
    "subprocess.call",
    "subprocess.check_call",
    "subprocess.check_output",
    "communicate",
    "asyncio.wait",
    "urlopen",
    "init_process_group",
    "new_group",
}
"""Calls that wait unless they get `timeout`, by the ends of their names."""
CLIENTS = {"requests", "httpx", "httpx2"}
VERBS = {"get", "post", "put", "patch", "delete", "head", "request", "stream"}
BOUNDS = {"wait_for": 1, "_within": 0, "timeout": 0}
"""Calls that bound what is awaited within them, and which of their arguments is the limit."""

Found = tuple[str, str, int]
"""Function with what it is in, call, line."""


def unbounded(source: str) -> Iterator[Found]:
    """Every call without a deadline."""
    tree = ast.parse(source)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import)]
    others = CLIENTS - {alias.name for node in imports for alias in node.names}
    for found in _within(tree, "", coroutine=False, bounded=False):
        if found[1].partition(".")[0] not in others:
            yield found


def _within(node: ast.AST, function: str, *, coroutine: bool, bounded: bool) -> Iterator[Found]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        function, bounded = f"{function}.{node.name}".lstrip("."), False
        coroutine = isinstance(node, ast.AsyncFunctionDef)
    if isinstance(node, ast.AsyncWith):
        bounded = bounded or any(_bounds(item.context_expr) for item in node.items)
    if isinstance(node, ast.Call):
        if not bounded and _waits(node, coroutine):
            yield function, ast.unparse(node), node.lineno
        bounded = bounded or _bounds(node)
    for child in ast.iter_child_nodes(node):
        yield from _within(child, function, coroutine=coroutine, bounded=bounded)


def _waits(call: ast.Call, coroutine: bool) -> bool:
    name, values = ast.unparse(call.func), _values(call)
    owner, _, last = name.rpartition(".")
    if any(given.arg == "timeout" and not _is_none(given.value) for given in call.keywords):
        return False
    if last in SILENT and owner and all(map(_is_none, values)):
        return not (coroutine and last == "result")  # a task's does not wait
    if last == "wait" and not owner:
        return len(values) < 2  # concurrent.futures
    if any(f".{name}".endswith(f".{known}") for known in TAKE_TIMEOUT):
        return True
    if last in VERBS and owner in CLIENTS:
        return True
    if last == "create_connection" and owner == "socket":
        return len(values) < 2
    if last in ("flock", "lockf") and len(call.args) > 1:
        return not {"LOCK_NB", "LOCK_UN"} & set(ast.unparse(call.args[1]).replace(".", " ").split())
    if last == "select" and owner == "select":
        return len(values) < 4
    return last in ("select", "poll") and _is_selector(owner) and all(map(_is_none, values))


def _is_selector(owner: str) -> bool:
    return any(word in owner.lower() for word in ("selector", "poll", "waiting", "able"))


def _bounds(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    limit = BOUNDS.get(ast.unparse(node.func).rpartition(".")[2])
    values = _values(node)
    return limit is not None and len(values) > limit and not _is_none(values[limit])


def _values(call: ast.Call) -> list[ast.expr]:
    return [*call.args, *(given.value for given in call.keywords)]


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None
