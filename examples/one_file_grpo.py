"""Reinforcement learning from verifiable rewards (RLVR) in one file: from nothing to a reasoning model, on a CPU.

    python examples/one_file_grpo.py        # about two minutes on two cores; needs torch and nothing else

A small Qwen3 decoder first imitates a fallible demonstrator (SFT): most demonstrations guess the answer, a minority
works it out step by step, with slips. Reinforcement learning then sees nothing but right or wrong, and finds out by
itself that working step by step, without slips, is what pays: pass rate and length go up, entropy goes down.

    problems → completions → verdicts → groups → filter → advantages → loss → update → new weights → problems → …

Shape suffixes: B sequences, T tokens, V vocabulary, P prompts, G samples a prompt, S decoding slots, N requests,
                H heads, K key-value heads, D dimensions of a head, C hidden size.
"""

import argparse
import random
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

EOS, VOCABULARY = 256, 257  # a token is a byte, or the end; there is no pad token: masks alone say what counts


# ---- Problems, demonstrations, verifier
def encode(text: str) -> list[int]:
    return list(text.encode())


def decode(tokens: list[int]) -> str:
    return bytes(token for token in tokens if token < 256).decode(errors="replace")


def make_problem(rng: random.Random, terms: int = 6) -> str:
    """A chain sum such as `3+5-2+1-4+6=` whose running sum stays a single digit: few facts to learn, many problems."""
    total = rng.randint(1, 9)
    text = str(total)
    for _ in range(terms - 1):
        step = rng.choice([step for step in range(-9, 10) if step and 0 <= total + step <= 9])
        total, text = total + step, f"{text}{step:+d}"
    return text + "="


def make_problems(rng: random.Random, count: int, excluded: frozenset[str] = frozenset()) -> list[str]:
    """`count` different problems, none of whose texts is in `excluded`."""
    chosen: dict[str, None] = {}
    while len(chosen) < count:
        if (text := make_problem(rng)) not in excluded:
            chosen[text] = None
    return list(chosen)


def solve(problem: str) -> int:
    return sum(map(int, re.findall(r"[+-]?\d+", problem)))


def demonstrate(problem: str, rng: random.Random, guess: float = 0.6, partial: float = 0.15, slip: float = 0.02) -> str:
    """A fallible demonstrator writes a bare guess, or a few steps and then a guess, or every step; a step may slip."""
    first, *rest = re.findall(r"[+-]?\d+", problem)
    draw = rng.random()
    worked = 0 if draw < guess else rng.randint(1, len(rest) - 1) if draw < guess + partial else len(rest)
    total, text = int(first), ""
    for term in rest[:worked]:
        result = total + int(term) + (rng.choice((-1, 1)) if rng.random() < slip else 0)
        total, text = result, f"{text}{total}{term}={result} "
    return f"{text}\\boxed{{{total if worked == len(rest) else rng.randint(0, 9)}}}"


def verify(problem: str, completion: str) -> bool:
    """Right when the content of the last `\\boxed{…}` is the answer, character for character."""
    return (re.findall(r"\\boxed\{([^}]*)\}", completion) or [None])[-1] == str(solve(problem))


# ---- Model: transformers' Qwen3ForCausalLM, name for name
@dataclass(frozen=True)
class Config:
    hidden: int = 128
    layers: int = 3
    heads: int = 8
    kv_heads: int = 4
    head_dim: int = 32
    intermediate: int = 384
    max_length: int = 80
    rope_theta: float = 100.0  # as short as the sequences: sees sooner which term comes next
    init_std: float = 0.08  # 0.02 is for wide models and learns several times slower here


class Attention(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.head_dim = c.head_dim
        self.q_proj = nn.Linear(c.hidden, c.heads * c.head_dim, bias=False)
        self.k_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.v_proj = nn.Linear(c.hidden, c.kv_heads * c.head_dim, bias=False)
        self.o_proj = nn.Linear(c.heads * c.head_dim, c.hidden, bias=False)
        self.q_norm, self.k_norm = nn.RMSNorm(c.head_dim, 1e-6), nn.RMSNorm(c.head_dim, 1e-6)

    def forward(self, x_BTC: Tensor, rope: tuple[Tensor, Tensor], cache: "Cache | None", layer: int) -> Tensor:
        B, T, _ = x_BTC.shape
        q, k, v_BKTD = (p(x_BTC).view(B, T, -1, self.head_dim) for p in (self.q_proj, self.k_proj, self.v_proj))
        q_BHTD, k_BKTD = rotate(self.q_norm(q), *rope).transpose(1, 2), rotate(self.k_norm(k), *rope).transpose(1, 2)
        v_BKTD, mask = v_BKTD.transpose(1, 2), None
        if cache is not None:
            k_BKTD, v_BKTD, mask = cache.append(layer, k_BKTD, v_BKTD)
        y_BHTD = F.scaled_dot_product_attention(q_BHTD, k_BKTD, v_BKTD, mask, is_causal=mask is None, enable_gqa=True)
        return self.o_proj(y_BHTD.transpose(1, 2).reshape(B, T, -1))


class Mlp(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.gate_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.up_proj = nn.Linear(c.hidden, c.intermediate, bias=False)
        self.down_proj = nn.Linear(c.intermediate, c.hidden, bias=False)

    def forward(self, x_BTC: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x_BTC)) * self.up_proj(x_BTC))


