"""What a shell offers on the tab key: recipes, run folders, settings. `strop --install-completion` sets it up."""

from __future__ import annotations

from pathlib import Path

FILES = (".toml", ".json", ".py")


def recipe_names(incomplete: str) -> list[str]:
    """Recipes, and the files of the current folder that may be one."""
    from strop.recipes import catalogue

    names = [recipe.name for recipe in catalogue()]
    names += [path.name for path in Path().iterdir() if path.suffix in FILES]
    return [name for name in names if name.startswith(incomplete)]


def run_folders(incomplete: str) -> list[str]:
    """The runs below `runs/`, and below the folder that was begun to be typed."""
    from strop.run.runs import runs_in

    roots = {Path("runs"), Path(incomplete if incomplete.endswith("/") else Path(incomplete).parent)}
    found = {str(run) for root in roots if root.is_dir() and root != Path() for run in runs_in(root)}
    return sorted(name for name in found if name.startswith(incomplete))


def setting_keys(incomplete: str) -> list[str]:
    """The dotted keys of a run's configuration, each with `=` behind it."""
    from strop.config.edits import flatten
    from strop.recipes import build

    keys = [f"{key}=" for key, _ in flatten(build("grpo").model_dump(mode="json"))]
    return [key for key in keys if key.startswith(incomplete)]
