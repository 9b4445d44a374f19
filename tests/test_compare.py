"""tandem compare: its figures are those of the runs' metrics files, it goes on where it was interrupted, it says what is unfair."""
import csv
import json
import math
import os
import signal
import statistics
import subprocess
import time

import pytest

from conftest import ROOT, TANDEM, TINY, mpirun, read_events, run, steps_of

USAGE, STOPPED = 2, 75
T_95 = {1: 6.313752, 2: 2.919986, 3: 2.353363, 4: 2.131847}  # Student's t by degrees of freedom, from a table
SHORT = {**TINY, "steps": 12, "batch_size": 6, "eval_batches": 2}


def compare_command(shards, run_dir, ranks=0, **options):
    words = [TANDEM, "compare", f"--data={shards}", f"--run-dir={run_dir}"]
    words += [f"--{name.replace('_', '-')}={value}" for name, value in {**SHORT, **options}.items()]
    return mpirun(ranks, *words) if ranks else ["env", "OMP_NUM_THREADS=1"] + words


def compare(shards, run_dir, ranks=0, **options):
    """Compares to the end; what it printed and compare.json, with the methods by name."""
    done = run(compare_command(shards, run_dir, ranks, **options))
    result = json.loads((run_dir / "compare.json").read_text())
    return done.stdout, result, {method["method"]: method for method in result["methods"]}


def refusal(shards, run_dir, ranks=0, **options):
    done = run(compare_command(shards, run_dir, ranks, **options), code=USAGE)
    lines = [line for line in done.stderr.splitlines() if line.startswith("tandem compare: ")]
    assert len(lines) == 1, done.stderr
    return lines[0]


def paired(values, reference):
    differences = [a - b for a, b in zip(values, reference)]
    mean, sd = statistics.mean(differences), statistics.stdev(differences)
    half = T_95[len(differences) - 1] * sd / len(differences) ** 0.5
    return {"count": len(differences), "mean": mean, "sd": sd, "lower": mean - half, "upper": mean + half}


def windowed_median(values, window):
    values = values[1:]
    return statistics.median(sum(values[i:i + window]) / window for i in range(len(values) - window + 1))


def time_to(events, target):
    seconds = 0
    for event in events:
        seconds += event["step_ms"] / 1000 if event["event"] == "step" else 0
        if event["event"] == "eval" and event["val_loss"] <= target:
            return seconds
    return math.inf


def check_losses(method, runs, reference_runs):
    for field in "val_loss", "val_accuracy":
        values, reference = ([events[-1][field] for events in group] for group in (runs, reference_runs))
        assert [entry[field] for entry in method["runs"]] == values
        assert method[field] == pytest.approx({"count": len(values), "mean": statistics.mean(values),
                                               "sd": statistics.stdev(values)})
        difference = method[field.replace("val_", "") + "_difference"]
        assert difference == pytest.approx(paired(values, reference), abs=1e-7)


def check_times(method, runs, interval, target):
    for field, recorded in ("step_ms", "step_ms"), ("exposed_ms", "comm_exposed_ms"), ("compress_ms", "compress_ms"):
        medians = [windowed_median([step[recorded] for step in steps_of(events)], interval) for events in runs]
        assert method[field] == pytest.approx(statistics.median(medians), abs=1e-9)
    assert method["compress_share"] == pytest.approx(method["compress_ms"] / method["step_ms"])
    times = [time_to(events, target) for events in runs]
    assert method["reached_target"] == sum(value < math.inf for value in times)
    middle = statistics.median(times)
    assert method["target_s"] == (pytest.approx(middle) if middle < math.inf else None)


