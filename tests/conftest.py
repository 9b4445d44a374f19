"""What every test uses: building, running a command with an end, mpirun with what this machine needs."""
import os
import pathlib
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
TANDEM = ROOT / "build" / "tandem"


def mpirun(ranks, *command, threads=1):
    """The command line that runs `command` on so many ranks here, whoever we are and however many cores there are."""
    line = ["mpirun", "-np", str(ranks), "--oversubscribe", "--bind-to", "none", "-x", f"OMP_NUM_THREADS={threads}"]
    if os.geteuid() == 0:
        line.insert(1, "--allow-run-as-root")
    return line + [str(word) for word in command]


def run(command, timeout=120, code=0, **options):
    """Runs a command; fails the test if it outlasts `timeout` seconds or does not exit with `code` (None: any)."""
    done = subprocess.run([str(word) for word in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=timeout, cwd=options.pop("cwd", ROOT), **options)
    if code is not None:
        assert done.returncode == code, f"exit {done.returncode}, expected {code}: {' '.join(map(str, command))}\n" \
                                        f"--- stdout\n{done.stdout[-4000:]}\n--- stderr\n{done.stderr[-4000:]}"
    return done


def pytest_terminal_summary(terminalreporter):
    stats = terminalreporter.stats
    failed = len(stats.get("failed", [])) + len(stats.get("error", []))
    passed, skipped = len(stats.get("passed", [])), len(stats.get("skipped", []))
    terminalreporter.write_line(f"\n{passed} passed, {failed} failed, {skipped} skipped")
