#!/usr/bin/env python3
"""One training step of the same GPT-2 in PyTorch, timed: the peer that scripts/bench.py sets beside tandem.

    OMP_NUM_THREADS=1 bench_pytorch.py LAYERS HEADS CHANNELS VOCAB CONTEXT SEQUENCES STEPS [none|fp16|powersgd]

The last argument: DistributedDataParallel over gloo between the ranks that mpirun has started, with that communication hook, SEQUENCES
each; MASTER_ADDR names the host of rank 0. Rank 0 prints.

fp32, tied head, tanh GELU, clipping at 1.0, AdamW in two groups; median of STEPS after three warm-up steps, as one JSON line.
"""
import json
import math
import os
import statistics
import sys
import time

import torch
import torch.nn as nn
import torch.nn.functional as F


class Block(nn.Module):
    def __init__(self, C, H, T):
        super().__init__()
        self.H = H
        self.ln_1, self.ln_2 = nn.LayerNorm(C), nn.LayerNorm(C)
        self.qkv, self.proj = nn.Linear(C, 3 * C), nn.Linear(C, C)
        self.fc, self.fc2 = nn.Linear(C, 4 * C), nn.Linear(4 * C, C)
        self.register_buffer("mask", torch.full((T, T), -math.inf).triu(1))

    def forward(self, x):
        B, T, C = x.shape
        q, k, v = (z.view(B, T, self.H, C // self.H).transpose(1, 2) for z in self.qkv(self.ln_1(x)).split(C, 2))
        s = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(C // self.H) + self.mask[:T, :T], 3)
        x = x + self.proj((s @ v).transpose(1, 2).reshape(B, T, C))
        return x + self.fc2(F.gelu(self.fc(self.ln_2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, L, H, C, V, T):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(V, C), nn.Embedding(T, C)
        self.blocks, self.ln_f = nn.ModuleList(Block(C, H, T) for _ in range(L)), nn.LayerNorm(C)
        for p in self.parameters():
            if p.dim() == 2:
                nn.init.normal_(p, std=0.02)

    def forward(self, x, y):
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return F.cross_entropy((self.ln_f(h) @ self.wte.weight.T).flatten(0, 1), y.flatten())


def distribute(model, hook):
    import torch.distributed.algorithms.ddp_comm_hooks as hooks
    os.environ.setdefault("MASTER_PORT", "29511")
    torch.distributed.init_process_group("gloo", rank=int(os.environ["OMPI_COMM_WORLD_RANK"]),
                                         world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]))
    model = nn.parallel.DistributedDataParallel(model)
    if hook == "fp16":
        model.register_comm_hook(None, hooks.default_hooks.fp16_compress_hook)
    elif hook == "powersgd":
        state = hooks.powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=4, start_powerSGD_iter=2)
        model.register_comm_hook(state, hooks.powerSGD_hook.powerSGD_hook)
    elif hook != "none":
        sys.exit(f"found hook '{hook}', expected none, fp16 or powersgd")
    return model


L, H, C, V, T, B, steps = map(int, sys.argv[1:8])
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
torch.manual_seed(1)
model = GPT(L, H, C, V, T)
if len(sys.argv) > 8:
    model = distribute(model, sys.argv[8])
groups = [{"params": [p for p in model.parameters() if p.dim() == d], "weight_decay": w} for d, w in ((2, 0.1), (1, 0.0))]
optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, 0.99))
times = []
for step in range(steps + 3):
    x, y = torch.randint(V, (B, T)), torch.randint(V, (B, T))
    start = time.perf_counter()
    loss = model(x, y)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    times.append(1e3 * (time.perf_counter() - start))
if os.environ.get("OMPI_COMM_WORLD_RANK", "0") == "0":
    print(json.dumps({"peer": f"PyTorch {torch.__version__}", "threads": torch.get_num_threads(),
                      "step_ms": statistics.median(times[3:]), "tokens_per_s": B * T / statistics.median(times[3:]) * 1e3}))
