#!/usr/bin/env python3
"""Makes the reference vectors in this folder with PyTorch: weights, every gradient of the first step, and the losses and
gradient norms of a few optimizer steps, computed in double precision by autograd from a plain GPT-2.

    python3 tests/ref/make_reference.py         (needs python3-torch and python3-numpy; writes tests/ref/<case>/)

Format of a case, which tests/test_reference.c follows: model.safetensors and config.json as Hugging Face has them, text.bin
(one token per byte), gradients.safetensors (step 0, before clipping), steps.jsonl (byte offsets of each sequence in
text.bin, loss, gradient norm before clipping). AdamW, lr 1e-3, betas 0.9 and 0.99, eps 1e-8, weight decay 0.1 on matrices,
clipping at 1.0.

One case also has gradients-bf16.safetensors and bf16.json (loss) of step 0: the same in double precision, but rounded where
tandem rounds (docs/ARCHITECTURE.md, Precision). Only one, and small: an element that fp32 and double sums round to different
sides changes what follows, so that the larger a model and the finer a format, the less the two agree.
"""
import json
import math
import pathlib
import struct

import numpy
import torch
import torch.nn.functional as F

HERE = pathlib.Path(__file__).resolve().parent
CASES = {
    "tied": dict(layers=2, heads=3, channels=24, context=19, vocab=61, batch=3, tied=True, steps=12, seed=1, half="bf16"),
    "untied": dict(layers=3, heads=2, channels=20, context=33, vocab=47, batch=2, tied=False, steps=12, seed=2, half=None),
    "long": dict(layers=1, heads=2, channels=16, context=150, vocab=32, batch=2, tied=True, steps=6, seed=3, half=None),
}


def parameters(c):
    """Weights away from their usual start (biases and norms too), so that every gradient matters. Rounded to fp32."""
    C, g = c["channels"], torch.Generator().manual_seed(c["seed"])
    shapes = {"transformer.wte.weight": (c["vocab"], C), "transformer.wpe.weight": (c["context"], C),
              "transformer.ln_f.weight": (C,), "transformer.ln_f.bias": (C,)}
    for i in range(c["layers"]):
        for name, shape in {"ln_1.weight": (C,), "ln_1.bias": (C,), "attn.c_attn.weight": (C, 3 * C),
                            "attn.c_attn.bias": (3 * C,), "attn.c_proj.weight": (C, C), "attn.c_proj.bias": (C,),
                            "ln_2.weight": (C,), "ln_2.bias": (C,), "mlp.c_fc.weight": (C, 4 * C),
                            "mlp.c_fc.bias": (4 * C,), "mlp.c_proj.weight": (4 * C, C), "mlp.c_proj.bias": (C,)}.items():
            shapes[f"transformer.h.{i}.{name}"] = shape
    if not c["tied"]:
        shapes["lm_head.weight"] = (c["vocab"], C)
    result = {}
    for name, shape in shapes.items():
        value = torch.randn(shape, generator=g) * (0.2 if len(shape) == 2 else 0.1)
        if "ln_" in name and name.endswith("weight"):
            value += 1
        result[name] = value.float().double().requires_grad_()
    return result


def rounding(half):
    """Functions that round to the format on the way forward, backward, or both; None rounds nothing."""
    def to_half(x):
        return x.to({"bf16": torch.bfloat16, "fp16": torch.float16}[half]).double() if half else x

    def function(forward, backward):
        class Round(torch.autograd.Function):
            @staticmethod
            def forward(_, x):
                return to_half(x) if forward else x.clone()

            @staticmethod
            def backward(_, gradient):
                return to_half(gradient) if backward else gradient
        return Round.apply
    return function(True, True), function(True, False), function(False, True)


class Attention(torch.autograd.Function):
    """softmax(q k^T / sqrt(width)) v as it is computed in tiles: the backward pass knows the output as it was rounded."""
    @staticmethod
    def forward(ctx, q, k, v, to_half):
        T = q.shape[2]
        mask = torch.full((T, T), -math.inf, dtype=torch.double).triu(1)
        p = torch.softmax(q @ k.transpose(2, 3) / math.sqrt(q.shape[3]) + mask, 3)
        out = to_half(p @ v)
        ctx.save_for_backward(q, k, v, p, out)
        return out

    @staticmethod
    def backward(ctx, gradient):
        q, k, v, p, out = ctx.saved_tensors
        delta = (gradient * out).sum(3, keepdim=True)
        ds = p * (gradient @ v.transpose(2, 3) - delta) / math.sqrt(q.shape[3])
        return ds @ k, ds.transpose(2, 3) @ q, p.transpose(2, 3) @ gradient, None


