"""scripts/run_resilient.sh with a trainer that fails as it is told: which exit codes lead to another try, how often, and
what each try is given."""
import os
import signal
import subprocess
import time

import pytest

from conftest import ROOT, run

SCRIPT = ROOT / "scripts" / "run_resilient.sh"

# Each start takes the next line of `plan`, "CODE" or "CODE save"; a code above 128 is a signal to itself.
TRAINER = """#!/usr/bin/env bash
cd "$(dirname "$0")"
echo "$*" >>starts
n=$(wc -l <starts)
read -r code save <<<"$(sed -n "${n}p" plan)"
[ -z "$save" ] || { mkdir -p run/checkpoints; echo "step-$n" >run/checkpoints/latest; }
if [ "$code" = wait ]; then trap 'exit 75' USR1 TERM; for i in $(seq 300); do sleep 0.1; done; fi
[ "$code" -le 128 ] || kill -s $((code - 128)) $$
exit "$code"
"""


@pytest.fixture
def trainer(tmp_path):
    def make(*plan):
        (tmp_path / "plan").write_text("\n".join(plan) + "\n")
        path = tmp_path / "trainer.sh"
        path.write_text(TRAINER)
        path.chmod(0o755)
        return path
    return make


def command(trainer, *options):
    return [SCRIPT, "--pause", "0", *options, "--", trainer, "train", "--run-dir", trainer.parent / "run"]


def starts(trainer):
    return (trainer.parent / "starts").read_text().splitlines()


@pytest.mark.parametrize("code", [1, 5, 134, 137, 143])
def test_runs_again_from_the_newest_checkpoint(trainer, code):
    program = trainer(f"{code} save", "0")
    done = run(command(program))
    first, second = starts(program)
    assert second == first + " --resume auto" and "--resume" not in first
    assert f"exit code {code} (" in done.stderr and "newest checkpoint: step-1" in done.stderr
    assert "restart 1 of 100 in 0 s" in done.stderr


@pytest.mark.parametrize("code", [2, 3, 4, 75, 126, 127])
def test_does_not_run_again(trainer, code):
    program = trainer(f"{code} save", "0")
    done = run(command(program), code=code)
    assert len(starts(program)) == 1 and "another try would not help" in done.stderr


def test_success_is_silent(trainer):
    assert run(command(trainer("0"))).stderr == ""


def test_stop_may_lead_to_a_restart(trainer):
    program = trainer("75 save", "0")
    run(command(program, "--restart-after-stop"))
    assert len(starts(program)) == 2


def test_gives_up_without_progress(trainer):
    program = trainer("5", "5", "5", "0")
    done = run(command(program), code=5)
    assert len(starts(program)) == 3 and "given up: 3 failures without a newer checkpoint" in done.stderr


def test_progress_starts_the_count_anew(trainer):
    program = trainer("5", "5", "5 save", "5", "5", "1", "0")
    done = run(command(program), code=1)
    assert len(starts(program)) == 6 and "newest checkpoint: step-3" in done.stderr


def test_restarts_are_limited(trainer):
    program = trainer(*["5 save"] * 9)
    done = run(command(program, "--restarts", "4"), code=5)
    assert len(starts(program)) == 5 and "given up after 4 restarts" in done.stderr


def test_pauses_grow_up_to_a_limit_and_start_anew_with_progress(trainer):
    program = trainer("5", "5", "5", "5 save", "5", "2")
    done = run(command(program, "--pause", "1", "--pause-most", "2", "--without-progress", "9"), code=2)
    assert [line.split(" in ")[-1] for line in done.stderr.splitlines() if "restart " in line and "given" not in line][:5] == \
        ["1 s", "2 s", "2 s", "1 s", "2 s"]


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGUSR1])
def test_signals_are_passed_on_and_end_it(trainer, how):
    program = trainer("wait", "0")
    with subprocess.Popen([str(word) for word in command(program, "--restart-after-stop")], stderr=subprocess.PIPE,
                          text=True) as process:
        while not (program.parent / "starts").exists():
            time.sleep(0.05)
        time.sleep(0.3)
        process.send_signal(how)
        errors = process.communicate(timeout=30)[1]
    assert process.returncode == 75 and "no restart" in errors
    assert len(starts(program)) == 1


def test_signal_during_a_pause_ends_it(trainer):
    program = trainer("5", "0")
    with subprocess.Popen([str(word) for word in command(program, "--pause", "60")], stderr=subprocess.PIPE,
                          text=True) as process:
        assert "restart 1 of 100 in 60 s" in process.stderr.readline()
        time.sleep(0.3)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=30)
    assert process.returncode == 5 and len(starts(program)) == 1


@pytest.mark.parametrize("words,said", [
    ([], "no command"), (["--restarts", "x", "true"], "--restarts x"), (["--sideways", "true"], "unknown option '--sideways'"),
    (["--without-progress", "0", "true"], "--without-progress 0"), (["--run-dir"], "--run-dir needs"),
])
def test_mistakes(words, said):
    done = run([SCRIPT, *words], code=2)
    assert said in done.stderr


def test_finds_the_run_folder(trainer, tmp_path):
    """--run-dir=DIR, TANDEM_RUN_DIR and the script's own option name it too."""
    environment = {**os.environ, "TANDEM_RUN_DIR": str(tmp_path / "run")}
    for options, words, env in [([], [f"--run-dir={tmp_path / 'run'}"], os.environ), ([], [], environment),
                                (["--run-dir", tmp_path / "run"], ["--run-dir", "elsewhere"], os.environ)]:
        program = trainer("5 save", "0")
        (tmp_path / "starts").unlink(missing_ok=True)
        done = run([SCRIPT, "--pause", "0", *options, program, "train", *words], env=env)
        assert f"newest checkpoint: step-1 in {tmp_path / 'run'}/checkpoints" in done.stderr
