"""Find problems of the rewards' and the agent's files before anything starts."""

import ast
from collections.abc import Iterator, Sequence
from pathlib import Path

from rljob_api.spec.agent import Agent
from rljob_api.spec.problems import Problem
from rljob_api.spec.workload import PythonReward, Reward

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def reward_problems(rewards: Sequence[Reward], *, base_dir: Path) -> list[Problem]:
    """Return problems of Python rewards: a missing file, a missing function, a syntax error. Does not
    run them."""
    return [
        problem
        for i, reward in enumerate(rewards)
        if reward.python is not None
        for problem in _python(f"spec.rewards[{i}].python", reward.python, base_dir)
    ]


def agent_problems(agent: Agent | None, *, base_dir: Path) -> list[Problem]:
    """Return problems of an agent's file, as `reward_problems` does."""
    return [] if agent is None else [*_python("spec.rollout.agent", agent, base_dir)]


def _python(path: str, python: PythonReward | Agent, base_dir: Path) -> Iterator[Problem]:
    file = base_dir / python.path
    try:
        tree = ast.parse(
            file.read_bytes(), filename=str(file)
        )  # bytes: the file may declare its encoding
    except OSError as error:
        yield Problem(
            f"{path}.path", f"is {python.path!r}; {file} cannot be read: {error.strerror}"
        )
        return
    except (SyntaxError, ValueError) as error:
        yield Problem(f"{path}.path", f"is {python.path!r}; not valid Python: {error}")
        return
    functions = [n.name for n in _statements(tree.body) if isinstance(n, FUNCTIONS)]
    if python.function not in functions and not _defines(tree, python.function):
        yield Problem(
            f"{path}.function",
            f"is {python.function!r}; {file.name} defines {', '.join(functions) or 'no function'}",
        )


def _defines(tree: ast.Module, name: str) -> bool:
    """Return whether the file defines the name in another way: by an assignment, an import or a class."""
    names: set[str] = set()
    for node in _statements(tree.body):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef):
            names.add(node.name)
    return name in names or "*" in names


def _statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements that run when the file is imported, including those within `if`, `try` and
    `with`."""
    for node in body:
        yield node
        if isinstance(node, (*FUNCTIONS, ast.ClassDef)):
            continue
        for name in ("body", "orelse", "handlers", "finalbody"):
            for inner in getattr(node, name, []):
                yield from _statements([inner] if isinstance(inner, ast.stmt) else inner.body)
