"""`VllmEngine`: the engine protocol as a client of vLLM's own server.

    submit → a task for each sample, `slots` of which may go on at once
    step:  one request of the server for each phase of each sample ──▶ the completions that finished

The server draws by itself; a step collects what it has sent, and makes the next requests. There is one event loop. It
runs while a method of the engine runs.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from strop.base import progress
from strop.base.files import writing
from strop.base.types import (
    Completion,
    ExpertArray,
    FinishReason,
    FloatArray,
    InputError,
    IntArray,
    StropError,
    first_line,
)
from strop.engines import weights
from strop.engines.base import BaseEngine, RequestLimits, Row, RunningSequence, SlotEntry
from strop.engines.protocol import EngineLost, Health, KvMode, WeightSource
from strop.engines.sampling import stream_key
from strop.engines.settings import Vllm
from strop.engines.vllm.server import LOWEST, Chunk, Client, arguments_of, start
from strop.model import tensor_file
from strop.model.files import DTYPES
from strop.model.location import dtype_name
from strop.model.settings import ModelSettings

if TYPE_CHECKING:
    from transformers import PreTrainedModel


_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_INDEX = "model.safetensors.index.json"


@dataclass(frozen=True)
class ModelFolder:
    """A folder with config.json and safetensors files; once read, the folder may go.

    Attributes:
        shapes: every tensor that an update must have, by its name in the files. Where transformers knows the model,
            those are its parameters and buffers, without what else is stored (layers for speculative decoding).
        tied: further names under which a parameter may be given, each with its name in `shapes`.
        dtypes: of the stored tensors.
        stored_in: the file of each stored tensor.
        buffers: those among `shapes`, which are never trained: the bias by which some routers choose experts.
            Each has the type that it has there, where parameters have that of the model.
        renamed: the model without memory where transformers has parameters of other names or shapes, else None.
    """

    path: Path
    config: dict[str, Any]
    generation: dict[str, Any]
    shapes: dict[str, torch.Size]
    tied: dict[str, str]
    dtypes: frozenset[torch.dtype]
    stored_in: dict[str, str]
    buffers: dict[str, Tensor]
    renamed: PreTrainedModel | None

    @classmethod
    def read(cls, folder: Path, trust_remote_code: bool = False) -> ModelFolder:
        """The facts of a folder.

        Raises:
            InputError: it is not a model's folder, or its weights are of a type that is not trained.
        """
        config = _json(folder / "config.json")
        generation = _json(folder / "generation_config.json") if (folder / "generation_config.json").is_file() else {}
        shapes: dict[str, torch.Size] = {}
        types: set[str] = set()
        stored_in: dict[str, str] = {}
        for file in sorted(folder.glob("*.safetensors")):
            try:
                with safe_open(file, framework="pt") as content:
                    for name in content.keys():  # noqa: SIM118 (not a dictionary)
                        part = content.get_slice(name)
                        shapes[name], stored_in[name] = torch.Size(part.get_shape()), file.name
                        types.add(part.get_dtype())
            except SafetensorError as error:
                raise InputError(f"{file}: not a safetensors file: {first_line(error)}") from error
        if not shapes:
            raise InputError(f"{folder}: holds no safetensors files; export the model with strop or save_pretrained")
        strange = sorted(types - _DTYPES.keys())
        if strange:
            raise InputError(f"{folder}: weights of type {', '.join(strange)}; an engine is given plain floats only")
        tied = {}
        if config.get("tie_word_embeddings") and EMBEDDING in shapes:
            shapes.pop(HEAD, None)
            tied = {HEAD: EMBEDDING}
        dtypes = frozenset(_DTYPES[name] for name in types)
        found = cls(folder, config, generation, shapes, tied, dtypes, stored_in, {}, None)
        with suppress(InputError):  # a model that transformers cannot build is served as it is, and never trained
            return found._of_transformers(trust_remote_code)
        return found

    def _of_transformers(self, trust_remote_code: bool) -> ModelFolder:
        """These facts with what the model of transformers adds to them; raises `InputError` where there is none."""
        from strop.model.files import stored_model
        from strop.model.settings import ModelSettings

        model = stored_model(ModelSettings(path=str(self.path), trust_remote_code=trust_remote_code))
        parameters = dict(model.named_parameters())
        same = all(name in self.tied or one.shape == self.shapes.get(name) for name, one in parameters.items())
        found = self if same else replace(self, renamed=model)
        buffers = {name: self._stored(name) for name, _ in model.named_buffers() if name in self.shapes}
        needed = found.in_files(parameters).keys() | buffers.keys()
        if needed <= self.shapes.keys() | self.tied.keys():  # else the names of an update are refused
            found = replace(found, shapes={name: shape for name, shape in self.shapes.items() if name in needed})
        return replace(found, buffers=buffers)

    @property
    def layers_with_experts(self) -> list[int]:
        """The numbers of the decoder layers that are mixtures of experts."""
        found = (re.search(r"\.layers\.(\d+)\..*\.experts\.", name) for name in self.shapes)
        return sorted({int(match[1]) for match in found if match})

    @contextmanager
    def with_head(self, place: Path | None) -> Iterator[Path]:
        """A folder of the same model in which a tied head is a separate weight, which vLLM then loads.

        It is in `place` (None: the folder of temporary files), and is removed at the end.
        """
        if not self.tied or HEAD in self.stored_in:
            yield self.path
            return
        with writing(place or Path(tempfile.gettempdir())):
            made = tempfile.TemporaryDirectory(prefix="strop-vllm-", dir=place)
            folder = Path(made.name)
            for file in self.path.resolve().iterdir():
                (folder / file.name).symlink_to(file)
            save_file({HEAD: self._stored(EMBEDDING)}, folder / "strop-head.safetensors")
            (folder / _INDEX).unlink(missing_ok=True)
            index = {"weight_map": self.stored_in | {HEAD: "strop-head.safetensors"}}
            (folder / _INDEX).write_text(json.dumps(index))
        with made:
            yield folder

    def in_files(self, weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The weights by the names and in the shapes that the files have, as `save_pretrained` writes them.

        transformers keeps those of some families otherwise, the experts of a layer as one tensor above all.
        """
        if self.renamed is None:
            return weights
        from transformers.core_model_loading import revert_weight_conversion

        found: dict[str, Tensor] = revert_weight_conversion(self.renamed, dict(weights))
        return found

    def _stored(self, name: str) -> Tensor:
        with safe_open(self.path / self.stored_in[name], framework="pt") as content:
            tensor: Tensor = content.get_tensor(name)
        return tensor


