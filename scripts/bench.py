#!/usr/bin/env python3
"""Measures what docs/benchmarks.md reports: each figure beside its ceiling or its peer, taken in the same run.

    make bench                                   everything that this machine allows
    scripts/bench.py [--only NAME ...] [--out FILE]    NAME: model-a tiny gpt2 ranks pipeline checkpoint link covap ddp accuracy
                     [--text FILE]               text for the accuracy figure (default: get_data.sh shakespeare)

Ceilings are measured before and after each figure and the mean of both is taken, since other work on the machine makes
both slower. PyTorch is timed where Debian's python3-torch is installed. Prints a Markdown table; --out appends it.
"""
import argparse
import json
import os
import pathlib
import platform
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
MODELS = {  # layers, heads, channels, vocabulary, context, sequences
    "model-a": (6, 6, 384, 256, 256, 8),
    "tiny": (4, 4, 128, 256, 64, 12),
    "gpt2": (12, 12, 768, 50257, 64, 4),
}
OPENBLAS = pathlib.Path("/usr/lib/x86_64-linux-gnu/openblas-openmp")
rows = []


def report(figure, value, beside, ratio, target):
    rows.append((figure, value, beside, ratio, target))
    print(f"| {figure} | {value} | {beside} | {ratio} | {target} |", flush=True)


