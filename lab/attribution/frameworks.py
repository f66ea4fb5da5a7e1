"""A client of one framework that repeats one step: `python3 -m lab.attribution.frameworks KIND FILE`.

It imports its framework, runs some steps, and prints `ready`. It works while FILE exists, until SIGTERM. Ten times a
second it prints the time (CLOCK_BOOTTIME in ns) and the number of its steps.
"""

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Step = Callable[[], object]

REPORT_SECONDS = 0.1
WARM_UP_STEPS = 30
# Kernels in a step of torch_small.
SMALL_KERNELS = 1000


def _torch() -> Any:
    import torch  # type: ignore[import-not-found,unused-ignore]

    torch.set_num_threads(1)
    return torch


def _encoder(torch: Any, *, layers: int, size: int) -> Any:
    layer = torch.nn.TransformerEncoderLayer(size, 8, 4 * size, dropout=0.0, batch_first=True)
    return torch.nn.TransformerEncoder(layer, layers, enable_nested_tensor=False).eval().to("cuda", torch.float16)


def torch_prefill(batch: int = 4, length: int = 256) -> Step:
    """Run a transformer on long inputs, and synchronise after each."""
    torch = _torch()
    network, data = _encoder(torch, layers=4, size=512), torch.randn(batch, length, 512, device="cuda").half()

    def step() -> None:
        with torch.no_grad():
            network(data)
        torch.cuda.synchronize()

    return step


def torch_decode(layers: int = 8) -> Step:
    """Run a transformer on one token of eight inputs, and read the result."""
    torch = _torch()
    network, data = _encoder(torch, layers=layers, size=512), torch.randn(8, 1, 512, device="cuda").half()

    def step() -> None:
        with torch.no_grad():
            network(data).argmax(-1).tolist()

    return step


def torch_add(numbers: int, times: int = 1) -> Step:
    """Add one to so many numbers, so many times, and synchronise. The memory's bandwidth limits the time for many."""
    torch = _torch()
    data = torch.zeros(numbers, device="cuda")

    def step() -> None:
        for _ in range(times):
            data.add_(1.0)
        torch.cuda.synchronize()

    return step


def captured(torch: Any, launch: Callable[[], object]) -> Any:
    """Return a CUDA graph of what a function launches on the current device.

    The stream that PyTorch captures by default belongs to the device of the process's first capture. The graph keeps
    the function, and so the memory that its kernels use: the next capture unmaps what is free.
    """
    graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
    with torch.no_grad():
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                launch()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph, stream=side):
            launch()
    graph.launch = launch
    return graph


def torch_graph() -> Step:
    """Replay a CUDA graph, and wait for it by an event."""
    torch = _torch()
    network, data = _encoder(torch, layers=4, size=512), torch.randn(8, 1, 512, device="cuda").half()
    graph, done = captured(torch, lambda: network(data)), torch.cuda.Event(blocking=True)

    def step() -> None:
        graph.replay()
        done.record()
        done.synchronize()

    return step


def torch_decoder(layers: int = 12, size: int = 1024, heads: int = 16, length: int = 512, words: int = 32_000) -> Step:
    """Decode a token of one sequence by a CUDA graph, and read it, as language models do. All numbers are random."""
    torch = _torch()
    functional = torch.nn.functional

    def random(*shape: int) -> Any:
        return 0.02 * torch.randn(*shape, device="cuda", dtype=torch.float16)

    embedding, token = random(words, size), torch.zeros(1, dtype=torch.long, device="cuda")
    shapes = ((3 * size, size), (size, size), (4 * size, size), (size, 4 * size))
    cached = (heads, length, size // heads)
    weights = [[random(*shape) for shape in (*shapes, cached, cached)] for _ in range(layers)]

    def decode() -> None:
        state = functional.embedding(token, embedding)
        for into, out, wider, narrower, keys, values in weights:
            query, key, value = functional.linear(functional.layer_norm(state, (size,)), into).view(3, heads, 1, -1)
            keys[:, -1:], values[:, -1:] = key, value
            attention = torch.softmax(query @ keys.transpose(1, 2) / math.sqrt(size / heads), -1)
            state = state + functional.linear((attention @ values).view(1, size), out)
            inner = functional.gelu(functional.linear(functional.layer_norm(state, (size,)), wider))
            state = state + functional.linear(inner, narrower)
        token.copy_(functional.linear(state, embedding).argmax(-1))

    graph = captured(torch, decode)

    def step() -> None:
        graph.replay()
        token.item()

    return step


def _training(torch: Any, network: Any, data: Any, every: int) -> Step:
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4)
    steps = 0

    def step() -> None:
        nonlocal steps
        optimizer.zero_grad()
        found = network(data)
        loss = (found[0] if isinstance(found, tuple) else found).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % every == 0:
            loss.item()

    return step


