"""`strop serve`: from a model's name to a running endpoint."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from strop.base.types import InputError
from strop.base.view import View
from strop.config.schema import RunConfig
from strop.data.templates import Auto, ChatTemplate
from strop.run.folder import RunFolder, is_run
from strop.run.models import NamedModel, open_engine, open_named, parse_models
from strop.serving import ServeLimits
from strop.serving.driver import ServedEngine
from strop.serving.http import is_loopback, listen
from strop.serving.server import Log, ModelServer, Served


@dataclass(frozen=True)
class ServePlan:
    """What is served, where, and how much of it; see `strop serve --help`."""

    model: str
    host: str
    port: int
    key: str | None = field(repr=False)
    insecure: bool
    limits: ServeLimits
    recipe: str | None = None
    sets: tuple[str, ...] = ()
    log: Log | None = None


@dataclass(frozen=True)
class Facts:
    """What is said once the endpoint listens."""

    url: str
    model: str
    context: int
    slots: int
    weight_version: int
    key: bool
    limits: ServeLimits

    def line(self, as_json: bool) -> str:
        """One line for a program, or a few for people."""
        if as_json:
            named: dict[str, Any] = {**vars(self), "limits": self.limits.model_dump(mode="json")}
            return json.dumps(named)
        limits = self.limits
        tokens = f"{self.context} tokens of context"
        tokens += "" if limits.new_tokens is None else f", {limits.new_tokens} of a completion"
        return (
            f"{self.model} at {self.url}{' (key wanted)' if self.key else ''}\n"
            f"{tokens}; {self.slots} sequences at once, {limits.requests} requests; Ctrl-C ends it"
        )


def serve(plan: ServePlan, view: View, told: Callable[[Facts], None]) -> int:
    """Serve until Ctrl-C; how many requests were answered. `told` is called once it listens.

    Raises:
        StropError: the model or the address cannot be used, or the engine broke.
    """
    named = parse_models([plan.model])
    if len(named) != 1:
        raise InputError(f"{plan.model}: one model is served at a time; name one checkpoint")
    # Before the model: loading one takes long, and a port that is taken is known at once.
    with listen(plan.host, plan.port, plan.key, plan.insecure) as listening:
        engine, tokenizer, config = _open(plan, named[0], view)
        served = Served(
            model=client_name(plan.model, named[0]),
            limits=plan.limits,
            key=plan.key,
            local_only=plan.key is None and is_loopback(plan.host),
            log=plan.log,
            template_arguments=_template_arguments(config),
        )
        server = ModelServer(engine, tokenizer, served, listening)
        context, slots, version = engine.capabilities.max_tokens, config.engine.slots, engine.weight_version
        told(Facts(server.url, served.model, context, slots, version, plan.key is not None, plan.limits))
        server.run()
        return server.answered


def _template_arguments(config: RunConfig) -> Mapping[str, Any]:
    """What the chat template is given, as in training; the messages are the clients' own."""
    template = config.data.template
    return template.arguments if isinstance(template, Auto | ChatTemplate) else {}


def client_name(given: str, model: NamedModel) -> str:
    """What clients call the model: the name that it was `given` (NAME=MODEL), else of a folder its last part.

    A path is of this machine, and says nothing to a program on another one. `RUN/model` is called after the run; a name
    of the hub stays whole.
    """
    folder = Path(os.path.abspath(Path(model.place).expanduser()))  # which ends in a name also for `.` and `..`
    if model.label not in (given, f"{model.place}@{model.step}") or not folder.is_dir():
        return model.label
    own = folder.parent if is_run(folder.parent) and folder == RunFolder(folder.parent).model else folder
    return own.name if model.step is None else f"{own.name}@{model.step}"


def _open(plan: ServePlan, named: NamedModel, view: View) -> tuple[ServedEngine, PreTrainedTokenizerBase, RunConfig]:
    """The engine, its tokenizer and configuration."""
    view.note(f"loading {named.label}")
    config, policy, tokenizer = open_named(named, plan.recipe, plan.sets, view)
    engine = open_engine(config, policy, tokenizer, named)
    assert isinstance(engine, ServedEngine)
    return engine, tokenizer, config
