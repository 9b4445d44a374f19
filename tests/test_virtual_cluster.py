"""scripts/virtual_cluster.sh: hosts that are there, ranks on them, and nothing left behind however it ends."""
import os
import shutil
import signal
import subprocess
import time

import pytest

from conftest import ROOT, run

SCRIPT = ROOT / "scripts" / "virtual_cluster.sh"
needs_root = pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("ip") or not shutil.which("tc"),
                                reason="network namespaces need root and iproute2")


def launch(*arguments):
    return subprocess.Popen([SCRIPT, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def assert_nothing_left(process):
    """Its namespaces carry the script's process id; links go with them."""
    assert f"tv{process.pid}-" not in run(["ip", "netns", "list"]).stdout
    assert f"tv{process.pid}" not in run(["ip", "link"]).stdout


@needs_root
@pytest.mark.parametrize("hosts", [2, 3])
@pytest.mark.parametrize("rate", ["none", "200mbit"])
def test_every_host_runs_one_rank(hosts, rate):
    process = launch("--hosts", str(hosts), "--rate", rate, "--", "sh", "-c",
                     "echo $OMPI_COMM_WORLD_RANK $(hostname) $(ip -4 -o addr show eth0)")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    lines = sorted(out.splitlines())
    assert [line.split()[:2] for line in lines] == [[str(r), f"host{r}"] for r in range(hosts)]
    assert all(f"10.77.0.{r + 1}/24" in line for r, line in enumerate(lines))
    assert_nothing_left(process)


@needs_root
def test_ranks_of_comm_lie_on_different_hosts():
    run(["make", "build/tests/bench_allreduce"], timeout=600)
    process = launch("--hosts", "3", "--", "build/tests/bench_allreduce", "0", "direct", "1", "1", "1")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert "3 ranks on 3 hosts" in out


@needs_root
def test_link_is_as_slow_as_asked():
    """4 MB over 20 Mbit/s takes 1.6 s at the very least, less what the first burst lets through."""
    run(["make", "build/tests/bench_allreduce"], timeout=600)
    process = launch("--hosts", "2", "--rate", "20mbit", "--", "build/tests/bench_allreduce", "20", "direct", "4", "1", "1")
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    alone = next(line for line in out.splitlines() if line.startswith("all-reduce alone"))
    assert float(alone.split()[2]) > 1400


@needs_root
def test_exit_code_of_the_command_is_passed_on():
    process = launch("--hosts", "2", "--", "sh", "-c", "exit 7")
    process.communicate(timeout=60)
    assert process.returncode == 7
    assert_nothing_left(process)


@needs_root
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interruption_leaves_nothing(number):
    process = launch("--hosts", "2", "--", "sh", "-c", "echo up; exec sleep 300")
    assert process.stdout.readline() == "up\n"
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert_nothing_left(process)


@needs_root
def test_two_clusters_at_once():
    clusters = [launch("--hosts", "2", "--", "sh", "-c", "sleep 1; exit 0") for _ in range(2)]
    for process in clusters:
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert_nothing_left(process)


@pytest.mark.parametrize("arguments,message", [
    (["--", "true"], "--hosts N is missing"),
    (["--hosts", "0", "--", "true"], "expected a number from 1 to 200"),
    (["--hosts", "many", "--", "true"], "expected a number from 1 to 200"),
    (["--hosts"], "--hosts needs a value"),
    (["--hosts", "2", "--rate", "fast", "--", "true"], "--rate fast: expected none"),
    (["--hosts", "2", "--threads-per-host", "-1", "--", "true"], "expected a positive number"),
    (["--hosts", "2"], "no command"),
    (["--hosts", "2", "--speed", "1", "--", "true"], "unknown option '--speed'"),
])
def test_mistakes_are_named(arguments, message):
    done = run([SCRIPT, *arguments], code=2)
    assert message in done.stderr and not done.stdout


def test_missing_tool_names_its_package(tmp_path):
    (tmp_path / "bash").symlink_to(shutil.which("bash"))
    done = run([shutil.which("bash"), SCRIPT, "--hosts", "2", "--", "true"], code=2, env={"PATH": str(tmp_path)})
    assert ("iproute2" if os.geteuid() == 0 else "root") in done.stderr