def torch_lstm() -> Step:
    """Train an LSTM, and read the loss after each ten steps."""
    torch = _torch()
    return _training(torch, torch.nn.LSTM(256, 256, 2).cuda(), torch.randn(48, 16, 256, device="cuda"), 10)


def torch_conv(batch: int = 32) -> Step:
    """Train a convolutional network, and read the loss after each ten steps."""
    torch = _torch()
    layers: list[Any] = []
    for before, after in ((3, 32), (32, 64), (64, 128)):
        layers += [torch.nn.Conv2d(before, after, 3, 2, 1), torch.nn.BatchNorm2d(after), torch.nn.ReLU()]
    return _training(torch, torch.nn.Sequential(*layers).cuda(), torch.randn(batch, 3, 96, 96, device="cuda"), 10)


def torch_compiled() -> Step:
    """Train a compiled network, and read the loss after each step."""
    torch = _torch()
    sizes = ((1024, 2048), (2048, 2048), (2048, 1024))
    layers = [each for size in sizes for each in (torch.nn.Linear(*size), torch.nn.GELU())]
    network = torch.compile(torch.nn.Sequential(*layers).cuda())
    return _training(torch, network, torch.randn(512, 1024, device="cuda"), 1)


def torch_streams(size: int = 2048) -> Step:
    """Multiply matrices on three streams without pauses."""
    torch = _torch()
    streams, data = [torch.cuda.Stream() for _ in range(3)], torch.randn(size, size, device="cuda").half()

    def step() -> None:
        for stream in streams:
            with torch.cuda.stream(stream):
                torch.mm(data, data)
                torch.mm(data, data)
        for stream in streams:
            stream.synchronize()

    return step


def torch_sort() -> Step:
    """Sort a million numbers, and synchronise."""
    torch = _torch()
    data = torch.randn(1 << 20, device="cuda")

    def step() -> None:
        data.sort()
        torch.cuda.synchronize()

    return step


def torch_gemm(size: int = 6144, times: int = 10, number: str = "float16") -> Step:
    """Multiply large matrices, which fills the GPU, and synchronise after so many."""
    torch = _torch()
    data = torch.randn(size, size, device="cuda").to(getattr(torch, number))

    def step() -> None:
        for _ in range(times):
            torch.mm(data, data)
        torch.cuda.synchronize()

    return step


def torch_ahead() -> Step:
    """Run a transformer, and wait for the end of the step before by an event."""
    torch = _torch()
    network, data = _encoder(torch, layers=4, size=512), torch.randn(2, 256, 512, device="cuda").half()
    events = [torch.cuda.Event(), torch.cuda.Event()]

    def step() -> None:
        with torch.no_grad():
            network(data)
        events[0].record()
        events[1].synchronize()
        events.reverse()

    return step


def torch_host_work(seconds: float = 0.002) -> Step:
    """Launch a transformer on one token, compute on the CPU, and read the result."""
    torch = _torch()
    network, data = _encoder(torch, layers=3, size=512), torch.randn(8, 1, 512, device="cuda").half()

    def step() -> None:
        with torch.no_grad():
            result = network(data).argmax(-1)
        until = time.thread_time() + seconds
        while time.thread_time() < until:
            pass
        result.tolist()

    return step


def torch_copies(pinned: bool = True) -> Step:
    """Copy 32 MB to the GPU and add one to them, with a pause."""
    torch = _torch()
    host, here = torch.empty(8 << 20, pin_memory=pinned), torch.empty(8 << 20, device="cuda")

    def step() -> None:
        here.copy_(host, non_blocking=True)
        here.add_(1)
        torch.cuda.synchronize()
        time.sleep(0.002)

    return step


def jax_training(size: int = 1024) -> Step:
    """Train a network compiled by JAX, and wait after each four steps."""
    import jax  # type: ignore[import-not-found,unused-ignore]
    import jax.numpy as jnp  # type: ignore[import-not-found,unused-ignore]

    weights = [jnp.ones((size, size), jnp.float32) * 0.01 for _ in range(4)]
    data = jnp.ones((512, size), jnp.float32)

    def loss(weights: Any) -> Any:
        value = data
        for each in weights:
            value = jnp.tanh(value @ each)
        return (value**2).mean()

    update = jax.jit(lambda weights: [w - 1e-3 * g for w, g in zip(weights, jax.grad(loss)(weights), strict=True)])
    steps = 0

    def step() -> None:
        nonlocal weights, steps
        weights = update(weights)
        steps += 1
        if steps % 4 == 0:
            weights[0].block_until_ready()

    return step


