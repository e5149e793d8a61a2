"""Which names in tests stand for the solution's, decided by the text of the tests.

What the solution says that it has plays no part: a solution may lie. A builtin, a name of the tests' prelude and a name
that the tests import or define are the tests' own, so that in `assert abs(f(2) - 4) < 1e-6` only `f` is the solution's.
Where tests use nothing else than such names, the one that they call without a call of another in its arguments is under
test: `sum` in `assert abs(sum(10, 15)) == 6`.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Iterable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True)
class Names:
    """What names tests use.

    Attributes:
        wanted: global names that they read and do not import or define.
        offered: those of them that stand for the solution's.
        read: by snippet, the names that it reads when it is run, not only in functions that nothing calls.
    """

    wanted: set[str]
    offered: set[str]
    read: list[set[str]]


def names_of(snippets: list[str], helpers: set[str], builtin: set[str]) -> Names:
    """The names of the snippets.

    Args:
        snippets: the tests, run in one namespace.
        helpers: the names that they find there, builtins among them.
        builtin: the builtins.

    Raises:
        SyntaxError, ValueError, RecursionError, MemoryError: a snippet is no Python.
    """
    trees = [ast.parse(snippet) for snippet in snippets]
    tables = [symtable.symtable(snippet, "<test>", "exec") for snippet in snippets]
    calls = [call for tree in trees for call in _calls(tree)]
    called = {call.func.id for call in calls if isinstance(call.func, ast.Name)}
    own = {name for table in tables for name in _bound(table, called)}
    used = [set(_used(table)) for table in tables]
    wanted = {name for names in used for name in names if not (name.startswith("__") and name.endswith("__"))} - own
    offered = wanted - helpers or _under_test(calls, wanted, builtin)
    read = [
        names if any(_run_calls(tree)) else {symbol.get_name() for symbol in table.get_symbols()}
        for tree, table, names in zip(trees, tables, used, strict=True)
    ]
    return Names(wanted, offered, read)


def _under_test(calls: list[ast.Call], wanted: set[str], builtin: set[str]) -> set[str]:
    """The name under test where all are builtins or the prelude's: a set of one, or empty where that is not clear."""
    called, outer = set(), set()
    for call in calls:
        if isinstance(call.func, ast.Name):
            called.add(call.func.id)
            if any(isinstance(inner.func, ast.Name) and inner.func.id in wanted for inner in _calls(call)[1:]):
                outer.add(call.func.id)
    innermost = (called & wanted) - outer
    for choice in (innermost - builtin, innermost):
        if len(choice) == 1:
            return choice
    return set()


def _calls(node: ast.AST) -> list[ast.Call]:
    """The calls in a piece of code, itself first where it is one."""
    return [found for found in ast.walk(node) if isinstance(found, ast.Call)]


def _run_calls(tree: ast.Module) -> Iterator[ast.Call]:
    """The calls outside of functions and classes."""
    for statement in tree.body:
        if not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _calls(statement)


def _tables(table: symtable.SymbolTable) -> Iterable[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _bound(module: symtable.SymbolTable, called: set[str]) -> Iterator[str]:
    """The globals that a snippet binds; one that it also calls may be the solution's before (`area = area(3)`)."""
    for table in _tables(module):
        for symbol in table.get_symbols():
            name = symbol.get_name()
            if table is not module and not symbol.is_declared_global():
                continue
            if symbol.is_imported() or symbol.is_namespace() or (symbol.is_assigned() and name not in called):
                yield name


def _used(module: symtable.SymbolTable) -> Iterator[str]:
    """The globals that a snippet reads, in functions too."""
    for table in _tables(module):
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (table is module or symbol.is_global()):
                yield symbol.get_name()
