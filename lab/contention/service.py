"""A service of the trial: `python3 -m lab.contention.service [--group N] [--small] FILE FORM=generate|continuous`.

An HTTP server of a language model with random weights (transformers), and N HTTP clients of it in a process of their
own. Each sends its next request when the last one is answered, while FILE exists. `generate` answers the requests that
wait together by one call of `model.generate`; `continuous` is transformers' continuous batching. It prints `ready`, and
up to fourteen times a second when the latest token was made (CLOCK_BOOTTIME in ns), their number, and that time again.
For each answer it prints `answer`, when it came, nanoseconds since its request, and its tokens. SIGTERM ends it.
"""

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from .client import POLL_SECONDS, REPORT_SECONDS, boot_ns

Answer = Callable[[Sequence[int], int], Awaitable[int]]

SEED = 56
VOCABULARY, LONGEST_PROMPT, MOST_TOKENS = 32_000, 256, 64
MOST_TOGETHER, GATHER_SECONDS = 16, 0.005
KV_BLOCKS, BATCH_TOKENS = 512, 2048


class Tokens:
    """How many tokens were made, and when the latest was."""

    def __init__(self) -> None:
        self._done = (0, 0)

    def add(self, number: int) -> None:
        """Count some more."""
        self._done = boot_ns(), self._done[1] + number

    def report(self) -> None:
        """Print them until the process ends."""
        reported = self._done
        while True:
            if self._done != reported:
                reported = self._done
                print(reported[0], reported[1], reported[0], flush=True)
            time.sleep(REPORT_SECONDS)


def model_on(device: str, *, small: bool) -> Any:
    """Return a model with random weights: of 0.3 billion parameters, or a small one to try this program."""
    import torch  # type: ignore[import-not-found,unused-ignore]
    from transformers import (  # type: ignore[import-not-found,unused-ignore]
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    size, layers = (64, 2) if small else (1024, 16)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=size,
        intermediate_size=3 * size,
        num_hidden_layers=layers,
        num_attention_heads=size // 64 or 1,
        num_key_value_heads=max(1, size // 256),
        max_position_embeddings=4096,
    )
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.float32 if small else torch.bfloat16).eval()
    model.generation_config = GenerationConfig(
        do_sample=False, max_new_tokens=MOST_TOKENS, pad_token_id=0, bos_token_id=1
    )
    return model


