"""PyTorch's step on a GPU for the models of run.sh: bf16 by autocast, fp32 weights, AdamW.

    peer_torch.py plain|flash|compiled LAYERS WIDTH HEADS VOCAB CONTEXT BATCH STEPS

plain: attention by products and softmax, eager. flash: PyTorch's own flash attention, eager.
compiled: the same through torch.compile. Prints one JSON line: step_s (median of the later
steps), loss of the first step, version.
"""
import contextlib
import json
import os
import statistics
import sys
import time

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "bench"))
from peer_torch import Model  # noqa: E402


def attention(how):
    """Which attention is allowed, by the names of the PyTorch at hand."""
    try:
        from torch.nn.attention import SDPBackend, sdpa_kernel
        return sdpa_kernel(SDPBackend.MATH if how == "plain" else SDPBackend.FLASH_ATTENTION)
    except ImportError:
        pass
    if hasattr(torch.backends.cuda, "sdp_kernel"):
        return torch.backends.cuda.sdp_kernel(enable_flash=how != "plain",
                                              enable_math=how == "plain",
                                              enable_mem_efficient=False)
    return contextlib.nullcontext()


def main():
    how = sys.argv[1]
    layers, width, heads, vocab, context, batch, steps = map(int, sys.argv[2:])
    torch.manual_seed(1)
    torch.set_float32_matmul_precision("high")
    torch.set_default_device("cuda")
    model = Model(layers, width, heads, vocab, context)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    step = torch.compile(model) if how == "compiled" else model
    times, first = [], None
    for _ in range(steps):
        data = torch.randint(0, vocab, (batch, context + 1))
        torch.cuda.synchronize()
        start = time.perf_counter()
        with attention(how), torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step(data[:, :-1], data[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        first = loss.item() if first is None else first
    later = times[1 + steps // 4:] or times
    print(json.dumps({"step_s": statistics.median(later), "loss": first,
                      "torch": torch.__version__}))


main()
