"""The Triton kernels of a decoding step, held against float64 and plain PyTorch: on a GPU where there is one, in
Triton's interpreter elsewhere (which rounds bfloat16 wrongly, so that half precision is float16 there)."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from packaging.version import Version
from torch import Tensor

from strop.engines.torch.kernels import Heads, Kernels, LayerCache, Norms, Plan, plan
from strop.engines.torch.kernels.plain import PlainKernels

triton = pytest.importorskip("triton", reason="needs Triton: pip install 'strop[gpu]'")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
HALF = torch.bfloat16 if DEVICE.type == "cuda" else torch.float16

from strop.engines.torch.kernels.triton_kernels import TritonKernels  # noqa: E402

# Triton before 3.7 turns the bounds of a loop into integers in a way that numpy 2.4 took back.
MISFIT = Version(triton.__version__) < Version("3.7") and Version(np.__version__) >= Version("2.4")
interprets_loops = pytest.mark.skipif(
    MISFIT and DEVICE.type == "cpu", reason="this Triton's interpreter needs numpy below 2.4"
)
TRITON: Kernels = TritonKernels()
PLAIN: Kernels = PlainKernels()


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def paged(lengths: list[int], page: int, heads: Heads, dtype: torch.dtype, seed: int = 0) -> tuple[LayerCache, Tensor]:
    """A cache in which every token that no row has is NaN, and the rows' shuffled pages; unused entries are page 0."""
    pages = [-(-length // page) for length in lengths]
    width = max([1, *pages])
    order = np.random.default_rng(seed).permutation(sum(pages)) + 1
    table = np.zeros((len(lengths), width), np.int32)
    stored = [noise(len(order) + 1, heads.kv, page, heads.dim, seed=seed + i, dtype=dtype) for i in (1, 2)]
    start = 0
    for row, (length, count) in enumerate(zip(lengths, pages, strict=True)):
        own = table[row, :count] = order[start : start + count]
        start += count
        if length % page:
            for one in stored:
                one[int(own[-1]), :, length % page :] = torch.nan
    for one in stored:
        one[0] = torch.nan
    return LayerCache(stored[0], stored[1]), torch.from_numpy(table).to(DEVICE)


def reference(query: Tensor, cache: LayerCache, table: Tensor, lengths: list[int], scale: float) -> Tensor:
    """Attention in float64, row by row."""
    found = torch.zeros(query.shape, dtype=torch.float64)
    group = query.shape[1] // cache.keys.shape[1]
    for row, length in enumerate(lengths):
        if length:
            keys, values = (
                one[table[row].long()].cpu().double().transpose(0, 1).flatten(1, 2)[:, :length]
                .repeat_interleave(group, 0)
                for one in cache
            )  # fmt: skip
            scores = torch.einsum("hd,htd->ht", query[row].cpu().double(), keys) * scale
            found[row] = torch.einsum("ht,htd->hd", scores.softmax(-1), values)
    return found


def far(found: Tensor, wanted: Tensor) -> float:
    """‖found − wanted‖ / ‖wanted‖."""
    return float((found.cpu().double() - wanted).norm() / wanted.norm())


CASES = {
    "no groups": (Heads(2, 2, 64), 16, [5, 16, 17, 1]),
    "groups of 2, heads of 128": (Heads(4, 2, 128), 32, [33, 64, 0, 95]),
    "groups of 7": (Heads(7, 1, 64), 16, [1, 0, 40]),
    "groups of 4, pages of 64": (Heads(8, 2, 64), 64, [130, 63, 64, 65]),
    "one key head for 20": (Heads(20, 1, 32), 16, [18, 3]),
    "all empty": (Heads(2, 1, 64), 16, [0, 0]),
}
DIVISIONS = {"whole": 1, "in 4": 4}


@interprets_loops
@pytest.mark.parametrize("divided", DIVISIONS.values(), ids=DIVISIONS.keys())
@pytest.mark.parametrize(("heads", "page", "lengths"), CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("dtype", [torch.float32, HALF])
def test_attention_is_that_of_float64(dtype, heads: Heads, page: int, lengths: list[int], divided: int) -> None:
    cache, table = paged(lengths, page, heads, dtype)
    query, scale = noise(len(lengths), heads.query, heads.dim, seed=9, dtype=dtype), heads.dim**-0.5
    on_device = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    found = TRITON.attend(query, cache, table, on_device, scale, Plan(table.shape[1], divided))
    wanted = reference(query, cache, table, lengths, scale)
    assert found.dtype == dtype and not found.isnan().any()
    if not any(lengths):
        assert not found.any()
        return
    assert far(found, wanted) < (5e-6 if dtype == torch.float32 else 2e-2 if DEVICE.type == "cuda" else 2e-3)
    for row, length in enumerate(lengths):
        assert length or not found[row].any()
    plain = PLAIN.attend(query, cache, table, on_device, scale, Plan(table.shape[1], 1))
    assert far(plain, wanted) < (5e-6 if dtype == torch.float32 else 1e-2)


@interprets_loops
def test_attention_of_scores_far_apart() -> None:
    """Chunks whose maxima differ by hundreds join without overflow, and the smaller ones vanish."""
    heads, lengths = Heads(2, 1, 32), [64]
    cache, table = paged(lengths, 16, heads, torch.float32)
    query = noise(1, 2, 32, seed=3) * 60
    on_device = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    found = TRITON.attend(query, cache, table, on_device, 1.0, Plan(4, 4))
    assert far(found, reference(query, cache, table, lengths, 1.0)) < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("normed", [True, False], ids=["with norms", "plain"])
@pytest.mark.parametrize("heads", [Heads(4, 2, 32), Heads(7, 1, 64)])
def test_rotation_and_the_new_token(dtype, heads: Heads, normed: bool) -> None:
    lengths = [1, 16, 0, 17, 40]
    (mine, table), (plain, _) = (paged(lengths, 16, heads, dtype) for _ in range(2))
    before = [one.clone() for one in mine]
    qkv = noise(len(lengths), (heads.query + 2 * heads.kv) * heads.dim, seed=4, dtype=dtype)
    norms = (
        Norms(noise(heads.dim, seed=5, dtype=dtype), noise(heads.dim, seed=6, dtype=dtype), 1e-6) if normed else None
    )
    turn = noise(50, heads.dim // 2, seed=7) * 3
    angles = torch.stack((turn.cos(), turn.sin())).to(dtype)
    on_device = torch.tensor(lengths, dtype=torch.int32, device=DEVICE)
    found = TRITON.rotate_and_write(qkv, heads, norms, angles, on_device, table, mine)
    wanted = PLAIN.rotate_and_write(qkv, heads, norms, angles, on_device, table, plain)
    running = on_device > 0
    limit = 3e-6 if dtype == torch.float32 else 5e-3
    assert far(found[running], wanted[running].cpu().double()) < limit
    written = torch.zeros(mine.keys.shape[:3:2], dtype=torch.bool)
    for row, length in enumerate(lengths):
        if length:
            page, place = int(table[row, (length - 1) // 16]), (length - 1) % 16
            written[page, place] = True
            for one, other in zip(mine, plain, strict=True):
                assert far(one[page, :, place], other[page, :, place].cpu().double()) < limit
    for one, old in zip(mine, before, strict=True):  # nothing else was touched, an empty row's page least of all
        rest = ~written[:, None, :, None].expand(one.shape).to(DEVICE)
        assert torch.equal(one[rest].nan_to_num(7.0), old[rest].nan_to_num(7.0))


@pytest.mark.parametrize("dtype", [torch.float32, HALF])
@pytest.mark.parametrize("size", [48, 64, 1100])
def test_norms_and_the_gate(dtype, size: int) -> None:
    limit = 3e-6 if dtype == torch.float32 else 3e-3
    states, weight = noise(3, size, seed=1, dtype=dtype), noise(size, seed=2, dtype=dtype)
    assert far(TRITON.norm(states, weight, 1e-6), PLAIN.norm(states, weight, 1e-6).cpu().double()) < limit
    mine, plain = (noise(3, size, seed=3, dtype=dtype) for _ in range(2))
    found, wanted = TRITON.add_norm(states, mine, weight, 1e-5), PLAIN.add_norm(states, plain, weight, 1e-5)
    assert far(found, wanted.cpu().double()) < limit
    assert torch.equal(mine, plain) and not torch.equal(mine, noise(3, size, seed=3, dtype=dtype))
    both = noise(3, 2 * size, seed=8, dtype=dtype)
    assert far(TRITON.gate(both), PLAIN.gate(both).cpu().double()) < limit


@pytest.mark.parametrize("size", [40, 258, 9000])
def test_draws_are_those_of_the_cpu(size: int) -> None:
    rows = 24
    logits = noise(rows, size, seed=1) * 4
    logits[1, : size // 2] = -torch.inf
    logits[2] = -torch.inf
    logits[2, size - 3] = 5.0  # certain
    logits[3] = 1.0  # a tie: the lowest id
    uniform = torch.rand(rows, generator=torch.Generator().manual_seed(2), dtype=torch.float64).to(DEVICE)
    uniform[1], uniform[4], uniform[6] = 0.0, 0.0, 1 - 2.0**-53
    logits[6, size // 4 :] = -torch.inf
    temperature = torch.tensor([1.0, 0.7, 1.0, 1.3] * (rows // 4), device=DEVICE)
    greedy = torch.arange(rows, device=DEVICE) % 5 == 3
    tokens, logprobs = TRITON.draw(logits, uniform, temperature, greedy)
    wanted, wanted_logprobs = PLAIN.draw(logits, uniform, temperature, greedy)
    # So near the end the order of sums decides; what has no probability is never drawn.
    assert tokens[6] < size // 4
    tokens[6], logprobs[6] = wanted[6], wanted_logprobs[6]
    assert tokens.tolist() == wanted.tolist() and tokens[1] >= size // 2 and tokens[2] == size - 3 and tokens[3] == 0
    np.testing.assert_allclose(logprobs.cpu().numpy(), wanted_logprobs.cpu().numpy(), atol=2e-6)


@pytest.mark.filterwarnings("ignore:All-NaN slice")
def test_logits_that_are_not_numbers_give_no_number_and_a_token_that_exists() -> None:
    logits = noise(3, 5000, seed=1)
    logits[0, 7], logits[1] = torch.nan, torch.nan
    uniform = torch.full((3,), 0.5, dtype=torch.float64, device=DEVICE)
    tokens, logprobs = TRITON.draw(logits, uniform, torch.ones(3, device=DEVICE), torch.zeros(3, device=DEVICE) > 0)
    assert ((tokens >= 0) & (tokens < 5000)).all()
    assert logprobs.isfinite().tolist() == [False, False, True]


def test_plans_cover_the_longest_row_and_come_in_few_forms() -> None:
    forms = set()
    for longest in range(1, 20_000, 37):
        how = plan(64, Heads(16, 8, 128), longest, 64, 132)
        assert how.pages * 64 >= longest > how.pages * 16 or how.pages == 1
        assert how.pages * 64 <= how.splits * 2048
        forms.add(how)
    assert len(forms) < 12
    assert plan(1024, Heads(16, 8, 128), 1024, 64, 132).splits == 1
    assert plan(64, Heads(16, 8, 128), 16_384, 64, 132) == Plan(256, 8)


# Compiled in a process without the interpreter; `ptxas` comes with Triton, and no GPU is needed.
COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from strop.engines.torch.kernels import triton_attention as attention, triton_layers as layers
from strop.engines.torch.kernels import triton_sampling as sampling

REALS = "query keys values output states residual weight qkv query_weight key_weight angles"
REALS = dict.fromkeys(REALS.split(), "*bf16")
WHOLE = dict.fromkeys(("table", "lengths", "where"), "*i32")
OTHER = {"scale": "fp32", "eps": "fp32", "table_stride": "i32", "positions": "i32",
         "uniform": "*fp64", "greedy": "*i1", "tokens": "*i64"}


def built(kernel, **constants):
    signature = {name: "constexpr" if name in constants else {**REALS, **WHOLE, **OTHER}.get(name, "*fp32")
                 for name in kernel.arg_names}
    whole = {(place,): [["tt.divisibility", 16]] for place, kind in enumerate(signature.values()) if kind[0] == "*"}
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants, attrs=whole)
    made = compile(source, target=GPUTarget("cuda", 90, 32), options={"num_stages": 3})
    assert len(made.asm["cubin"]) > 1000 and ".local" not in made.asm["ptx"], kernel.__name__
    return made


for heads, kv, dim, page, splits in ((16, 8, 128, 64, 1), (16, 8, 128, 64, 8), (7, 1, 64, 16, 4), (32, 8, 128, 32, 2)):
    made = built(attention.attend_kernel, KV=kv, GROUP=heads // kv, ROWS=16, DIM=dim, PAGE=page, BLOCK=page,
                 SPLITS=splits, EXACT=False)
    assert "mma.sync" in made.asm["ptx"] and "cp.async" in made.asm["ptx"]
    built(layers.rotate_and_write_kernel, HEADS=heads, KV=kv, DIM=dim, PAGE=page, PADDED=1 << (heads - 1).bit_length(),
          PADDED_KV=kv, NORMED=dim == 128)
built(attention.join_kernel, HEADS=16, DIM=128, SPLITS=8, BLOCK=64)
built(layers.norm_kernel, SIZE=1024, BLOCK=1024, ADD=True)
built(layers.gate_kernel, SIZE=3072, BLOCK=1024)
built(sampling.blocks_kernel, SIZE=151_936, BLOCK=4096, COUNT=38)
built(sampling.choose_kernel, SIZE=151_936, BLOCK=4096, COUNT=38, PADDED=64)
print("built")
"""


@pytest.mark.slow
def test_every_kernel_compiles_for_hopper() -> None:
    """To machine code for sm_90: products on matrix units, loads that run ahead, nothing spilled to local memory."""
    environment = {**os.environ, "TRITON_INTERPRET": "0"}
    done = subprocess.run([sys.executable, "-c", COMPILE], capture_output=True, text=True, env=environment)
    assert done.stdout.split() == ["built"], done.stderr[-2000:]