@contextmanager
def written(
    version: Mapping[str, Tensor], place: Path | None, file: tensor_file.Mapped | None = None
) -> Iterator[Path]:
    """A folder in `place` with these weights, gone at the end.

    Without a place it holds links: to `file`, where all its tensors are among these, and to a file in this process's
    memory with those that it lacks. That needs no tmpfs of a certain size (a container's /dev/shm has 64 MiB), and no
    death leaves it behind.

    Raises:
        StropError: there is no room, or `place` cannot be written to.
    """
    memory = os.memfd_create("strop-weights") if place is None else None
    try:
        with writing(place or Path(tempfile.gettempdir())):
            folder = Path(tempfile.mkdtemp(prefix="strop-vllm-", dir=place))
        try:
            with writing(folder):
                left = version
                if memory is not None and file is not None and all(version.get(n) is own for n, own in file.items()):
                    (folder / "stored.safetensors").symlink_to(file.path)
                    left = {name: tensor for name, tensor in version.items() if name not in file}
                if memory is not None and left:
                    (folder / "model.safetensors").symlink_to(f"/proc/{os.getpid()}/fd/{memory}")
                if left:
                    with (folder / "model.safetensors").open("wb") as rest:
                        for part in tensor_file.parts(left):
                            rest.write(part)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    finally:
        if memory is not None:
            os.close(memory)


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(f"{path}: no such file; name the folder of a Hugging Face model") from None
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {error}") from error
    assert isinstance(found, dict)
    return found