def together(model: Any, device: str, tokens: Tokens) -> Answer:
    """Return what answers a request together with those that wait, by `model.generate` in a thread of its own."""
    import torch
    from transformers import StoppingCriteria, StoppingCriteriaList

    waiting: asyncio.Queue[tuple[Sequence[int], int, asyncio.Future[int]]] = asyncio.Queue()

    class Counted(StoppingCriteria):  # type: ignore[misc,unused-ignore]
        """Counts each step, and never stops."""

        def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:
            tokens.add(len(input_ids))
            return torch.zeros(len(input_ids), dtype=torch.bool, device=input_ids.device)

    def generate(prompts: Sequence[Sequence[int]], most: int) -> None:
        longest = max(map(len, prompts))
        ids = [[0] * (longest - len(prompt)) + [*prompt] for prompt in prompts]
        mask = [[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts]
        model.generate(
            torch.tensor(ids, device=device),
            attention_mask=torch.tensor(mask, device=device),
            max_new_tokens=most,
            stopping_criteria=StoppingCriteriaList([Counted()]),
        ).tolist()

    async def serve() -> None:
        while True:
            batch = [await waiting.get()]
            await asyncio.sleep(GATHER_SECONDS)
            while len(batch) < MOST_TOGETHER and not waiting.empty():
                batch.append(waiting.get_nowait())
            try:
                await asyncio.to_thread(generate, [each[0] for each in batch], max(each[1] for each in batch))
            except Exception:
                traceback.print_exc()
                os._exit(1)
            for _, most, answered in batch:
                answered.set_result(most)

    tasks: list[asyncio.Task[None]] = []

    async def answer(prompt: Sequence[int], most: int) -> int:
        if not tasks:
            tasks.append(asyncio.create_task(serve()))
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        waiting.put_nowait((prompt, most, answered))
        return await answered

    return answer


def continuously(model: Any, tokens: Tokens) -> Answer:
    """Return what adds a request to transformers' continuous batching."""
    from transformers import ContinuousBatchingConfig

    model.set_attn_implementation("paged|sdpa")  # else it asks for flash attention, perhaps on the network
    config = ContinuousBatchingConfig(num_blocks=KV_BLOCKS, max_batch_tokens=BATCH_TOKENS, block_size=32)
    manager = model.init_continuous_batching(continuous_batching_config=config)
    manager.start()
    numbers = itertools.count()

    async def answer(prompt: Sequence[int], most: int) -> int:
        answered: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        seen = 0

        def receive(output: Any) -> None:
            nonlocal seen
            tokens.add(len(output.generated_tokens) - seen)
            seen = len(output.generated_tokens)
            if output.is_finished() and not answered.done():
                if output.error:
                    print(f"refused: {output.error}", flush=True)
                answered.set_result(seen)

        name = f"r{next(numbers)}"
        manager.register_result_handler(name, receive)
        manager.add_request([*prompt], request_id=name, max_new_tokens=most, streaming=True)
        return await answered

    return answer


async def serve(answer: Answer, group: int, file: Path) -> None:
    """Answer one request, then HTTP requests."""
    from aiohttp import web  # type: ignore[import-not-found,unused-ignore]

    async def complete(request: Any) -> Any:
        asked = await request.json()
        made = await answer(asked["prompt"], asked["max_tokens"])
        return web.json_response({"tokens": made})

    for length in (16, LONGEST_PROMPT):
        made = await asyncio.gather(*(answer([1] * length, 8) for _ in range(min(group, MOST_TOGETHER))))
        if 0 in made:
            raise RuntimeError("a request got no answer")
    application = web.Application()
    application.router.add_post("/v1/completions", complete)
    runner = web.AppRunner(application)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    words = ["--clients", f"http://127.0.0.1:{port}/v1/completions", f"--group={group}", str(file), "base=clients"]
    # The clients inherit the output: it has their answers.
    await asyncio.create_subprocess_exec(sys.executable, "-m", "lab.contention.service", *words)
    print("ready", flush=True)
    await asyncio.Event().wait()


async def clients(url: str, group: int, file: Path) -> None:
    """Send requests while the file exists."""
    import aiohttp

    async def one(number: int, session: Any) -> None:
        source = random.Random(SEED + number)
        while True:
            if not file.exists():
                await asyncio.sleep(POLL_SECONDS)
                continue
            prompt = [source.randrange(2, VOCABULARY) for _ in range(source.randint(16, LONGEST_PROMPT))]
            began = boot_ns()
            body = {"prompt": prompt, "max_tokens": source.randint(MOST_TOKENS // 2, MOST_TOKENS)}
            async with session.post(url, data=json.dumps(body)) as response:
                made = (await response.json())["tokens"]
            ended = boot_ns()
            print("answer", ended, ended - began, made, flush=True)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        await asyncio.gather(*(one(number, session) for number in range(group)))


def main() -> None:
    """Serve, or be the clients."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--group", type=int, default=1, help="so many HTTP clients")
    parser.add_argument("--period", type=float, help="not used: as of other clients of the trial")
    parser.add_argument("--small", action="store_true", help="a small model on the CPU")
    parser.add_argument("--clients", metavar="URL", help="be the HTTP clients of a server")
    parser.add_argument("file", type=Path)
    parser.add_argument("form", metavar="FORM=KIND")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    if options.clients:
        with contextlib.suppress(KeyboardInterrupt):
            asyncio.run(clients(options.clients, options.group, options.file))
        return
    device, tokens = "cpu" if options.small else "cuda", Tokens()
    model = model_on(device, small=options.small)
    is_continuous = options.form.endswith("=continuous")
    answer = continuously(model, tokens) if is_continuous else together(model, device, tokens)
    threading.Thread(target=tokens.report, daemon=True).start()
    try:
        asyncio.run(serve(answer, options.group, options.file))
    except Exception:
        traceback.print_exc()
    os._exit(1)  # a thread of the library may go on


if __name__ == "__main__":
    main()