def check_bytes(method, runs, ranks):
    sent = statistics.median(statistics.mean(step["bytes_sent"] for step in steps_of(events)) for events in runs)
    dense = {step["bytes_dense"] for events in runs for step in steps_of(events)}
    assert method["bytes_sent"] == pytest.approx(sent) and len(dense) == 1
    assert method["bytes_ratio"] == (pytest.approx(sent / dense.pop()) if ranks > 1 else None)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_figures_are_those_of_the_metrics_files(shards, tmp_path, ranks):
    intervals = {"none": 1, "covap:interval=2": 2, "accumulate:interval=3": 3}
    target, seeds = 5.3, [7, 8, 9]
    printed, result, methods = compare(shards, tmp_path, ranks, methods=",".join(intervals), seeds=3, eval_every=2,
                                       target_loss=target, margin=0.02, seed=7)
    assert list(methods) == list(intervals) and result["reference"] == "none" and result["ranks"] == ranks
    runs = {name: [read_events(tmp_path / f"{name.replace(':', '_')}-seed{seed}") for seed in seeds] for name in methods}
    for name, method in methods.items():
        assert [entry["seed"] for entry in method["runs"]] == seeds and f"\n{name} " in printed
        check_losses(method, runs[name], runs["none"])
        check_times(method, runs[name], intervals[name], target)
        check_bytes(method, runs[name], ranks)
        assert method["speedup"] == pytest.approx(
            {other: methods[other]["step_ms"] / method["step_ms"] for other in methods})
        assert not (tmp_path / f"{method['folder']}-seed7" / "checkpoints").exists()
        check_verdict(method, 0.02)
    assert methods["none"]["reached_target"] == 3
    check_csv(tmp_path, methods)
    assert f"scripts/plot_compare.py {tmp_path}" in printed


def check_verdict(method, margin):
    difference = method["loss_difference"]
    worse = difference["lower"] > 0 and difference["mean"] > margin
    expected = "preserved" if difference["upper"] < margin else "worse" if worse else "not shown"
    assert method["verdict"] == ("reference" if method["method"] == "none" else expected)


def check_csv(run_dir, methods):
    rows = list(csv.DictReader((run_dir / "compare.csv").open()))
    assert [row["method"] for row in rows] == list(methods)
    for row in rows:
        method = methods[row["method"]]
        assert row["verdict"] == method["verdict"]
        found = [float(row[name]) for name in ("val_loss", "loss_upper", "step_ms", "speedup")]
        assert found == pytest.approx([method["val_loss"]["mean"], method["loss_difference"]["upper"], method["step_ms"],
                                       method["speedup"]["none"]], rel=1e-12)


def test_a_method_against_itself_and_one_that_learns_nothing(shards, tmp_path):
    printed, result, methods = compare(shards, tmp_path, 2, methods="none,none:wire=fp32,none:lr=0:min-lr=0", seeds=3)
    same, idle = methods["none:wire=fp32"], methods["none:lr=0:min-lr=0"]
    for field in "loss_difference", "accuracy_difference":
        assert same[field] == {"count": 3, "mean": 0, "sd": 0, "lower": 0, "upper": 0}
    assert (same["verdict"], idle["verdict"]) == ("preserved", "worse")
    assert any("lr" in warning and "differ in more than what is sent" in warning for warning in result["warnings"])
    assert not any("wire" in warning for warning in result["warnings"])


def test_settings_of_a_method(shards, tmp_path):
    """The reference is the first method where `none` is not there; models are kept where they are asked for."""
    _, result, methods = compare(shards, tmp_path, 2, methods="bf16,covap:interval=4:wire=bf16:bucket-mib=0.01", seeds=1,
                                 steps=9, checkpoint_every=5)
    covap = methods["covap:interval=4:wire=bf16:bucket-mib=0.01"]
    options = read_events(tmp_path / f"{covap['folder']}-seed1337")[0]["options"]
    assert (options["compress"], options["interval"], options["wire"], options["bucket_mib"]) == ("covap", "4", "bf16", 0.01)
    assert result["reference"] == "bf16" and methods["bf16"]["bytes_ratio"] == pytest.approx(0.5)
    # Half of it all in the first step, and of a quarter in the other eight.
    assert covap["bytes_ratio"] == pytest.approx((1 + 8 / 4) / 9 / 2) and covap["interval"] == 4
    saved = sorted(path.name for path in (tmp_path / "bf16-seed1337" / "checkpoints").iterdir())
    assert saved == ["latest", "step-00000005", "step-00000009"]
    assert covap["verdict"] == "not shown" and covap["loss_difference"]["upper"] is None  # one pair has no spread


