"""What constraints.txt pins is what the extras of pyproject.toml want, as far as they are installed here."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def pins(text: str) -> dict[str, str]:
    """The pinned version of each package, by its canonical name."""
    found = re.findall(r"^([\w.-]+)==([\w.+!]+)", text, re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def wanted() -> Iterator[tuple[str, Requirement]]:
    """Who requires what: strop and every extra of it, and whatever of that is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].items()
    given = [("strop", text) for text in project["dependencies"]]
    waiting = given + [(f"strop[{name}]", text) for name, texts in extras for text in texts]
    seen: set[tuple[str, str]] = set()
    while waiting:
        who, text = waiting.pop()
        requirement = Requirement(text)
        yield who, requirement
        for extra in {"", *requirement.extras}:
            package = (canonicalize_name(requirement.name), extra)
            if package in seen:
                continue
            seen.add(package)
            try:
                texts = metadata.requires(requirement.name) or []
            except metadata.PackageNotFoundError:
                continue
            for text in texts:
                marker = Requirement(text).marker
                if marker is None or marker.evaluate({"extra": extra}):
                    waiting.append((requirement.name, text))


def unfit(pinned: dict[str, str]) -> list[str]:
    """The requirements that a pin does not meet."""
    return [
        f"{who} wants {requirement}, pinned is {version}"
        for who, requirement in wanted()
        if (version := pinned.get(canonicalize_name(requirement.name))) is not None
        and not requirement.specifier.contains(version, prereleases=True)
    ]


def test_every_pin_is_what_those_want_who_require_it() -> None:
    found = unfit(pins((ROOT / "constraints.txt").read_text()))
    assert not found, "\n".join(found)


def test_a_pin_that_somebody_does_not_want_is_found() -> None:
    assert any(line.startswith("matplotlib wants numpy") for line in unfit({"numpy": "1.0"}))


def test_every_extra_is_pinned() -> None:
    """An extra that is not pinned is whatever is new, which the other pins may not allow."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    pinned = pins((ROOT / "constraints.txt").read_text())
    names = {canonicalize_name(Requirement(text).name) for texts in extras.values() for text in texts}
    assert names <= set(pinned), names - set(pinned)
