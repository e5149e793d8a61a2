"""Every name of vLLM's that strop depends on, looked up in the source of some vLLM, which need not be installed.

    python -m tests.engines.vllm_names vllm-0.33.0-….whl        # or a folder that holds vllm/

What the client asks for is recorded by the made-up server of the tests; flags, variables and what is read of answers
are added. A name that is missing is printed and makes the exit code 1: such a version is not for us as it stands.
"""

from __future__ import annotations

import ast
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from tests.engines.contract import model
from tests.engines.fake_vllm import fake_vllm
from tests.engines.runs import run
from tests.tiny import byte_tokenizer

from strop.engines.base import RequestLimits
from strop.engines.build import build_engine
from strop.engines.protocol import Request, Sampling
from strop.engines.settings import Vllm
from strop.engines.vllm.engine import VllmEngine
from strop.engines.vllm.server import ENVIRONMENT, GENERATE, arguments_of

# What `server.py` reads of the answers of GENERATE.
ANSWERED = (
    "choices", "token_ids", "logprobs", "content", "logprob", "finish_reason", "weight_versions", "prompt_logprobs",
    "routed_experts",
)  # fmt: skip
TOKENS = "vllm/entrypoints/scale_out/token_in_token_out/"
PLACES = (
    "vllm/entrypoints/", "vllm/sampling_params", "vllm/engine/", "vllm/envs", "vllm/config/", "vllm/logprobs",
    "vllm/outputs", "vllm/v1/worker/", "vllm/v1/engine/",
)  # fmt: skip


@dataclass(frozen=True)
class Name:
    """Something that vLLM must have: what it is, its name, and whether it was found."""

    kind: str
    name: str
    found: bool


class Source:
    """The files of a vLLM as syntax trees, in a wheel or in a folder."""

    def __init__(self, place: Path) -> None:
        self.trees: dict[str, ast.Module] = {}
        for name, text in _files(place):
            self.trees[name] = ast.parse(text)

    def below(self, place: str) -> Iterator[ast.AST]:
        """All nodes of the files whose path begins with `place`."""
        for name, tree in self.trees.items():
            if name.startswith(place):
                yield from ast.walk(tree)

    def fields(self, place: str, of: str | None = None) -> set[str]:
        """Annotated fields of the classes (`of` one name) in files below `place`."""
        classes = [n for n in self.below(place) if isinstance(n, ast.ClassDef) and of in (None, n.name)]
        lines = [line for one in classes for line in one.body if isinstance(line, ast.AnnAssign)]
        return {line.target.id for line in lines if isinstance(line.target, ast.Name)}

    def strings(self, place: str) -> set[str]:
        """String constants in files below `place`."""
        nodes = [node for node in self.below(place) if isinstance(node, ast.Constant)]
        return {node.value for node in nodes if isinstance(node.value, str)}

    def arguments(self, place: str, function: str) -> set[str]:
        """Names of the arguments of functions of that name in files below `place`."""
        found = [n for n in self.below(place) if isinstance(n, ast.FunctionDef) and n.name == function]
        return {one.arg for node in found for one in (*node.args.args, *node.args.kwonlyargs)}

    @cached_property
    def routes(self) -> dict[tuple[str, str], set[str]]:
        """(method, path) of every endpoint, each with its handler's arguments and the strings in it."""
        found: dict[tuple[str, str], set[str]] = {}
        for tree in self.trees.values():
            handlers = {n.name: n for n in ast.walk(tree) if isinstance(n, ast.AsyncFunctionDef | ast.FunctionDef)}
            for handler in handlers.values():
                for decorator in handler.decorator_list:
                    if (route := _route(decorator)) is not None:
                        found.setdefault(route, set()).update(_names_in(handler))
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and _called(call) == "add_api_route" and len(call.args) == 2:
                    path, handler_name = call.args
                    if not (isinstance(path, ast.Constant) and isinstance(handler_name, ast.Name)):
                        continue
                    methods = next(word.value for word in call.keywords if word.arg == "methods")
                    names = _names_in(handlers[handler_name.id])
                    for method in ast.literal_eval(methods):
                        found.setdefault((str(method), str(path.value)), set()).update(names)
        return found


def _files(place: Path) -> Iterator[tuple[str, str]]:
    if place.is_dir():
        for file in sorted(place.glob("vllm/**/*.py")):
            if (name := file.relative_to(place).as_posix()).startswith(PLACES):
                yield name, file.read_text()
        return
    with zipfile.ZipFile(place) as wheel:
        for name in wheel.namelist():
            if name.endswith(".py") and name.startswith(PLACES):
                yield name, wheel.read(name).decode()


