"""`strop.train`: a run from Python, with problems, rewards and losses that are Python objects.

    run = strop.train("Qwen/Qwen3-0.6B", problems, reward=lambda problem, text: float("42" in text), steps=100)
    run.pass_rates, run.plot(), run.sample("What is 6 × 7?"), run.evaluate("math500")

The run is the same as that of `strop train`, in the same kind of folder.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from strop.algorithms.losses import PolicyLoss
from strop.algorithms.rewards import DirectReward
from strop.base import imports, session
from strop.base.pieces import Piece
from strop.base.progress import heartbeat
from strop.base.types import InputError, Verdict
from strop.base.view import SilentView, View
from strop.config.edits import apply_edits, explain, flatten, nested
from strop.config.parse import parse
from strop.config.schema import RunConfig
from strop.data.columns import Columns
from strop.environments.base import Environment
from strop.environments.tools import OutsideClass
from strop.python.problems import Problems, count_of, source_of
from strop.python.result import Run
from strop.recipes.resolve import resolve
from strop.run.checks import findings
from strop.run.finding import refuse
from strop.run.folder import RunFolder, check_free, free_folder, is_run
from strop.run.resuming import resumed_config
from strop.verifiers.base import Verifier
from strop.verifiers.combined import WeightedSum
from strop.verifiers.reward_function import RewardFunction, reward_functions
from strop_verify.child_process import wait_politely

# f(problem, text) -> float, bool or Verdict; or f(prompts, completions, **columns) -> list of floats, as TRL has it.
RewardCallable = Callable[..., float | bool | Verdict | Sequence[float | None] | None]
One = RewardCallable | Verifier
# One, several of weight 1, or several with their weights (a mapping of One; a narrower type would refuse most of them);
# or an environment, its class, or a class in TRL's shape.
Reward = One | Sequence[One] | Mapping[Any, float] | Environment | type


def environment_of(reward: Reward) -> Environment | None:
    """The environment that gives this reward; None where it is of another kind.

    Another class with a method `reset` is taken for an environment in TRL's shape (see `OutsideClass`).

    Raises:
        InputError: its settings are missing, it has no public method that could be a tool, or it cannot be found again
            by its name.
    """
    if not isinstance(reward, type):
        return reward if isinstance(reward, Environment) else None
    try:
        if issubclass(reward, Environment):
            return reward()
        if not hasattr(reward, "reset"):
            return None
        imports.allow_module(reward.__module__)
        return OutsideClass(cls=f"{reward.__module__}:{reward.__qualname__}")
    except ValidationError as error:
        raise InputError(f"reward: {reward.__name__}: {explain(error)}") from error


def verifier_of(reward: Reward) -> Verifier:
    """The verifier that gives this reward.

    Functions give a `RewardFunction`, whose weighted sum is the reward. If there are verifiers among them, the result
    is a `WeightedSum`, and every score lies in [0, 1].

    Raises:
        InputError: it is nothing of the kind, or a function cannot be called as a reward.
    """
    if isinstance(reward, Verifier):
        return reward
    if isinstance(reward, Mapping):
        parts, weights = list(reward), [float(weight) for weight in reward.values()]
    else:
        parts, weights = list(reward) if isinstance(reward, Sequence) else [reward], []
    if not parts:
        raise InputError("reward: give at least one function or verifier")
    for part in parts:
        if not (isinstance(part, Verifier) or callable(part)) or isinstance(part, type):
            raise InputError(
                f"reward: {part!r:.60} is neither a function nor a verifier; define f(problem, text) -> float "
                "(several: [f, g], and with weights {f: 0.2, g: 1.0}), or give only an environment's class"
            )
    functions = [part for part in parts if not isinstance(part, Verifier)]
    if len(functions) == len(parts):
        return reward_functions(functions, weights)
    members = tuple(part if isinstance(part, Verifier) else reward_functions([part]) for part in parts)
    if weights and min(weights) <= 0:
        raise InputError(f"reward: with verifiers, every weight must be above 0, not {min(weights):g}")
    return WeightedSum(members=members, weights=tuple(weights))


def under_stored_names(reward: Verifier, stored: Mapping[str, Any]) -> Verifier:
    """`reward`, its functions under the names that a run's stored verifier has for them where they are called alike.

    A session numbers lambdas and inner functions as they come, so that the same one may have another number now. A
    function that is called otherwise is another, and keeps its own name.
    """
    names = stored.get("functions", ())
    if not isinstance(reward, RewardFunction) or [*map(_unnumbered, names)] != [*map(_unnumbered, reward.functions)]:
        return reward
    found = [session.recall(name) for name in reward.functions]  # before any name changes its function
    for name, function in zip(names, found, strict=True):
        assert function is not None  # `reward_functions` has just remembered it
        session.bind(name, function)
    return reward.model_copy(update={"functions": tuple(names)})


def _unnumbered(name: str) -> str:
    return name.partition("#")[0]


HELD_OUT = 64  # problems at most, and a fifth of those given
EVALUATIONS = 4  # of a run whose recipe does not say how often

Recipe = str | Path | RunConfig | Callable[[], RunConfig]


def train(
    model: str | Path | Run | None,
    problems: Problems | None = None,
    *,
    reward: Reward | None = None,
    recipe: Recipe = "grpo",
    steps: int | None = None,
    loss: PolicyLoss | None = None,
    held_out: Problems | int | None = None,
    columns: Columns | Mapping[str, str] | None = None,
    settings: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    quiet: bool = False,
) -> Run:
    """Train a model by reinforcement learning from verifiable rewards, and return the finished run.

    Args:
        model: a folder, a name on the Hugging Face hub, `embedded` (a small model made on the spot), or an earlier run;
            None: the recipe's own.
        problems: dictionaries, `Problem`s, a `datasets.Dataset`, a table of pandas or Arrow, a file, or a source's
            name; None takes the recipe's own. A row has a prompt (text or chat messages) and may have an answer.
        reward: `f(problem, text) -> float`; or TRL's `f(prompts, completions, **columns) -> list`; a verifier; several
            in a list, or in a dictionary with their weights; or an environment, its class, or a class in TRL's shape.
            What functions return is the reward itself. None: the recipe's verifier, which compares answers.
        recipe: a name (`strop recipes`), a file, a `RunConfig`, or a function that returns one.
        steps: training steps; None: the recipe's.
        loss: a policy loss instead of the recipe's.
        held_out: problems to evaluate on, or how many of `problems`; 0 for none. None: a fifth of them, at most 64.
        columns: which column is what: `{"prompt": "question", "answer": "final"}`.
        settings: other settings by their dotted keys: `{"optim.lr": 2e-6, "batch.samples_per_prompt": 16}`.
        out: the run folder; by default a new one under `runs/`.
        resume: go on with the run in `out` where there is one; begin it where there is none.
        quiet: show nothing while it runs.

    Raises:
        InputError: one line that names what cannot be used, before anything is trained.
        NothingToLearn: no problem has answers of different reward, step after step.
        Interrupted: Ctrl-C; the last finished step is saved, and `resume=True` goes on from there.

    Each of them is a `StropError`.
    """
    base = _recipe(recipe)
    environment = None if reward is None else environment_of(reward)
    verifier = None if reward is None or environment is not None else verifier_of(reward)
    given = {
        "model.path": None if model is None else str(model.model if isinstance(model, Run) else model),
        "data.source": None if problems is None else source_of(problems, columns),
        "algorithm.loss": loss,
        "steps": steps,
        "environment": environment,
    }
    edits: dict[str, Any] = {key: value for key, value in given.items() if value is not None} | dict(settings or {})
    if out is not None and resume and is_run(Path(out)):
        return _resumed(Path(out), edits, verifier, base, quiet)
    if resume and out is None:
        raise InputError("resume=True goes on with the run in `out`; name its folder")
    if verifier is not None:
        edits = {**_judged_by(verifier, base), **edits}
    edits = {**_held_out(held_out, columns, edits, base), **edits}
    config = _edited(base, edits)
    folder = Path(out) if out is not None else free_folder(config.recipe)
    check_free(folder)
    refuse(findings(config))
    wait_politely()
    from strop.run import run

    with _viewing(quiet, folder) as view:
        run.train(config, folder, view)
    return Run(folder)


# ---------------------------------------------------------------------- settings


def _recipe(recipe: Recipe) -> RunConfig:
    """The configuration that a recipe is; the modules of the user's pieces in it may then be named.

    Raises:
        InputError: there is no such recipe, or the function returns something else.
    """
    if isinstance(recipe, str | Path):
        return resolve(str(recipe))
    config = recipe if isinstance(recipe, RunConfig) else recipe()
    if not isinstance(config, RunConfig):
        raise InputError(f"recipe: the function returned {type(config).__name__}, not a strop.config.schema.RunConfig")
    _allow_pieces(config)
    return config


def _edited(base: RunConfig, edits: Mapping[str, Any]) -> RunConfig:
    """`base` with settings by their dotted keys, whose values may be pieces.

    Raises:
        InputError: an unknown setting, or a value that it cannot have.
    """
    data = base.model_dump(mode="json")
    for key, value in edits.items():
        data = apply_edits(data, nested(key, _plain(value)), RunConfig)
    return parse(data, "strop.train", to_run=False)  # given by the caller


def _judged_by(verifier: Verifier, base: RunConfig) -> dict[str, Any]:
    """The settings that go with a verifier: functions give the reward itself, and are called in this process unless an
    evaluation worker is asked for."""
    edits: dict[str, Any] = {"verifier": verifier}
    if isinstance(verifier, RewardFunction):
        edits["algorithm.reward"] = DirectReward()
    if verifier.session_functions() and base.evaluation.asynchronous == "auto":
        edits["evaluation.asynchronous"] = False
    return edits


def _held_out(
    wanted: Problems | int | None,
    columns: Columns | Mapping[str, str] | None,
    edits: Mapping[str, Any],
    base: RunConfig,
) -> dict[str, Any]:
    """The settings of the problems to evaluate on, and of how often; none where the recipe's own stay."""
    source, own = edits.get("data.source"), base.data.held_out
    if any(key.startswith("data.held_out") for key in edits):
        return {}
    found: dict[str, Any] = {}
    if wanted is None and source is not None:
        known = count_of(source)
        wanted = min(HELD_OUT, known // 5) if known is not None else HELD_OUT if own is None else own.count or HELD_OUT
    if isinstance(wanted, int):
        if wanted == 0:
            return {"data.held_out": None, "evaluation.every": None}
        found["data.held_out"] = {"count": wanted, "source": None}
    elif wanted is not None:
        found["data.held_out"] = {"count": None, "source": source_of(wanted, columns)}
    elif own is None:
        return {}
    if base.evaluation.every is None:
        found["evaluation.every"] = max(int(edits.get("steps", base.steps)) // EVALUATIONS, 1)
    return found


def _plain(value: Any) -> Any:
    """A setting as JSON has it; the modules of the user's pieces in it may then be named."""
    _allow_pieces(value)
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    if isinstance(value, Mapping):
        return {key: _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return str(value) if isinstance(value, Path) else value


def _allow_pieces(value: object) -> None:
    """Allow the modules, the script's or notebook's own too, of the pieces in a setting: they are given by their user.

    Raises:
        InputError: such a module cannot be imported.
    """
    if isinstance(value, Piece) and type(value).__module__.partition(".")[0] != "strop":
        imports.allow_module(type(value).__module__)
    inside = vars(value).values() if isinstance(value, BaseModel) else value
    if isinstance(inside, Mapping):
        inside = inside.values()
    if not isinstance(inside, str | bytes) and isinstance(inside, Iterable):
        for entry in inside:
            _allow_pieces(entry)


# ---------------------------------------------------------------------- going on


def _resumed(
    folder: Path, edits: Mapping[str, Any], verifier: Verifier | None, base: RunConfig, quiet: bool
) -> Run:
    """Continue a run from its newest checkpoint with the changed settings; a finished run stays as it is."""
    run_folder = RunFolder.open(folder)
    stored = run_folder.read_json("config.json")
    if verifier is not None:
        edits = {**_judged_by(under_stored_names(verifier, stored.get("verifier", {})), base), **edits}
    before = dict(flatten(stored))
    given = [item for key, value in edits.items() for item in flatten(nested(key, _plain(value)))]
    imports.allow_edits(f"{key}={text}" for key, text in given)
    sets = [f"{key}={text}" for key, text in given if before.get(key) != text]
    resumed_config(run_folder, sets)
    from strop.run import run

    with _viewing(quiet, folder) as view:
        run.resume(folder, view, sets=sets)
    return Run(folder)


@contextmanager
def _viewing(quiet: bool, folder: Path) -> Iterator[View]:
    """The live view in a terminal, lines elsewhere, nothing if `quiet`."""
    if quiet:
        yield SilentView()
        return
    from strop.report.console import open_view

    with heartbeat(), open_view(title=f"strop · {folder}") as view:
        yield view
