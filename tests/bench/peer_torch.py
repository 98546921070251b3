"""PyTorch's step on the models of bench.sh: forward, backward, AdamW, fp32.

    peer_torch.py LAYERS WIDTH HEADS VOCAB CONTEXT BATCH SEQUENCE STEPS THREADS

Prints one JSON line: step_s (median of the later steps), loss of the first
step, parameters, version. Same operators as examples/gpt2.tcube: pre-norm,
fused q k v, tanh GELU, learned positions, tied head, no dropout.
bench.sh sets the environment that is best for PyTorch before Python starts.
"""
import json
import math
import statistics
import sys
import time

import torch
import torch.nn.functional as F


class Layer(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = torch.nn.LayerNorm(width)
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.proj = torch.nn.Linear(width, width)
        self.ln_2 = torch.nn.LayerNorm(width)
        self.fc = torch.nn.Linear(width, 4 * width)
        self.out = torch.nn.Linear(4 * width, width)

    def attention(self, x, mask):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        if hasattr(F, "scaled_dot_product_attention"):
            a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        else:
            s = q @ k.transpose(-2, -1) * (1 / math.sqrt(c // self.heads))
            a = torch.softmax(s.masked_fill_(mask, -math.inf), dim=-1) @ v
        return self.proj(a.transpose(1, 2).reshape(b, t, c))

    def forward(self, x, mask):
        x = x + self.attention(self.ln_1(x), mask)
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class Model(torch.nn.Module):
    def __init__(self, layers, width, heads, vocab, context):
        super().__init__()
        self.wte = torch.nn.Embedding(vocab, width)
        self.wpe = torch.nn.Embedding(context, width)
        self.h = torch.nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(width)
        for p in self.parameters():
            if p.dim() == 2:
                torch.nn.init.normal_(p, std=0.02)

    def forward(self, tokens, targets):
        t = tokens.shape[1]
        mask = torch.ones(t, t, dtype=torch.bool).triu(1)
        x = self.wte(tokens) + self.wpe.weight[:t]
        for layer in self.h:
            x = layer(x, mask)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


def optimizer_of(model):
    """The fastest AdamW this version has on a CPU: fused, else plain."""
    try:
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        for p in model.parameters():        # old versions refuse at the first step
            p.grad = torch.zeros_like(p)
        optimizer.step()
        return optimizer, "fused"
    except (RuntimeError, TypeError, AssertionError):
        return torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False), "plain"


def main():
    layers, width, heads, vocab, context, batch, sequence, steps, threads = map(int, sys.argv[1:])
    torch.manual_seed(1)
    torch.set_num_threads(threads)
    model = Model(layers, width, heads, vocab, context)
    optimizer, kind = optimizer_of(model)
    times, first = [], None
    for _ in range(steps):
        data = torch.randint(0, vocab, (batch, sequence + 1))
        start = time.perf_counter()
        loss = model(data[:, :-1], data[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        times.append(time.perf_counter() - start)
        first = loss.item() if first is None else first
    later = times[1 + steps // 4:] or times
    print(json.dumps({
        "step_s": statistics.median(later), "best_s": min(later), "loss": first,
        "parameters": sum(p.numel() for p in model.parameters()),
        "adamw": kind, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