class Gelu(torch.autograd.Function):
    """Rounded; of x as it is, while the derivative is that at x as it was kept: rounded."""
    @staticmethod
    def forward(ctx, x, to_half):
        ctx.save_for_backward(to_half(x))
        return to_half(F.gelu(x, approximate="tanh"))

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].requires_grad_()
            return torch.autograd.grad(F.gelu(x, approximate="tanh"), x, gradient)[0], None


def loss_of(p, c, x, y, half=None):
    B, T = x.shape
    C, H = c["channels"], c["heads"]
    both, forward, backward = rounding(half)
    weight = {k: forward(v) if "ln_" not in k and "wpe" not in k and "wte" not in k else v for k, v in p.items()}
    h = p["transformer.wte.weight"][x] + p["transformer.wpe.weight"][:T]
    for i in range(c["layers"]):
        w = {k.split(f"h.{i}.")[1]: v for k, v in weight.items() if f".h.{i}." in k}
        a = both(F.layer_norm(h, (C,), w["ln_1.weight"], w["ln_1.bias"], 1e-5))
        q, k, v = both(a @ w["attn.c_attn.weight"] + w["attn.c_attn.bias"]).split(C, 2)
        q, k, v = (z.view(B, T, H, C // H).transpose(1, 2) for z in (q, k, v))
        s = backward(Attention.apply(q, k, v, forward))
        h = h + both(s.transpose(1, 2).reshape(B, T, C) @ w["attn.c_proj.weight"] + w["attn.c_proj.bias"])
        a = both(F.layer_norm(h, (C,), w["ln_2.weight"], w["ln_2.bias"], 1e-5))
        a = backward(Gelu.apply(backward(a @ w["mlp.c_fc.weight"]) + w["mlp.c_fc.bias"], forward))
        h = h + both(a @ w["mlp.c_proj.weight"] + w["mlp.c_proj.bias"])
    h = both(F.layer_norm(h, (C,), p["transformer.ln_f.weight"], p["transformer.ln_f.bias"], 1e-5))
    logits = both(h @ forward(p["transformer.wte.weight" if c["tied"] else "lm_head.weight"]).T)
    return F.cross_entropy(logits.reshape(B * T, -1), y.reshape(-1))


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, value in tensors.items():
        raw = value.detach().float().numpy().astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def make_half(out, p, c, x, y):
    for value in p.values():
        value.grad = None
    loss = loss_of(p, c, x, y, c["half"])
    loss.backward()
    write_safetensors(out / f"gradients-{c['half']}.safetensors", {k: v.grad for k, v in p.items()})
    (out / f"{c['half']}.json").write_text(json.dumps({"loss": loss.item()}) + "\n")


def make(name, c):
    out = HERE / name
    out.mkdir(exist_ok=True)
    p = parameters(c)
    rng = numpy.random.RandomState(c["seed"])
    text = rng.randint(0, c["vocab"], 4000).astype(numpy.uint8)
    (out / "text.bin").write_bytes(text.tobytes())
    write_safetensors(out / "model.safetensors", p)
    (out / "config.json").write_text(json.dumps({
        "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": c["vocab"], "n_positions": c["context"],
        "n_embd": c["channels"], "n_layer": c["layers"], "n_head": c["heads"], "tie_word_embeddings": c["tied"]}, indent=1))
    matrices = [v for v in p.values() if v.dim() == 2]
    vectors = [v for v in p.values() if v.dim() == 1]
    optimizer = torch.optim.AdamW([{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}],
                                  lr=1e-3, betas=(0.9, 0.99), eps=1e-8)
    lines = []
    for step in range(c["steps"]):
        offsets = rng.randint(0, len(text) - c["context"] - 1, c["batch"])
        x = torch.tensor(numpy.stack([text[o:o + c["context"]] for o in offsets]).astype("int64"))
        y = torch.tensor(numpy.stack([text[o + 1:o + 1 + c["context"]] for o in offsets]).astype("int64"))
        if step == 0 and c["half"]:
            make_half(out, p, c, x, y)
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(p, c, x, y)
        loss.backward()
        if step == 0:
            write_safetensors(out / "gradients.safetensors", {k: v.grad for k, v in p.items()})
        norm = torch.nn.utils.clip_grad_norm_(p.values(), 1.0)
        optimizer.step()
        lines.append(json.dumps({"step": step, "offsets": offsets.tolist(), "loss": loss.item(), "grad_norm": norm.item()}))
    (out / "steps.jsonl").write_text("\n".join(lines) + "\n")


for case, config in CASES.items():
    make(case, config)
