"""Python as a tool: the policy's programs run in the sandbox, and what they define stays for its next call.

A session is the list of programs that ran. Each call runs them again, silently, in its own sandbox, and then the
new one: nothing is alive between two calls, so that thousands of trajectories need no thousands of processes, and
nothing is left afterwards. Files and the state of `random` come out as they were. What a program takes from the clock
or from the system's entropy (time, os.urandom, numpy's random numbers without a seed) is taken anew.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

from pydantic import Field

from strop.base.types import Problem
from strop.environments.base import Tool
from strop.environments.tools import ToolEnvironment, ToolFailed, Tools
from strop_verify.sandbox.limits import MIB, Kind, Limits
from strop_verify.sandbox.pool import shared

# Runs in the sandbox: earlier programs without their output, then the last one; a last expression is shown, as in a
# notebook. What an earlier program raised was told when it ran.
_DRIVER = '''
import ast, contextlib, io, random, traceback
random.seed({seed})
names = {{"__name__": "__main__"}}
def run(source):
    tree = ast.parse(source)
    shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "<call>", "exec"), names)
    if shown is not None:
        value = eval(compile(ast.Expression(shown.value), "<call>", "eval"), names)
        if value is not None:
            print(repr(value))
programs = {programs}
for source in programs[:-1]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(BaseException):
        run(source)
try:
    run(programs[-1])
except BaseException as error:
    print("".join(traceback.format_exception_only(error)).strip())
'''


class PythonTool(ToolEnvironment):
    """One tool, `python`, of one argument, `code`; it returns what was printed, and the value of a last expression.

    Fields:
        seconds: wall time of one call, earlier programs included.
        memory_mib_a_program: memory of one call.
        sandboxes: calls that run at once in one process.
        allow_unsafe: run programs even where this machine cannot isolate them (docs/sandbox.md).
    """

    seconds: Annotated[float, Field(gt=0, le=60)] = 6.0
    memory_mib_a_program: Annotated[int, Field(ge=32)] = 512
    sandboxes: Annotated[int, Field(ge=1)] = 2
    allow_unsafe: bool = False

    @property
    def tools(self) -> tuple[Tool, ...]:
        """The interpreter."""
        code = {"type": "string", "description": "a program; what earlier calls defined is there"}
        parameters = {"type": "object", "properties": {"code": code}, "required": ["code"]}
        return (Tool("python", "Runs Python and returns what it prints.", parameters),)

    def open_tools(self, problem: Problem, seed: int) -> Tools:
        """An interpreter without a past."""
        return _Interpreter(self, seed)


class _Interpreter(Tools):
    def __init__(self, environment: PythonTool, seed: int) -> None:
        self._environment, self._seed = environment, seed
        self._programs: list[str] = []

    def call(self, name: str, arguments: dict[str, Any]) -> str:
        """What the program printed.

        Raises:
            ToolFailed: it took too long, or too much memory; it is then as if it had not run.
            RuntimeError: the sandbox failed.
        """
        environment = self._environment
        limits = Limits(memory=environment.memory_mib_a_program * MIB, output=MIB)
        sandbox = shared(limits, environment.sandboxes, environment.allow_unsafe)
        programs = [*self._programs, arguments["code"]]
        run = sandbox.run(_DRIVER.format(seed=self._seed, programs=json.dumps(programs)), b"", environment.seconds)
        if run.ending.kind is Kind.SANDBOX_ERROR:
            raise RuntimeError(f"the sandbox failed: {run.ending.detail}")
        if run.ending.kind is not Kind.ENDED:
            raise ToolFailed(f"{run.ending.kind}: {run.ending.detail}")
        self._programs = programs
        return run.stdout.decode("utf-8", "replace").rstrip("\n")