def _called(call: ast.Call) -> str | None:
    return call.func.attr if isinstance(call.func, ast.Attribute) else None


def _route(decorator: ast.expr) -> tuple[str, str] | None:
    if not isinstance(decorator, ast.Call) or _called(decorator) not in ("get", "post") or not decorator.args:
        return None
    path = decorator.args[0]
    return (str(_called(decorator)).upper(), str(path.value)) if isinstance(path, ast.Constant) else None


def _names_in(handler: ast.AsyncFunctionDef | ast.FunctionDef) -> set[str]:
    said = {node.value for node in ast.walk(handler) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    return said | {one.arg for one in (*handler.args.args, *handler.args.kwonlyargs)}


def asked() -> tuple[dict[tuple[str, str], set[str]], set[str]]:
    """What the client asks each endpoint with, and names of sampling, recorded while it does all that it can do."""
    policy, prompt = model(0, tie=True), np.array([5, 17, 80], np.int32)
    with fake_vllm() as fake:
        settings = Vllm(slots=16, urls=(fake.url,))
        engine = build_engine(settings, policy.settings, byte_tokenizer(), policy)
        assert isinstance(engine, VllmEngine)
        run(engine, [Request("a", prompt, Sampling(max_new_tokens=7, top_k=3), seed=1, n=2)])
        fake.going.clear()  # it stops after the first token, so that there is something to cancel
        engine.submit(Request("b", prompt, Sampling(max_new_tokens=7), seed=1))
        while not engine.drawn({("b", 0): 0}):
            engine.step()
        engine.cancel("b")
        engine.update_weights(model(1, tie=True).weights(), 1, "recompute")
        engine.verify_weights(prompt)
        engine.close()
        return {key: set(names) for key, names in fake.asked.items()}, set(fake.sampling)


def names(source: Source) -> list[Name]:
    """Every name that strop depends on, and whether this vLLM has it."""
    endpoints, sampling = asked()
    found: list[Name] = []

    def look(kind: str, wanted: set[str] | tuple[str, ...], there: set[str]) -> None:
        found.extend(Name(kind, name, name in there) for name in sorted(wanted))

    for (method, path), fields in sorted(endpoints.items()):
        found.append(Name("endpoint", f"{method} {path}", (method, path) in source.routes))
        there = source.routes.get((method, path), set())
        if path == GENERATE:
            there = source.fields(TOKENS, "GenerateRequest")
        look(f"field of {path}", fields, there)
    look("field of sampling_params", sampling, source.fields("vllm/sampling_params", "SamplingParams"))
    look(f"field of {GENERATE}'s answers", ANSWERED, source.fields(TOKENS) | source.fields("vllm/logprobs"))
    look("field of weight_versions", ("version", "start", "end"), source.fields("vllm/outputs", "WeightVersionSpan"))
    look("field of a scored token", ("logprob", "rank"), source.fields("vllm/logprobs", "Logprob"))
    limits = RequestLimits(512, 258, (0,))
    policy = model(0, tie=True).settings
    flags = {*arguments_of(Vllm(kv_cache_gib=1.0), policy, "float32", limits), "uds", "logprobs_mode"}
    known = source.fields("vllm/engine/arg_utils") | source.fields("vllm/entrypoints/")
    look("flag of vllm serve", flags, known)
    look("field of /server_info", ("model_config", "aux_output_config"), source.fields("vllm/config/", "VllmConfig"))
    look(
        "field of aux_output_config", ("enable_return_routed_experts",),
        source.fields("vllm/config/", "AuxOutputConfig"),
    )  # fmt: skip
    look("field of model_config", ("logprobs_mode", "max_model_len"), source.fields("vllm/config/", "ModelConfig"))
    values = source.strings("vllm/config/") | source.strings("vllm/engine/") | source.strings("vllm/v1/engine/")
    look("value", ("processed_logprobs", "keep", "head_dtype"), values)
    look("prefix of request ids", ("generate-tokens-",), source.strings(TOKENS))
    look("variable", {name for name in ENVIRONMENT if name != "HF_HUB_OFFLINE"}, source.strings("vllm/envs"))
    look("argument of reload_weights", ("weights_path",), source.arguments("vllm/v1/worker/", "reload_weights"))
    look("module", ("vllm/entrypoints/cli/main.py",), set(source.trees))
    return found


def main(place: Path) -> int:
    """Print what is missing; the exit code."""
    found = names(Source(place))
    missing = [one for one in found if not one.found]
    for one in missing:
        print(f"missing: {one.kind}: {one.name}")
    print(f"{len(found) - len(missing)} of {len(found)} names are in {place.name}")
    return int(bool(missing))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