TIMES = {"step_ms", "exposed_ms", "compress_ms", "compress_share", "training_s", "target_s", "speedup"}


def without_times(value):
    if isinstance(value, dict):
        return {name: without_times(entry) for name, entry in value.items() if name not in TIMES}
    return [without_times(entry) for entry in value] if isinstance(value, list) else value


def stop_in(run_dir, command):
    """Asks for the end once that run has made three steps."""
    process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=subprocess.PIPE, text=True)
    try:
        metrics, end = run_dir / "metrics.jsonl", time.monotonic() + 120
        while not (metrics.exists() and metrics.read_text().count('"event":"step"') >= 3):
            assert process.poll() is None and time.monotonic() < end, process.communicate()[1]
            time.sleep(0.005)
        os.kill(process.pid, signal.SIGUSR1)
        _, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == STOPPED, err
    assert "goes on from here" in err


@pytest.mark.parametrize("ranks", [0, 2])
def test_interrupted_and_continued(shards, tmp_path, ranks):
    options = {"methods": "none,covap:interval=2", "seeds": 2, "steps": 150}
    command = compare_command(shards, tmp_path / "a", ranks, **options)
    stop_in(tmp_path / "a" / "none-seed1338", command)
    assert not (tmp_path / "a" / "compare.json").exists()
    first = [tmp_path / "a" / f"{name}-seed1337" / "metrics.jsonl" for name in ("none", "covap_interval=2")]
    before = [path.read_bytes() for path in first]
    printed, continued, _ = compare(shards, tmp_path / "a", ranks, **options)
    assert printed.count("there already") == 2 and [path.read_bytes() for path in first] == before
    _, whole, _ = compare(shards, tmp_path / "b", ranks, **options)
    assert without_times(continued) == without_times(whole)
    printed, again, _ = compare(shards, tmp_path / "a", ranks, **options)
    assert printed.count("there already") == 4 and again == continued


def test_what_is_there_must_be_of_the_same_options(shards, tmp_path):
    compare(shards, tmp_path, seeds=1, methods="none", steps=3)
    before = (tmp_path / "compare.json").read_bytes()
    assert "steps was 3 and is now 4" in refusal(shards, tmp_path, seeds=1, methods="none", steps=4)
    assert "lr was 0.002 and is now" in refusal(shards, tmp_path, 2, seeds=1, methods="none", steps=3, lr=0.5)
    assert "on 1 ranks, and now there are 2" in refusal(shards, tmp_path, 2, seeds=1, methods="none", steps=3)
    assert (tmp_path / "compare.json").read_bytes() == before
    printed, _, _ = compare(shards, tmp_path, seeds=2, methods="none,bf16", steps=3, log_every=1)  # more of the same may be added
    assert printed.count("there already") == 1