class Layer(nn.Module):
    def __init__(self, c: Config):
        super().__init__()
        self.self_attn, self.mlp = Attention(c), Mlp(c)
        self.input_layernorm, self.post_attention_layernorm = nn.RMSNorm(c.hidden, 1e-6), nn.RMSNorm(c.hidden, 1e-6)

    def forward(self, x_BTC: Tensor, rope: tuple[Tensor, Tensor], cache: "Cache | None", index: int) -> Tensor:
        x_BTC = x_BTC + self.self_attn(self.input_layernorm(x_BTC), rope, cache, index)
        return x_BTC + self.mlp(self.post_attention_layernorm(x_BTC))


class Decoder(nn.Module):
    cos_TD: Tensor
    sin_TD: Tensor

    def __init__(self, c: Config):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCABULARY, c.hidden)
        self.layers = nn.ModuleList(Layer(c) for _ in range(c.layers))
        self.norm = nn.RMSNorm(c.hidden, 1e-6)
        frequency_D = c.rope_theta ** (-torch.arange(0, c.head_dim, 2) / c.head_dim).repeat(2)
        angle_TD = torch.arange(c.max_length)[:, None] * frequency_D
        self.register_buffer("cos_TD", angle_TD.cos(), persistent=False)
        self.register_buffer("sin_TD", angle_TD.sin(), persistent=False)

    def forward(self, ids_BT: Tensor, cache: "Cache | None") -> Tensor:
        position_BT = torch.arange(ids_BT.shape[1])[None] if cache is None else cache.position_S[:, None]
        rope = self.cos_TD[position_BT][:, :, None], self.sin_TD[position_BT][:, :, None]
        x_BTC = self.embed_tokens(ids_BT)
        for index, layer in enumerate(self.layers):
            x_BTC = layer(x_BTC, rope, cache, index)
        return self.norm(x_BTC)


class Model(nn.Module):
    """Logits of every position. Without a cache attention is causal, so that real tokens never see right padding."""

    def __init__(self, c: Config):
        super().__init__()
        self.config = c
        self.model = Decoder(c)
        self.lm_head = nn.Linear(c.hidden, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=c.init_std)

    def forward(self, ids_BT: Tensor, cache: "Cache | None" = None) -> Tensor:
        return self.lm_head(self.model(ids_BT, cache))