def jax_conv() -> Step:
    """Run a small convolution compiled by JAX, and wait after each four steps."""
    import jax
    import jax.numpy as jnp

    kernels, data = jnp.ones((32, 16, 3, 3)), jnp.ones((16, 16, 64, 64))
    run = jax.jit(lambda x: jnp.tanh(jax.lax.conv(x, kernels, (1, 1), "SAME")).sum())
    steps = 0

    def step() -> None:
        nonlocal steps
        found = run(data)
        steps += 1
        if steps % 4 == 0:
            found.block_until_ready()

    return step


def cupy_fft() -> Step:
    """Transform a million numbers, and synchronise after each ten."""
    import cupy  # type: ignore[import-not-found,unused-ignore]

    data = cupy.random.random(1 << 20).astype(cupy.complex64)

    def step() -> None:
        for _ in range(10):
            cupy.fft.fft(data)
        cupy.cuda.Device().synchronize()

    return step


def cupy_sort() -> Step:
    """Sort four million numbers, and read the first."""
    import cupy

    data = cupy.random.random(1 << 22).astype(cupy.float32)

    def step() -> None:
        cupy.sort(data)[:1].get()

    return step


def cupy_elementwise() -> Step:
    """Compute a formula by seven kernels, and synchronise after each forty."""
    import cupy

    data = cupy.random.random(1 << 18).astype(cupy.float32)

    def step() -> None:
        for _ in range(40):
            cupy.sqrt(data * data + 1) - data / 3 + 2
        cupy.cuda.Device().synchronize()

    return step


def cupy_gemm() -> Step:
    """Multiply matrices, and copy a number to the host after each."""
    import cupy

    data = cupy.random.random((2048, 2048)).astype(cupy.float32)

    def step() -> None:
        float(cupy.matmul(data, data)[0, 0])
        time.sleep(0.004)

    return step


def triton_softmax() -> Step:
    """Run a Triton kernel on 4096 rows six times, and synchronise the stream."""
    torch = _torch()
    from lab.attribution.triton_kernels import softmax

    data = torch.randn(4096, 1024, device="cuda")

    def step() -> None:
        for _ in range(6):
            softmax(data)
        torch.cuda.current_stream().synchronize()

    return step


KINDS: dict[str, Callable[[], Step]] = {
    "torch_prefill": torch_prefill,
    "torch_prefill_medium": lambda: torch_prefill(12),
    "torch_prefill_large": lambda: torch_prefill(32),
    "torch_prefill_batch_16": lambda: torch_prefill(16),
    "torch_prefill_length_512": lambda: torch_prefill(length=512),
    "torch_decode": torch_decode,
    "torch_decode_small": lambda: torch_decode(3),
    "torch_small": lambda: torch_add(1024, SMALL_KERNELS),
    "torch_graph": torch_graph,
    "torch_decoder": torch_decoder,
    "torch_decoder_large": lambda: torch_decoder(24, 2048),
    "torch_lstm": torch_lstm,
    "torch_conv": torch_conv,
    "torch_conv_medium": lambda: torch_conv(96),
    "torch_conv_batch_128": lambda: torch_conv(128),
    "torch_conv_large": lambda: torch_conv(256),
    "torch_compiled": torch_compiled,
    "torch_streams": torch_streams,
    "torch_streams_small": lambda: torch_streams(1024),
    "torch_stream": lambda: torch_add(1 << 29),
    "torch_ahead": torch_ahead,
    "torch_host_work": torch_host_work,
    "torch_sort": torch_sort,
    "torch_gemm": torch_gemm,
    "torch_gemm_large": lambda: torch_gemm(8192, 1, "bfloat16"),
    "torch_copies": torch_copies,
    "torch_copies_pageable": lambda: torch_copies(pinned=False),
    "jax_training": jax_training,
    "jax_training_medium": lambda: jax_training(2048),
    "jax_training_large": lambda: jax_training(4096),
    "jax_conv": jax_conv,
    "cupy_fft": cupy_fft,
    "cupy_sort": cupy_sort,
    "cupy_elementwise": cupy_elementwise,
    "cupy_gemm": cupy_gemm,
    "triton_softmax": triton_softmax,
    "stand_in": lambda: lambda: time.sleep(0.01),
}


def main(kind: str, going: Path) -> None:
    """Work while the file exists."""
    steps, goes, ended = 0, threading.Event(), threading.Event()

    def end(*_: object) -> None:
        ended.set()
        goes.set()

    signal.signal(signal.SIGTERM, end)
    step = KINDS[kind]()
    for _ in range(WARM_UP_STEPS):
        step()
    print("ready", flush=True)

    def watch() -> None:
        reported_at = 0.0
        while not ended.is_set():
            if going.exists():
                goes.set()
            else:
                goes.clear()
            if time.monotonic() - reported_at >= REPORT_SECONDS:
                reported_at = time.monotonic()
                print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), steps, flush=True)
            time.sleep(0.02)

    threading.Thread(target=watch, daemon=True).start()
    while not ended.is_set():
        goes.wait()
        step()
        steps += 1
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