def run(command, **env):
    done = subprocess.run([str(c) for c in command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                          env={**os.environ, **{k: str(v) for k, v in env.items()}})
    if done.returncode != 0:
        sys.exit(f"bench: {' '.join(map(str, command))}\nexited with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def pinned(threads):
    return ["taskset", "-c", "0" if threads == 1 else f"0-{threads - 1}"]


def ceiling(threads):
    return json.loads(run([*pinned(threads), BUILD / "tests/bench_ceiling", threads, 2]))


def train_options(model, steps):
    L, H, C, V, T, B = MODELS[model]
    return ["--layers", L, "--heads", H, "--channels", C, "--context", T, "--vocab", V, "--steps", steps, "--eval-every", 0,
            "--eval-batches", 1, "--log-every", 1000, "--data", "data/shards/austen"]


def steps_of(run_dir):
    records = [json.loads(line) for line in (pathlib.Path(run_dir) / "metrics.jsonl").read_text().splitlines()]
    return [r for r in records if r["event"] == "step"][2:]  # the first two pay for page faults and library start-up


def median(records, field):
    return statistics.median(r[field] for r in records)


def mean(records, field):
    return statistics.mean(r[field] for r in records)


def train(model, steps, launcher, threads, batch, *more):
    with tempfile.TemporaryDirectory() as folder:
        run([*launcher, BUILD / "tandem", "train", *train_options(model, steps), "--batch-size", batch, "--threads", threads,
             "--run-dir", folder, *more])
        return steps_of(folder)


def gflop(model):
    """6 x matrix parameters + 12 x layers x channels x context per token."""
    L, H, C, V, T, B = MODELS[model]
    matrices = L * (12 * C * C + 13 * C) + V * C + 2 * C
    return 1e-9 * (6 * matrices + 12 * L * C * T) * B * T


def peer_environment(threads):
    core = "SKYLAKEX" if "avx512f" in pathlib.Path("/proc/cpuinfo").read_text() else "HASWELL"
    return {"OMP_NUM_THREADS": threads, "OPENBLAS_CORETYPE": core, "LD_LIBRARY_PATH": OPENBLAS}


def pytorch(model, threads, steps):
    """PyTorch at its best here: with OpenBLAS built for OpenMP (its own thread pool fights PyTorch's) and told the right core,
    which its version in Debian 12 does not find on newer processors. Without OpenBLAS, PyTorch is no peer to beat."""
    found = subprocess.run(["/usr/bin/python3", "-c", "import torch"], stderr=subprocess.DEVNULL).returncode == 0
    if not found or not OPENBLAS.exists():
        print("no peer: needs python3-torch and libopenblas0-openmp", file=sys.stderr)
        return None
    return json.loads(run([*pinned(threads), "/usr/bin/python3", "scripts/bench_pytorch.py", *MODELS[model], steps],
                          **peer_environment(threads)))


def bench_model(model, threads, steps, target, peer_steps, peer_target):
    before = ceiling(threads)
    records = train(model, steps, pinned(threads), threads, MODELS[model][5])
    after = ceiling(threads)
    top = (before["sgemm_gflops"] + after["sgemm_gflops"]) / 2
    ms, tokens = median(records, "step_ms"), median(records, "tokens_per_s")
    rate = gflop(model) / ms * 1e3
    name = f"{model}, {threads} thread{'s' if threads > 1 else ''}"
    report(f"{name}: step", f"{ms:.1f} ms = {rate:.1f} GFLOP/s, {tokens:.0f} tokens/s", f"sgemm 2048^3 {top:.1f} GFLOP/s",
           f"{100 * rate / top:.1f} %", target)
    report(f"{name}: peak memory", f"{median(records, 'memory_bytes') / 1e9:.2f} GB", "", "",
           "< 1.0 GB" if model == "model-a" else "")
    peer = pytorch(model, threads, peer_steps) if peer_steps else None
    if peer:
        report(f"{name}: beside PyTorch", f"{ms:.1f} ms", f"{peer['peer']}: {peer['step_ms']:.1f} ms",
               f"{peer['step_ms'] / ms:.2f} x as fast", peer_target)
    return records, (before["triad_gbs"] + after["triad_gbs"]) / 2


def bench_optimizer(records, triad, model):
    L, H, C, V, T, B = MODELS[model]
    parameters = L * (12 * C * C + 13 * C) + V * C + T * C + 2 * C
    floor = 28 * parameters / triad * 1e-6
    ms = median(records, "optimizer_ms")
    report(f"{model}: AdamW and clipping", f"{ms:.0f} ms", f"28 bytes x {parameters / 1e6:.1f} M at {triad:.1f} GB/s: {floor:.0f} ms",
           f"{ms / floor:.2f} x the floor", "<= 1.3 x")


def bench_ranks():
    """Two ranks on two cores against one rank on one, each with the model-a batch; rounds alternate, medians count."""
    mpirun = ROOT / "scripts/mpirun.sh"
    alone, both = [], []
    for _ in range(3):
        alone += train("model-a", 8, [mpirun, "-np", 1], 1, 8)
        both += train("model-a", 8, [mpirun, "-np", 2], 1, 16)
    one, two = median(alone, "tokens_per_s"), median(both, "tokens_per_s")
    report("model-a, 2 ranks on 2 cores", f"{two:.0f} tokens/s, {median(both, 'step_ms'):.0f} ms a step",
           f"2 x one rank alone: {2 * one:.0f} tokens/s", f"{100 * two / (2 * one):.1f} %", ">= 95 %")
    report("model-a, 2 ranks: all-reduce of 43 MB", f"{median(both, 'comm_ms'):.1f} ms under way",
           f"exposed {median(both, 'comm_exposed_ms'):.1f} ms", "", "hidden")
    # One rank beside an independent one: what sharing the machine costs without any message.
    with tempfile.TemporaryDirectory() as folder:
        jobs = [subprocess.Popen([str(c) for c in ["taskset", "-c", str(i), BUILD / "tandem", "train", *train_options("model-a", 12),
                                                   "--batch-size", 8, "--threads", 1, "--run-dir", f"{folder}/{i}"]],
                                 cwd=ROOT, stdout=subprocess.DEVNULL) for i in range(2)]
        for job in jobs:
            job.wait()
        apart = sum(median(steps_of(f"{folder}/{i}")[2:-2], "tokens_per_s") for i in range(2))
    report("the same beside two runs that do not talk", f"{two:.0f} tokens/s", f"{apart:.0f} tokens/s", f"{100 * two / apart:.1f} %", "")


def bench_pipeline():
    """Two stages on two cores against one rank on one, both with the model-a batch in eight micro-batches; rounds alternate."""
    mpirun, m, p = ROOT / "scripts/mpirun.sh", 8, 2
    alone, stages = [], {"1f1b": [], "zb-h1": []}
    for _ in range(2):
        alone += train("model-a", 8, [mpirun, "-np", 1], 1, 8, "--micro-batch", 1)
        for schedule, records in stages.items():
            records += train("model-a", 8, [mpirun, "-np", p], 1, 8, "--micro-batch", 1, "--pp", p, "--schedule", schedule)
    one = median(alone, "step_ms")
    for schedule, records in stages.items():
        plan = run([BUILD / "tandem", "plan", "--show-schedule", "--pp", p, "--micro-batches", m, "--schedule", schedule])
        bubble = float(re.search(r"bubble +([\d.]+) %", plan).group(1)) / 100
        step, ideal = median(records, "step_ms"), one / p / (1 - bubble)
        report(f"model-a, 2 stages on 2 cores, 8 micro-batches, {schedule}",
               f"{step:.0f} ms, waiting {median(records, 'bubble_ms'):.0f} ms = {100 * median(records, 'bubble_ms') / step:.1f} %",
               f"bubble by the schedule {100 * bubble:.1f} %; half of one rank's {one:.0f} ms with it {ideal:.0f} ms",
               f"{step / ideal:.2f} x", "<= 1.10 x")


def bench_checkpoint():
    """GPT-2 124M: what writing checkpoints in the background, one after the other, costs the steps meanwhile."""
    threads, steps, every = os.cpu_count(), 26, 6
    with_it, without, pauses = [], [], []
    for _ in range(2):
        for records, more in ((without, []), (with_it, ["--checkpoint-every", every, "--keep", 1])):
            started = time.time()
            records += train("gpt2", steps, pinned(threads), threads, 4, *more)
            pauses.append(time.time() - started)
    ours, floor = mean(with_it, "step_ms"), mean(without, "step_ms")
    checkpoints = (steps - 1) // every
    report(f"gpt2, a checkpoint every {every} steps in the background", f"{ours:.0f} ms a step (mean)", f"without: {floor:.0f} ms",
           f"{100 * (ours / floor - 1):+.1f} %", "< 5 %")
    report("  the whole run", f"{pauses[1] + pauses[3]:.0f} s", f"{pauses[0] + pauses[2]:.0f} s",
           f"{(pauses[1] + pauses[3] - pauses[0] - pauses[2]) / (2 * checkpoints):+.2f} s a checkpoint", "")


def needs_root():
    if os.geteuid() != 0:
        print("link figures need root (network namespaces): left out", file=sys.stderr)
    return os.geteuid() != 0


def bench_link():
    if needs_root():
        return
    for hosts, rate, algorithm in [(h, r, a) for h in (2, 3) for r in (1000, 250) for a in ("direct", "mpi")]:
        text = run([ROOT / "scripts/virtual_cluster.sh", "--hosts", hosts, "--rate", f"{rate}mbit", "--",
                    BUILD / "tests/bench_allreduce", rate, algorithm, 43.4, 50, 5])
        alone = re.search(r"alone +([\d.]+) ms .* ([\d.]+) % of the link", text)
        beside = re.search(r"beside +([\d.]+) ms .* ([\d.]+) % of the link", text)
        slower = re.search(r"slower by ([-\d.]+) %, by cpu time ([-\d.]+) %", text)
        ideal = 2 * (hosts - 1) / hosts * 43.4 * 8 / rate * 1e3
        ours = algorithm == "direct"
        name = f"43.4 MB, {hosts} hosts, {rate} Mbit/s, {algorithm}"
        report(f"all-reduce of {name}", f"{alone[1]} ms", f"ideal {ideal:.0f} ms", f"{alone[2]} % of the link", ">= 85 %" if ours else "")
        report("  beside a computing thread on its core", f"{beside[1]} ms", "", f"{beside[2]} % of the link", "")
        report("  that thread", f"{slower[1]} % slower", f"{slower[2]} % more CPU time", "", "<= 8 %" if ours else "")


def cluster(hosts, rate, command, **env):
    return run([ROOT / "scripts/virtual_cluster.sh", "--hosts", hosts, "--rate", f"{rate:.0f}mbit", "--", *command], **env)


def on_hosts(hosts, rate, steps, sequences, *more):
    """Model A, so many sequences a rank, on virtual hosts; the step records after the first two steps, whose times are the slowest rank's."""
    with tempfile.TemporaryDirectory() as folder:
        options = " ".join(str(word) for word in [*train_options("model-a", steps), "--threads", 1, *more])
        alone = "self" in more  # then each host has a run of its own
        batch, run_dir = (sequences, f"{folder}/$OMPI_COMM_WORLD_RANK") if alone else (sequences * hosts, f"{folder}/0")
        cluster(hosts, rate, ["bash", "-c", f"cd {ROOT} && exec {BUILD}/tandem train {options} --batch-size {batch} --run-dir {run_dir}"])
        runs = [steps_of(f"{folder}/{i}") for i in range(hosts if alone else 1)]
        return [{f: max(r[f] or 0 for r in same) for f in ("step_ms", *PARTS, "comm_ms", "compress_ms")}
                | {"interval": same[0]["interval"]} for same in zip(*runs)]


PARTS = ("forward_ms", "backward_ms", "comm_exposed_ms", "optimizer_ms")


def parts(records):
    return ", ".join(f"{f[:-3].replace('comm_', '')} {mean(records, f):.0f}" for f in PARTS)


def no_communication(hosts, sequences):
    """The same ranks side by side, each for itself. A step takes as long as the slowest rank's, as it would on a perfect network."""
    return on_hosts(hosts, 1000, 10, sequences, "--comm", "self")


def tune_on_hosts(hosts, rate, sequences):
    """What --interval auto decides, as options that say so from the start."""
    with tempfile.TemporaryDirectory() as folder:
        options = " ".join(str(word) for word in [*train_options("model-a", 11), "--threads", 1, "--batch-size", sequences * hosts])
        text = cluster(hosts, rate, ["bash", "-c", f"cd {ROOT} && exec {BUILD}/tandem train {options} --compress covap --run-dir {folder} 2>&1"])
    interval, mib = re.search(r"interval (\d+), \d+ units of about ([\d.]+) MiB", text).groups()
    return int(interval), ["--compress", "covap", "--interval", interval, "--bucket-mib", mib, "--compress-start", 1]


def alternate(hosts, rate, sequences, rounds):
    """COVAP as --interval auto sets it, and the same ranks without communication, in turn: the machine's speed drifts."""
    alone, covap = [], []
    interval, options = tune_on_hosts(hosts, rate, sequences)
    for _ in range(rounds):
        alone += no_communication(hosts, sequences)
        covap += on_hosts(hosts, rate, 3 + max(1, 9 // interval) * interval, sequences, *options)[1:]
    return interval, alone, covap


def bench_covap():
    """COVAP on slow links against the same ranks without any communication and against dense overlapped reductions. The rate is
    what makes the dense reductions take 2 and 4 times the backward pass."""
    if needs_root():
        return
    for hosts in (2, 4):
        megabits = 2 * (hosts - 1) / hosts * 43.4 * 8
        backward = mean(no_communication(hosts, 4), "backward_ms")
        for ratio in (2, 4):
            rate = megabits / (ratio * backward) * 1e3
            dense = on_hosts(hosts, rate, 8, 4)
            interval, alone, covap = alternate(hosts, rate, 4, 4)
            name, floor = f"{hosts} hosts, {rate:.0f} Mbit/s", mean(alone, "step_ms")
            report(f"{name}: no communication", f"{floor:.0f} ms", parts(alone), "", "")
            report(f"{name}: dense, overlapped", f"{mean(dense, 'step_ms'):.0f} ms, communication {mean(dense, 'comm_ms'):.0f} ms",
                   parts(dense), f"{mean(dense, 'step_ms') / floor:.2f} x no communication", "")
            step = mean(covap, "step_ms")
            report(f"{name}: COVAP auto, I = {interval}", f"{step:.0f} ms, compression {mean(covap, 'compress_ms'):.1f} ms = "
                   f"{100 * mean(covap, 'compress_ms') / step:.1f} %", parts(covap), f"{step / floor:.3f} x no communication", "<= 1.05 x")


def bench_ddp():
    """Two hosts, model A, 8 sequences a rank: what PyTorch's DDP over gloo and tandem's reductions add to a step."""
    if needs_root() or not pytorch("tiny", 1, 1):
        return
    command = ["/usr/bin/python3", "scripts/bench_pytorch.py", *MODELS["model-a"], 5]

    def peer(rate, *hook):
        text = cluster(2, rate, [*command, *hook], MASTER_ADDR="10.77.0.1", GLOO_SOCKET_IFNAME="eth0", **peer_environment(1))
        return json.loads(text.splitlines()[0])["step_ms"]

    def line(name, ms, alone, target=""):
        report(name, f"{ms:.0f} ms", f"no communication {alone:.0f} ms", f"{ms / alone:.3f} x, exposed {ms - alone:.0f} ms", target)

    alone = peer(1000)
    for rate, hook in ((1000, "none"), (1000, "powersgd"), (1000, "fp16"), (250, "none")):
        line(f"PyTorch DDP, gloo, {rate} Mbit/s, {hook}", peer(rate, hook), alone)
    dense = {rate: on_hosts(2, rate, 9, 8) for rate in (1000, 250)}
    interval, ours, covap = alternate(2, 250, 8, 2)
    floor = mean(ours, "step_ms")
    for rate in (1000, 250):
        step, under_way = mean(dense[rate], "step_ms"), mean(dense[rate], "comm_ms")
        line(f"tandem, {rate} Mbit/s, dense: {100 * (1 - (step - floor) / under_way):.0f} % of {under_way:.0f} ms hidden", step, floor,
             ">= 80 % hidden" if rate == 1000 else "")
    line(f"tandem, 250 Mbit/s, COVAP auto, I = {interval}", mean(covap, "step_ms"), floor, "<= 1.05 x")


def bench_accuracy(text):
    """nanoGPT's published CPU setting on tinyshakespeare; three seeds."""
    text = text or run(["scripts/get_data.sh", "shakespeare"]).split()[-1]
    with tempfile.TemporaryDirectory() as folder:
        run([BUILD / "tandem", "data", "build", text, "--out", f"{folder}/shards"])
        losses, seconds = [], []
        for seed in (1, 2, 3):
            start = time.time()
            run([*pinned(1), BUILD / "tandem", "train", "--model", "nano", "--data", f"{folder}/shards", "--run-dir",
                 f"{folder}/run", "--threads", 1, "--seed", seed, "--eval-every", 0])
            seconds.append(time.time() - start)
            end = json.loads((pathlib.Path(folder) / "run/metrics.jsonl").read_text().splitlines()[-1])
            losses.append(end["val_loss"])
    report("accuracy: nanoGPT's CPU setting, tinyshakespeare", f"validation loss {statistics.mean(losses):.4f} (seeds: "
           + ", ".join(f"{x:.4f}" for x in losses) + ")", "nanoGPT's README: 1.88", "", "<= 1.88")
    peer = pytorch("tiny", 1, 40)
    if peer:
        report("  its wall time, one thread", f"{statistics.median(seconds):.0f} s",
               f"2,000 of PyTorch's steps here: {2 * peer['step_ms']:.0f} s",
               f"{statistics.median(seconds) / (2 * peer['step_ms']):.2f} of it", "<= 0.5")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=["model-a", "tiny", "gpt2", "ranks", "pipeline", "checkpoint", "link", "covap", "ddp", "accuracy"])
    parser.add_argument("--out")
    parser.add_argument("--text")
    a = parser.parse_args()
    if not (ROOT / "data/shards/austen").exists():
        text = run(["scripts/get_data.sh", "austen"]).split()[-1]
        run([BUILD / "tandem", "data", "build", text, "--out", "data/shards/austen"])
    cpu = re.search(r"model name\s*: (.*)", pathlib.Path("/proc/cpuinfo").read_text()).group(1)
    flags = pathlib.Path("/proc/cpuinfo").read_text()
    print(f"{time.strftime('%Y-%m-%d')}, {cpu}, {os.cpu_count()} cores, {'AVX-512' if 'avx512f' in flags else 'AVX2'}, "
          f"Linux {platform.release()}\n\n| figure | measured | beside | ratio | to reach |\n|---|---|---|---|---|")
    cores = os.cpu_count()
    for name in a.only:
        if name == "model-a":
            bench_model("model-a", 1, 14, ">= 85 %", 6, "")
            if cores > 1:
                bench_model("model-a", 2, 16, ">= 83 %", 8, "")
        elif name == "tiny":
            bench_model("tiny", 1, 150, "", 60, ">= 2 x")
        elif name == "gpt2":
            records, triad = bench_model("gpt2", 1, 9, "", 5, ">= 1.38 x")
            bench_optimizer(records, triad, "gpt2")
        elif name == "ranks" and cores > 1:
            bench_ranks()
        elif name == "pipeline" and cores > 1:
            bench_pipeline()
        elif name == "checkpoint":
            bench_checkpoint()
        elif name == "link":
            bench_link()
        elif name == "covap":
            bench_covap()
        elif name == "ddp":
            bench_ddp()
        elif name == "accuracy":
            bench_accuracy(a.text)
    if a.out:
        with open(a.out, "a") as f:
            f.writelines(f"| {' | '.join(row)} |\n" for row in rows)


if __name__ == "__main__":
    main()