def rotate(x_BTHD: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first, second = x_BTHD.chunk(2, dim=-1)
    return x_BTHD * cos + torch.cat((-second, first), dim=-1) * sin


# ---- Generation: fixed slots over one KV cache
class Cache:
    """Keys and values of a fixed number of slots, each at a position of its own; a mask hides what lies beyond it."""

    def __init__(self, c: Config, slots: int):
        self.k, self.v = torch.zeros(2, c.layers, slots, c.kv_heads, c.max_length, c.head_dim)
        self.position_S = torch.zeros(slots, dtype=torch.long)

    def append(self, layer: int, k_SK1D: Tensor, v_SK1D: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        row_S, end = torch.arange(len(self.position_S)), int(self.position_S.max()) + 1
        self.k[layer][row_S, :, self.position_S] = k_SK1D[:, :, 0]
        self.v[layer][row_S, :, self.position_S] = v_SK1D[:, :, 0]
        mask_S11T = (torch.arange(end) <= self.position_S[:, None])[:, None, None]
        return self.k[layer][:, :, :end], self.v[layer][:, :, :end], mask_S11T


@dataclass
class Completion:
    prompt: list[int]
    tokens: list[int]  # with the end token, which is trained like any other
    logprobs: Tensor  # of the tokens, recorded as they were sampled


@torch.no_grad()
def generate(
    model: Model, prompts: list[list[int]], slots: int = 128, rng: torch.Generator | None = None
) -> list[Completion]:
    """One completion of each prompt, sampled at temperature 1 until it ends or is as long as the model allows.

    A slot reads its prompt one token a step before it samples: so a freed slot takes the next prompt at once, and the
    shape of a step never changes. Idle slots work on row N, which nobody reads.
    """
    N, limit = len(prompts), model.config.max_length
    ids_NT, logprobs_NT = torch.zeros(N + 1, limit, dtype=torch.long), torch.zeros(N + 1, limit)
    start_N, end_N = torch.tensor([len(prompt) for prompt in prompts] + [limit]), [0] * (N + 1)
    for row, prompt in enumerate(prompts):
        ids_NT[row, : len(prompt)] = torch.tensor(prompt)
    cache, request_S, waiting = Cache(model.config, slots), torch.arange(slots).clamp(max=N), iter(range(slots, N))
    while (request_S < N).any():
        logprobs_SV = model(ids_NT[request_S, cache.position_S][:, None], cache)[:, 0].log_softmax(-1)
        sampled_S = torch.multinomial(logprobs_SV.exp(), 1, generator=rng)[:, 0]
        next_S = cache.position_S + 1
        own_S = next_S >= start_N[request_S]
        where = request_S[own_S], next_S[own_S]
        ids_NT[where], logprobs_NT[where] = sampled_S[own_S], logprobs_SV.gather(1, sampled_S[:, None])[own_S, 0]
        for slot in (own_S & ((sampled_S == EOS) | (next_S == limit - 1))).nonzero()[:, 0].tolist():
            end_N[request_S[slot]] = int(next_S[slot]) + 1
            request_S[slot], next_S[slot] = next(waiting, N), 0
        cache.position_S = next_S.where(request_S < N, 0)
    spans = [slice(len(prompt), end) for prompt, end in zip(prompts, end_N, strict=False)]
    return [Completion(prompts[n], ids_NT[n, span].tolist(), logprobs_NT[n, span]) for n, span in enumerate(spans)]


# ---- Learning
def group_advantages(rewards_PG: Tensor) -> tuple[Tensor, Tensor]:
    """(r - mean of the group) / std of that over all surviving groups (biased); and which groups survive.

    A group of equal rewards has no better and no worse to learn from: it is dropped, and its advantages are 0.
    """
    centred_PG, survives_P = rewards_PG - rewards_PG.mean(1, keepdim=True), rewards_PG.amax(1) > rewards_PG.amin(1)
    if not survives_P.any():
        return torch.zeros_like(centred_PG), survives_P
    return centred_PG * survives_P[:, None] / centred_PG[survives_P].std(correction=0), survives_P


def cispo_loss(
    logp_BT: Tensor, sampled_logp_BT: Tensor, advantage_BT: Tensor, weight_BT: Tensor, cap: float = 5.0
) -> Tensor:
    """-Σ weight · sg(min(π / π_generator, cap)) · A · log π: the cap tames a ratio and never silences its token."""
    ratio_BT = (logp_BT - sampled_logp_BT).exp().clamp(max=cap).detach()
    return -(weight_BT * ratio_BT * advantage_BT * logp_BT).sum()


def sft_loss(logp_BT: Tensor, weight_BT: Tensor) -> Tensor:
    return -(weight_BT * logp_BT).sum()


Sample = tuple[Completion, float, float]  # with the weight of its tokens, fixed before any split, and its advantage


def prompt_average(completions: list[Completion], rewards_PG: Tensor) -> list[Sample]:
    """Each surviving prompt weighs 1 / their number, and the tokens of its group share that equally."""
    advantages_PG, survives_P = group_advantages(rewards_PG)
    tokens_PG = torch.tensor([len(c.tokens) for c in completions]).view_as(rewards_PG)
    weights_PG = (survives_P / (survives_P.sum() * tokens_PG.sum(1)))[:, None].expand_as(rewards_PG)
    samples = zip(completions, weights_PG.flatten().tolist(), advantages_PG.flatten().tolist(), strict=True)
    return [sample for sample in samples if sample[1] > 0]


def micro_batches(samples: list[Sample], size: int = 16) -> Iterator[tuple[Tensor, ...]]:
    """ids, log-probs as sampled, advantages and weights (0 but on completion tokens), of samples of similar length."""
    ordered = sorted(samples, key=lambda sample: len(sample[0].prompt) + len(sample[0].tokens))
    for chunk in (ordered[start : start + size] for start in range(0, len(ordered), size)):
        B, T = len(chunk), len(chunk[-1][0].prompt) + len(chunk[-1][0].tokens)
        ids_BT, (logp_BT, advantage_BT, weight_BT) = torch.zeros(B, T, dtype=torch.long), torch.zeros(3, B, T)
        for row, (c, weight, advantage) in enumerate(chunk):
            begin, end = len(c.prompt), len(c.prompt) + len(c.tokens)
            ids_BT[row, :end], logp_BT[row, begin:end] = torch.tensor(c.prompt + c.tokens), c.logprobs
            advantage_BT[row, begin:end], weight_BT[row, begin:end] = advantage, weight
        yield ids_BT, logp_BT, advantage_BT, weight_BT


def token_logprobs(model: Model, ids_BT: Tensor) -> Tensor:
    """log p of each token given those before it; the first has none before it and gets 0."""
    logits_BVT = model(ids_BT[:, :-1]).transpose(1, 2)
    return F.pad(-F.cross_entropy(logits_BVT, ids_BT[:, 1:], reduction="none"), (1, 0))


def update(model: Model, optimizer: torch.optim.Optimizer, samples: list[Sample], imitate: bool = False) -> None:
    for ids_BT, sampled_logp_BT, advantage_BT, weight_BT in micro_batches(samples):
        logp_BT = token_logprobs(model, ids_BT)
        arguments = (logp_BT, weight_BT) if imitate else (logp_BT, sampled_logp_BT, advantage_BT, weight_BT)
        (sft_loss if imitate else cispo_loss)(*arguments).backward()  # weights are shares: gradients just add up
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()


def train_sft(model: Model, rng: random.Random, held_out: frozenset[str], steps: int) -> None:
    """Small batches: on this task many steps teach far more a second than large ones."""
    batch, lr = 16, 3e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), fused=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.05, cycle_momentum=False)
    for _ in range(steps):
        problems = make_problems(rng, batch, held_out)
        assert held_out.isdisjoint(problems)
        texts = [encode(demonstrate(problem, rng)) + [EOS] for problem in problems]
        shown = [Completion(encode(p), text, torch.zeros(len(text))) for p, text in zip(problems, texts, strict=True)]
        update(model, optimizer, [(c, 1 / sum(map(len, texts)), 1.0) for c in shown], imitate=True)
        schedule.step()