class VllmSample(RunningSequence):
    """A sample between its request and its report; a server is asked once for each of its phases.

    Attributes:
        request: the name of what the server has been asked for and not answered to its end, or None.
        drawn: how many tokens of that the server has drawn.
        wanted: whether what it goes on to draw is taken.
        reason: why the completion ends, once that is known.
        experts: int16 [tokens, layers, k], the experts that computed the first tokens of prompt and completion in the
            decoder layers of these numbers; None without such layers.
    """

    def __init__(self, entry: SlotEntry, index: int, layers: list[int]) -> None:
        super().__init__(entry, index)
        # vLLM's log-probs are of what top-k and top-p leave, so that with those nothing is known of the whole.
        self._whole = entry.request.sampling.temperature == 0 or not entry.request.sampling.truncates
        self.token_ids: list[int] = []
        self.logprobs: list[float] = []
        self.experts: ExpertArray | None = None
        self._layers, self.wanted = layers, True
        self.reason: FinishReason | None = None
        # Of the present request: its first token, how many were asked for, and the latest of its messages.
        self.request: str | None = None
        self._begin = self._asked = self.drawn = 0
        self._last: Chunk | None = None

    def ask(self, request: str, salt: str) -> dict[str, Any]:
        """Begin a request of the server under this name; returns its body, which contains injected tokens."""
        if len(self.token_ids) < self.chain.sampled_from:
            self.token_ids += self.chain.phase.inject
            self.logprobs += [0.0] * len(self.chain.phase.inject)
        self.request, self.wanted, self._last = request, True, None
        self._begin, self.drawn = len(self.token_ids), 0
        self._asked = self.chain.phase_end - self._begin
        asked, sampling = self.entry.request, self.entry.request.sampling
        # The stop ids given are all there are. Messages come rarely, for one costs more than a small model's step; soon
        # enough to end at a stop string, which is looked for on this side; at once where somebody looks on.
        params = {
            "temperature": sampling.temperature, "top_p": sampling.top_p, "top_k": sampling.top_k or 0,
            "seed": stream_key(self.key, self._begin) & (2**63 - 1), "max_tokens": self._asked,
            "stop_token_ids": list(self.entry.stop_ids), "ignore_eos": True, "detokenize": False,
            "logprobs": 0 if self._whole else None,
            "stream_interval": 1 if asked.watched else 16 if sampling.stop else 256,
        }  # fmt: skip
        body = {"request_id": request, "token_ids": self.entry.ids.tolist() + self.token_ids, "cache_salt": salt}
        return {**body, "stream": True, "sampling_params": params}

    def take(self, chunk: Chunk) -> bool:
        """Append the tokens of a chunk; returns whether the server should abort the rest of the request.

        Raises:
            EngineLost: more tokens than were asked for, or another number of log-probs.
            StropError: a log-prob is not finite.
        """
        self._last = chunk
        self.drawn += len(chunk.token_ids)
        logprobs = chunk.logprobs if self._whole else [np.nan] * len(chunk.token_ids)
        if self.drawn > self._asked or len(logprobs) != len(chunk.token_ids):
            sent = f"{self.drawn} tokens, the last {len(chunk.token_ids)} with {len(logprobs)} log-probs"
            raise EngineLost(f"vLLM sent {sent}, where {self._asked} were asked for")
        for token, logprob in zip(chunk.token_ids, logprobs, strict=True):
            if not self.wanted:
                break
            if logprob <= LOWEST:
                said = "the weights have overflowed; go back to an earlier checkpoint with a lower optim.lr"
                raise StropError(f"a sampled log-prob is not finite: {said}")
            self.token_ids.append(token)
            self.logprobs.append(logprob)
            ending = self.chain.ending(self.token_ids)
            if ending is not None:
                self.reason = self.reason or self.chain.follow(len(self.token_ids), ending)
                self.wanted = self.reason is None and not self.chain.phase.inject
        return not self.wanted and chunk.reason is None

    def end(self) -> None:
        """The stream of a request has ended. Without a reason for the completion to end, there is more to ask for.

        Raises:
            EngineLost: it ended before its time, or its versions or experts are not those of as many tokens.
        """
        self.request, last = None, self._last
        ended = None if last is None else last.reason
        due = (ended == "length" and self.drawn == self._asked) or (ended == "abort" and self.reason == "abort")
        if last is None or ended is None or (self.wanted and not due):
            raise EngineLost(f"vLLM ended a request of {self._asked} tokens by {ended} after {self.drawn}")
        if [start for _, start, _ in last.spans] + [self.drawn] != [0] + [end for _, _, end in last.spans]:
            raise EngineLost(f"vLLM says {last.spans} (version, first, end) of {self.drawn} tokens")
        if len(self.token_ids) > self._begin:
            for version, _, end in last.spans:
                self.chain.drawn_by(version, min(self._begin + end, len(self.token_ids)))
            if self._layers:
                self._record(last.experts)

    def _record(self, experts: ExpertArray | None) -> None:
        """Keep the experts of what this request has computed first; tokens of earlier ones keep theirs."""
        due = len(self.entry.ids) + self._begin + self.drawn - 1  # the last token is not computed
        if experts is None or len(experts) != due:
            raise EngineLost(f"vLLM sent the experts of {0 if experts is None else len(experts)} tokens, not of {due}")
        rows = experts[: len(self.entry.ids) + len(self.token_ids) - 1, self._layers]
        if self.experts is not None:
            rows[: len(self.experts)] = self.experts
        self.experts = rows


