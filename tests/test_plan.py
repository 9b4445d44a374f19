"""tandem plan --show-schedule: its picture, its figures, and what it refuses."""
import re

import pytest

from conftest import ROOT, TANDEM, run

SHAPES = [("gpipe", 4, 1, 8), ("1f1b", 4, 1, 8), ("zb-h1", 4, 1, 8), ("interleaved", 4, 2, 8), ("interleaved", 3, 3, 7), ("1f1b", 1, 1, 1),
          ("zb-h1", 5, 1, 3), ("gpipe", 12, 1, 30), ("1f1b", 2, 1, 120), ("interleaved", 2, 26, 2)]


def plan(schedule, pp, chunks, micro_batches, **options):
    words = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    return run([TANDEM, "plan", "--show-schedule", f"--schedule={schedule}", f"--pp={pp}", f"--chunks={chunks}",
                f"--micro-batches={micro_batches}", *words]).stdout


def cells(text, micro_batches):
    """{(stage, letter, micro-batch): [times of its cells]} and {stage: number of idle cells} of a picture."""
    rows, digits = {}, len(str(micro_batches - 1))  # a long picture has several bands
    for stage, row in re.findall(r"^stage (\d+) +(\S.*)$", text, re.M):
        rows[int(stage)] = rows.get(int(stage), "") + row
    taken, idle = {}, {}
    for stage, row in rows.items():
        tokens = re.findall(rf"[A-Za-z]\d+|-{{{digits + 1}}}|\.", row)
        idle[stage] = tokens.count(".")
        for time, token in enumerate(tokens):
            if token[0] == "-":
                taken[now].append(time)
            elif token != ".":
                now = (stage, token[0], int(token[1:]))
                assert now not in taken, f"{now} is there twice"
                taken[now] = [time]
    return taken, idle


def figures(text):
    makespan = float(re.search(r"^makespan +(\S+),", text, re.M).group(1))
    simulated, formula = re.search(r"^bubble +(\S+) % .* simulated; (\S+) % by formula", text, re.M).groups()
    peaks = re.search(r"^peak .*:((?:\s+\d+)+)$", text, re.M).group(1)
    return makespan, float(simulated), float(formula), [int(peak) for peak in peaks.split()]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_the_picture_agrees_with_its_figures(shape):
    schedule, pp, chunks, micro_batches = shape
    text = plan(*shape)
    assert max(map(len, text.splitlines())) <= 100
    taken, idle = cells(text, micro_batches)
    makespan, simulated, formula, peaks = figures(text)
    assert simulated == formula and len(peaks) == pp
    kinds = "FBW" if schedule == "zb-h1" else "FB" if chunks == 1 else [chr(ord(a) + c) for c in range(chunks) for a in "Aa"]
    assert set(taken) == {(s, k, m) for s in range(pp) for k in kinds for m in range(micro_batches)}
    for stage in range(pp):
        assert idle[stage] + sum(len(times) for now, times in taken.items() if now[0] == stage) == makespan
    assert abs(100 * sum(idle.values()) / (pp * makespan) - simulated) <= 0.05 + 1e-9
    # What is alive, counted in the picture: from a forward pass's first cell to the last of its (weight) backward pass.
    forward, last = ("F", kinds[-1]) if chunks == 1 else ("A", "a")
    for stage in range(pp):
        spans = [(taken[stage, chr(ord(forward) + c), m][0], taken[stage, chr(ord(last) + c), m][-1])
                 for c in range(chunks) for m in range(micro_batches)]
        assert peaks[stage] == max(sum(a <= t <= b for a, b in spans) for t in range(int(makespan)))


def test_every_pass_of_gpipe_is_where_it_belongs():
    taken, _ = cells(plan("gpipe", 4, 1, 6), 6)
    assert taken == {(s, kind, m): times for s in range(4) for m in range(6) for kind, times in
                     [("F", [s + m]), ("B", [9 + 2 * (3 - s + m), 10 + 2 * (3 - s + m)])]}


def test_costs_change_time_and_share():
    short, long = plan("1f1b", 4, 1, 8), plan("1f1b", 4, 1, 8, message_cost=1)
    assert "by formula, which has no messages" in long and "no messages" not in short
    assert figures(long)[0] > figures(short)[0] and figures(long)[1] > figures(long)[2] == figures(short)[2]
    doubled = plan("1f1b", 4, 1, 8, forward_cost=2, backward_cost=2, weight_cost=2)
    assert figures(doubled)[0] == 2 * figures(short)[0] and figures(doubled)[1:] == figures(short)[1:]
    assert "a cell is 2\n" in doubled and "a cell" not in short
    assert "a cell is 1; times are rounded to cells" in plan("1f1b", 2, 1, 3, forward_cost=1.5, backward_cost=0.5, weight_cost=0.5)
    assert "there is no formula for these costs" in plan("zb-h1", 3, 1, 6, weight_cost=3)


def test_zb_h1_idles_less():
    assert figures(plan("zb-h1", 4, 1, 8))[1] < figures(plan("interleaved", 4, 2, 8))[1] < figures(plan("1f1b", 4, 1, 8))[1]


def test_a_long_step_has_no_picture():
    text = plan("1f1b", 4, 1, 5000)
    assert "no picture: more than 2000 units of time" in text and "stage 0 " not in text and figures(text)[0] == 15009


@pytest.mark.parametrize("words,message", [
    (["--pp=2"], "nothing to plan; expected --show-schedule"),
    (["--show-schedule", "--pp=2", "--chunks=2"], "found 2 chunks a stage, but schedule 1f1b has one"),
    (["--show-schedule", "--schedule=interleave"], "did you mean 'interleaved'?"),
    (["--show-schedule", "--pp=0"], "--pp: found '0', expected a whole number from 1"),
    (["--show-schedule", "--forward-cost=0"], "--forward-cost: found '0', expected a number"),
    (["--show-schedule", "--pp=1024", "--micro-batches=100000"], "to be at most 1048576"),
    (["--show-schedule", "--steps=5"], "option 'steps' is not known"),
    (["--show-schedule", "1f1b"], "found '1f1b', expected options only"),
])
def test_mistakes(words, message):
    done = run([TANDEM, "plan", *words], code=2)
    assert message in done.stderr and done.stderr.startswith("tandem plan: ") and done.stderr.count("\n") == 1 and not done.stdout


def test_help():
    text = run([TANDEM, "plan", "--help"]).stdout
    for option in "--show-schedule", "--pp", "--schedule", "--chunks", "--micro-batches", "--message-cost":
        assert option in text


def test_the_readme_shows_what_is_printed():
    assert plan("zb-h1", 4, 1, 8) in (ROOT / "README.md").read_text()