@pytest.mark.parametrize("ranks,options,message", [
    (0, {"methods": "none,bf17"}, "found 'bf17', expected some of none|"),
    (3, {"methods": "none,bf17"}, "did you mean 'bf16'"),
    (0, {"methods": "none,,bf16"}, "found '', expected some of"),
    (0, {"methods": "none,bf16,none"}, "'none' is there twice"),
    (3, {"methods": "covap:intervall=4"}, "option 'intervall' is not known; did you mean 'interval'"),
    (0, {"methods": "covap:interval"}, "has the setting 'interval', expected NAME=VALUE"),
    (3, {"methods": "none,covap:interval=0"}, "method 'covap:interval=0': --interval: found '0'"),
    (0, {"methods": "covap:wire=fp64"}, "--wire: found 'fp64', expected one of fp32|bf16|fp16"),
    (0, {"methods": "none:random-seed=3"}, "which are the same for all methods"),
    (0, {"methods": "none:dataset=x"}, "which are the same for all methods"),
    (3, {"methods": "none,none:batch-size=7"}, "--batch-size 7 does not split over 3 replicas"),
    (0, {"target_loss": 2, "eval_every": 0}, "set --eval-every above 0"),
    (0, {"seeds": 0}, "--seeds: found '0'"),
    (0, {"margn": 1}, "did you mean 'margin'"),
])
def test_mistakes(shards, tmp_path, ranks, options, message):
    assert message in refusal(shards, tmp_path / "run", ranks, **options)
    assert not (tmp_path / "run").exists()


def test_divergence_is_told_and_does_not_end_the_comparison(shards, tmp_path):
    wild = "none:optimizer=sgd:lr=1e6:clip=0:warmup=0"
    options = {"methods": f"none,{wild},bf16", "seeds": 2, "eval_every": 1, "target_loss": 0.1}
    printed, result, methods = compare(shards, tmp_path, **options)
    assert methods[wild]["verdict"] == "diverged" and methods[wild]["diverged"] == 2
    assert methods[wild]["val_loss"] == {"count": 0, "mean": None, "sd": None}
    assert [entry["diverged"] for entry in methods[wild]["runs"]] == [True, True]
    assert any("diverged in 2 of 2 runs" in warning for warning in result["warnings"])
    assert methods["bf16"]["val_loss"]["count"] == 2 and "diverged\n" in printed
    assert printed.count("not reached") == 3 and methods["none"]["target_s"] is None
    assert compare(shards, tmp_path, **options)[0].count("there already") == 6


def edit_start(path, **changes):
    lines = path.read_text().splitlines()
    path.write_text("\n".join([json.dumps({**json.loads(lines[0]), **changes}), *lines[1:]]) + "\n")


def test_unfair_comparisons_are_warned_of(shards, tmp_path):
    options = {"methods": "none,bf16,none:steps=6,none:batch-size=12,covap", "seeds": 2, "margin": 1e-9}
    printed, result, _ = compare(shards, tmp_path, **options)
    for expected in ("2 seeds: fewer than 5", "none:steps=6 has steps 6, and none has 12",
                     "none:batch-size=12 has batch_size 12, and none has 6", "the margin is 1e-09"):
        assert any(expected in warning for warning in result["warnings"]), expected
        assert f"warning: {[w for w in result['warnings'] if expected in w][0]}\n" in printed
    assert not any("measured on" in warning or "chose" in warning for warning in result["warnings"])
    edit_start(tmp_path / "bf16-seed1338" / "metrics.jsonl", host="elsewhere", version="0.0.1")
    covap = tmp_path / "covap-seed1338" / "metrics.jsonl"
    covap.write_text(covap.read_text().replace('"interval":1', '"interval":3'))
    _, result, _ = compare(shards, tmp_path, **options)
    assert sum("bf16 was measured on elsewhere" in warning for warning in result["warnings"]) == 1
    assert sum("--interval auto chose intervals from 1 to 3" in warning for warning in result["warnings"]) == 1


def test_plots(shards, tmp_path):
    compare(shards, tmp_path, 2, methods="none,bf16", seeds=2, eval_every=4)
    run([ROOT / "scripts" / "plot_compare.py", tmp_path])
    for name in "compare-loss", "compare-bytes":
        assert (tmp_path / f"{name}.png").read_bytes().startswith(b"\x89PNG")
        assert "<svg" in (tmp_path / f"{name}.svg").read_text()
    done = run([ROOT / "scripts" / "plot_compare.py", tmp_path / "none"], code=2)
    assert "compare.json" in done.stderr and "Traceback" not in done.stderr