T = TypeVar("T")
_MOMENT = 0.05  # seconds that a step waits, and after which an abort is sent again: it may have overtaken its request


class VllmEngine(BaseEngine):
    """An `Engine` on one server of vLLM. See `strop.engines.protocol.Engine` for the methods of the protocol.

    `folder` holds the model as transformers saves it; `model` says how it computes (its type, the float32 head).
    `version` is what the weights in it are. A server is started on `gpus`, or the one of `settings.urls` is taken and
    given these weights. It is `Streaming` too.

    Raises:
        InputError: no interpreter, or settings that the model or the server cannot honour.
        EngineLost: vLLM does not start; the message ends with what it said.
    """

    def __init__(
        self, folder: Path, tokenizer: PreTrainedTokenizerBase, settings: Vllm, model: ModelSettings,
        version: int = 0, gpus: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        self._folder = ModelFolder.read(folder, model.trust_remote_code)
        config, end_ids = self._folder.config, self._folder.generation.get("eos_token_id")
        limits = RequestLimits.of(config, int(config["vocab_size"]), end_ids, tokenizer, settings.max_tokens)
        super().__init__(limits, settings.slots, tokenizer, version, whole_logprobs=False)
        if (count := len(settings.urls)) > 1:
            raise InputError(f"engine.urls: {count} servers are for orchestration.generators={count}; name one here")
        self.settings = settings
        own, dtype = dtype_name(model), settings.dtype or dtype_name(model)
        self._dtype, self._given = DTYPES[dtype], self._folder.dtypes | {DTYPES[dtype], DTYPES[own]}
        self._layers = self._folder.layers_with_experts if model.replay_routing else []
        self._place = None if settings.weights_folder is None else Path(settings.weights_folder)
        self._samples: dict[VllmSample, asyncio.Task[None]] = {}
        self._slots = asyncio.Semaphore(settings.slots)
        self._salt = f"strop-{uuid.uuid4().hex[:12]}"
        self._silent = 0.0  # seconds for which steps have heard nothing of the server
        self._loop = asyncio.new_event_loop()
        self._going = asyncio.Event()  # the server is not paused
        self._going.set()
        self._name = settings.urls[0] if settings.urls else "vLLM's server"
        key = None if settings.api_key_env is None else os.environ.get(settings.api_key_env)
        if key is None and settings.api_key_env is not None:
            raise InputError(f"engine.api_key_env={settings.api_key_env}: this variable is not set")
        with self._folder.with_head(self._place) as served:
            arguments = arguments_of(settings, model, dtype, limits)
            self.server = None if settings.urls else start(settings, served, arguments, gpus)
            socket = None if self.server is None else self.server.socket
            self._client = Client(self._name, socket, key, settings.reply_seconds)
            try:
                self._run(self._connect(served))
            except BaseException:
                self.close()
                raise

    def step(self) -> list[Completion]:
        """The completions that have finished; where none has, it waits a moment for one.

        Raises:
            StropError: an earlier step failed, or a log-prob is not finite.
            EngineLost: the server died, hangs, failed, or answered what cannot be.
        """
        self._refuse_if_failed()
        if self._samples and not self._reports:
            self._run(self._listen())
        return self._reported()

    def update_weights(self, source: WeightSource, version: int, kv: KvMode = "keep") -> None:
        """Swap in every parameter, or none; see the protocol.

        Raises:
            InputError: weights that do not fit (see `engines.weights.stage`), or an older version: nothing has changed.
            EngineLost: the server failed at it, and the engine refuses to go on.
        """
        self._refuse_if_failed()
        stored = self._run(asyncio.to_thread(self._staged, source))  # meanwhile waiting samples take free slots
        self._refuse_older(version)
        with written(stored, self._place, source if isinstance(source, tensor_file.Mapped) else None) as folder:
            self._run(self._swap(folder, version, kv))

    def _staged(self, source: WeightSource) -> dict[str, Tensor]:
        """What the server is to load: checked, with a tied head, in the server's type."""
        known = self._folder
        trained = known.in_files(weights.collected(source))
        given = weights.checked({**trained, **known.buffers}, known.shapes, known.tied, self._given)
        given |= {name: given[original] for name, original in known.tied.items()}
        return {name: tensor.to(self._dtype) for name, tensor in given.items()} | known.buffers

    def verify_weights(self, probe_ids: IntArray) -> FloatArray:
        """Log-probs [L - 1] of `probe_ids` [L] after the first; see `BaseEngine.verify_weights`."""
        self._refuse_if_failed()
        self._limits.refuse_sequence(probe_ids, spare=1)
        return self._run(self._client.logprobs(probe_ids))

    def health(self) -> Health:
        """Whether the engine may be used, and how many samples are in flight or wait."""
        if self._failure is None and self.server is not None and not self.server.alive:
            self._failure = EngineLost(f"{self._name} is no more{self.server.failed()}")
        running = sum(sample.request is not None for sample in self._samples)
        return Health(self._failure is None, str(self._failure or "ok"), running, len(self._samples) - running)

    def close(self) -> None:
        """End the server, where it is ours; the engine cannot be used any more."""
        self._failure = self._failure or InputError("closed")
        for task in self._samples.values():
            task.cancel()
        if not self._loop.is_closed():
            self._loop.run_until_complete(self._end())
            self._loop.close()
        if self.server is not None:
            self.server.stop()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine, and all other tasks meanwhile; a failure of the server ends the engine."""
        try:
            return self._loop.run_until_complete(work)
        except InputError:
            raise
        except StropError as error:
            self._failure = error
            if self.server is not None and isinstance(error, EngineLost):
                self._failure = EngineLost(f"{error}{self.server.failed()}")
            raise self._failure from error

    def _in_flight(self) -> Iterator[tuple[SlotEntry, int, Row, Row]]:
        return ((sample.entry, sample.index, sample.token_ids, sample.logprobs) for sample in self._samples)

    def _enqueue(self, entry: SlotEntry) -> None:
        self.settings.refuse_unable(entry.request.sampling)
        for index in range(entry.request.n):
            sample = VllmSample(entry, index, self._layers)
            self._samples[sample] = self._loop.create_task(self._follow(sample))

    def _finish(self, sample: VllmSample) -> None:
        del self._samples[sample]
        assert sample.reason is not None
        token_ids, logprobs = np.array(sample.token_ids, np.int64), np.array(sample.logprobs, np.float32)
        self._report(sample.entry, sample.index, sample.chain, token_ids, logprobs, sample.reason, None, sample.experts)

    def _abort(self, request_id: str) -> None:
        samples = [sample for sample in self._samples if sample.entry.request.id == request_id]
        for sample in samples:
            sample.reason = "abort"
            if sample.request is None:  # it waits for a slot, or for the server to go on, and may wait for long
                self._samples[sample].cancel()
                self._finish(sample)
        self._run(self._end_requests(samples))

    async def _connect(self, served: Path) -> None:
        """Wait for the server, and check or set its weights and its version."""
        begin, patience, told = self._loop.time(), self.settings.start_seconds, 0
        log = "" if self.server is None else f", its log is {self.server.log}"
        while not await self._client.ready():
            if (seconds := int(self._loop.time() - begin)) > told:
                told = seconds
                progress.part(f"{self._name} starts{log}; second", min(seconds, int(patience)), int(patience))
            ended = self.server is not None and not self.server.alive
            if ended or self._loop.time() > begin + patience:
                what = "ended" if ended else f"was not ready after {patience:.0f} s"
                raise EngineLost(f"{self._name} {what} (docs/vllm.md says what it needs)")
            await asyncio.sleep(_MOMENT)
        if told:
            progress.part(f"{self._name} starts{log}; second", int(patience), int(patience))
        if self.server is None:  # it may have other weights, cached keys and values of them, and be paused
            await self._client.refuse_unfit(self._limits.max_tokens, bool(self._layers))
            await self._swap(served, self._version, "recompute")
        await self._client.ask("/update_weight_version", {"new_version": str(self._version)})

    async def _listen(self) -> None:
        """Wait a moment for a sample to finish; raises if a sample or the server has failed, even between steps."""
        before = self._loop.time()
        running = (task for sample, task in self._samples.items() if sample.request is not None or task.done())
        await _some_of(running, asyncio.FIRST_COMPLETED)
        if self.server is not None and not self.server.alive:
            raise EngineLost(f"{self._name} is no more")
        self._silent += self._loop.time() - before
        if self._silent > self.settings.reply_seconds:
            raise EngineLost(f"{self._name} has drawn nothing for {self._silent:.0f} s")

    async def _follow(self, sample: VllmSample) -> None:
        """Draw one sample to its end, by a request of the server for each phase."""
        async with self._slots:
            while sample.reason is None:
                await self._going.wait()
                body = sample.ask(f"strop-{uuid.uuid4().hex}", f"{self._salt}-{self._version}")
                async for chunk in self._client.generate(body):
                    self._silent, before = 0.0, len(sample.token_ids)
                    ended = sample.take(chunk)
                    self._drew(len(sample.token_ids) - before)
                    if ended:
                        await self._client.abort([body["request_id"]])
                sample.end()
        self._finish(sample)

    async def _end_requests(self, samples: Sequence[VllmSample]) -> None:
        """Abort the server's requests of these samples, and wait for their ends."""
        begin = self._loop.time()
        while names := [sample.request for sample in samples if sample.request is not None]:
            if self._loop.time() > begin + self.settings.reply_seconds:
                raise EngineLost(f"{self._name} does not end what it is to end")
            await self._client.abort(names)
            await _some_of(self._samples[sample] for sample in samples if sample in self._samples)

    async def _go(self, going: bool) -> None:
        """Let the server draw, or pause it between two tokens."""
        if going:
            await self._client.ask("/wake_up", tags="scheduling")
            self._going.set()
        else:
            self._going.clear()
            # Of level 0 it is `/pause`, without the 20 ms that `/pause` waits at its end.
            await self._client.ask("/sleep", level="0", mode="keep")

    async def _swap(self, folder: Path, version: int, kv: KvMode) -> None:
        await self._go(False)
        # A sequence without a token has at most part of its prompt computed, by the old weights: it begins again.
        unstarted = [sample for sample in self._samples if sample.request is not None and not sample.drawn]
        for sample in unstarted:
            sample.wanted = False
        await self._end_requests(unstarted)
        await self._client.ask("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
        if kv == "recompute":
            forgotten = await self._client.ask("/reset_prefix_cache", reset_running_requests="true")
            if forgotten.get("success") is not True:
                raise EngineLost(f"{self._name} cannot compute its keys and values anew: it said {forgotten}")
        await self._client.ask("/update_weight_version", {"new_version": str(version)})
        self._version = version
        await self._go(True)

    async def _end(self) -> None:
        await asyncio.gather(*self._samples.values(), return_exceptions=True)
        await self._client.close()


async def _some_of(tasks: Iterable[asyncio.Task[None]], until: str = asyncio.ALL_COMPLETED) -> None:
    """Wait a moment for tasks; raises the exception of one that failed."""
    if waited := list(tasks):
        for task in (await asyncio.wait(waited, timeout=_MOMENT, return_when=until))[0]:
            task.result()