def roll_out(model: Model, problems: list[str], G: int) -> tuple[list[Completion], Tensor]:
    """G completions of each problem, and their rewards: +1 for right, -1 for wrong."""
    asked = [problem for problem in problems for _ in range(G)]
    completions = generate(model, [encode(problem) for problem in asked])
    right = [verify(problem, decode(c.tokens)) for problem, c in zip(asked, completions, strict=True)]
    return completions, torch.tensor(right).view(-1, G) * 2.0 - 1


def train_rl(model: Model, rng: random.Random, held_out: frozenset[str], steps: int) -> None:
    """Strictly on-policy: an update learns, once, from completions of the very weights that it changes."""
    P, G, lr = 32, 8, 3e-4
    optimizer = torch.optim.AdamW(model.parameters(), lr, betas=(0.9, 0.95), fused=True)
    for step in range(1, steps + 1):
        started = time.perf_counter()
        problems = make_problems(rng, P, held_out)
        assert held_out.isdisjoint(problems)
        completions, rewards_PG = roll_out(model, problems, G)
        if samples := prompt_average(completions, rewards_PG):
            update(model, optimizer, samples)
        report(f"RL {step}", completions, rewards_PG, started)


def report(what: str, completions: list[Completion], rewards_PG: Tensor, started: float) -> float:
    right_PG, logprobs_N = (rewards_PG > 0).float(), torch.cat([c.logprobs for c in completions])
    entropy = -logprobs_N.mean()  # of sampled tokens: its expectation is the entropy
    columns = right_PG.mean(), right_PG.amax(1).mean(), entropy, len(logprobs_N) / len(completions)
    print(f"{what:>10}" + "".join(f"{c:9.3f}" for c in columns) + f"{time.perf_counter() - started:9.1f}", flush=True)
    return right_PG.mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description="RLVR in one file, on a CPU", allow_abbrev=False)
    for name, default in (("seed", 0), ("sft-steps", 800), ("steps", 24), ("threads", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    arguments = parser.parse_args()
    if arguments.threads < 1:
        parser.error("--threads must be at least 1")
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(arguments.seed)
    rng, model = random.Random(arguments.seed), Model(Config())
    problems = make_problems(rng, 256)
    held_out = frozenset(problems)
    print(sum(p.numel() for p in model.parameters()), "parameters;", problems[0] + demonstrate(problems[0], rng, 0, 0))
    print(" " * 10 + "".join(f"{name:>9}" for name in ("pass@1", "pass@8", "entropy", "length", "seconds")))
    started = time.perf_counter()
    train_sft(model, rng, held_out, arguments.sft_steps)
    before = report("after SFT", *roll_out(model, problems, 8), started)
    started = time.perf_counter()
    train_rl(model, rng, held_out, arguments.steps)
    after = report("after RL", *roll_out(model, problems, 8), started)
    print(f"held-out pass rate {before:.3f} → {after:.3f} ({len(problems)} problems × 8 samples)")


if __name__ == "__main__":
    main()
