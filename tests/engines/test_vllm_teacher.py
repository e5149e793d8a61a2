"""A teacher on vLLM's own server, by its public API, gives the advantages of a loaded one. Run by `make test-vllm`."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import numpy as np
import pytest
from tests.engines.contract import model
from tests.runs import small_config
from tests.tiny import byte_tokenizer
from tests.training.test_distillation import STILL, forced

from strop.base.view import SilentView
from strop.engines.settings import Vllm
from strop.engines.vllm.server import environment_of
from strop.model.files import export
from strop.run.assembly import assemble
from strop.training.learner import Learner

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    folder = tmp_path_factory.mktemp("teacher") / "small"
    export(model(0, tie=True).model, byte_tokenizer(), folder)
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
    command = [
        os.environ["STROP_VLLM_PYTHON"], "-I", "-m", "vllm.entrypoints.cli.main", "serve", str(folder), "--host",
        "127.0.0.1", "--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", "64",
        "--max-num-seqs", "4", "--kv-cache-memory-bytes", str(2**27),
    ]  # fmt: skip
    environment = environment_of(Vllm(eager=True), None)
    with subprocess.Popen(command, env=environment, cwd=folder.parent, process_group=0) as process:
        try:
            url = f"http://127.0.0.1:{port}"
            for _ in range(1200):
                try:
                    if httpx.get(f"{url}/health", trust_env=False).status_code == 200:
                        break
                except httpx.TransportError:
                    assert process.poll() is None
                time.sleep(0.25)
            yield folder, f"{url}/v1"
        finally:
            os.killpg(process.pid, 15)


def test_it_scores_as_the_model_itself_does(served: tuple[Path, str]) -> None:
    folder, url = served
    found, tops = [], []
    both = (*STILL, f"algorithm.reference.path={folder}", "algorithm.regularizers=[{piece='TopKl', top_k=5}]")
    for sets in ((), (f"algorithm.reference.url={url}",)):
        learner = assemble(small_config(*both, *sets), SilentView()).learner
        assert isinstance(learner, Learner)
        result = learner.learn([forced(), forced(4)], {3, 4}, 0, {})
        assert result is not None
        found.append(np.concatenate([sample.advantages for sample in result.samples]))
        tops.append([sample.reference_top_logprobs for sample in result.samples])
    assert np.abs(found[0]).max() > 0.1
    np.testing.assert_allclose(found[1], found[0], atol=1e-4)
    for here, there in zip(*tops, strict=True):
        assert here is not None and there is not None and here.shape == there.shape == (len(here), 5)
        np.testing.assert_allclose(there, here, atol=1e-4)
