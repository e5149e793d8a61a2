"""Every name of vLLM's that strop depends on is there; `python -m tests.engines.vllm_names WHEEL` asks another vLLM."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.engines.vllm_names import Source, asked, main, names

from strop.engines.settings import PYTHON_VARIABLE

ROUTER = '''
@router.post("/sleep")
async def sleep(raw_request, mode: str = "abort"):
    """Pause."""


async def abort(raw_request):
    body = await raw_request.json()
    ids = body.get("request_ids")


router.add_api_route("/inference/v1/abort_requests", abort, methods=["POST"])
'''


def test_a_name_that_a_vllm_lacks_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "vllm" / "entrypoints").mkdir(parents=True)
    (tmp_path / "vllm" / "entrypoints" / "router.py").write_text(ROUTER)
    (tmp_path / "vllm" / "sampling_params.py").write_text("class SamplingParams:\n    seed: int\n    top_q: float\n")
    found = {(one.kind, one.name): one.found for one in names(Source(tmp_path))}
    assert found["endpoint", "POST /sleep"] and found["endpoint", "POST /inference/v1/abort_requests"]
    assert found["field of /sleep", "mode"] and not found["field of /sleep", "level"]
    assert found["field of /inference/v1/abort_requests", "request_ids"]
    assert found["field of sampling_params", "seed"] and not found["field of sampling_params", "top_p"]
    assert not found["endpoint", "POST /wake_up"] and not found["flag of vllm serve", "max_num_seqs"]
    assert main(tmp_path) == 1
    said = capsys.readouterr().out
    assert "missing: field of /sleep: level" in said and "missing: field of /sleep: mode" not in said


def test_what_is_asked_of_a_server_is_recorded() -> None:
    endpoints, sampling = asked()
    assert endpoints["POST", "/collective_rpc"] == {"method", "kwargs"} and ("GET", "/server_info") in endpoints
    assert len(endpoints) >= 9 and {"seed", "max_tokens", "stop_token_ids", "prompt_logprobs"} <= sampling


@pytest.mark.vllm
def test_the_vllm_that_is_installed_has_them_all() -> None:
    look = "import vllm; print(vllm.__file__)"
    found = subprocess.run([os.environ[PYTHON_VARIABLE], "-I", "-c", look], capture_output=True, text=True, check=True)
    missing = [one for one in names(Source(Path(found.stdout.splitlines()[-1]).parents[1])) if not one.found]
    assert missing == []
