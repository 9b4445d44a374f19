#!/usr/bin/env bash
# Runs a training command to its end: starts it again from its newest checkpoint when a rank, a host or the network fails.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: run_resilient.sh [options] [--] COMMAND [ARGUMENT...]

    scripts/run_resilient.sh mpirun -np 4 build/tandem train --run-dir runs/a --checkpoint-every 100 ...

Runs COMMAND, and runs it again with --resume auto added when its exit code says that another try may help:

  again      1 failure, 5 a peer is lost or timed out, 129 and more: killed by a signal
  not again  0 finished, 2 bad input, 3 training diverged, 4 a checkpoint could not be saved, 75 stopped by a signal,
             any other

Exits with the last exit code of COMMAND. SIGTERM and SIGUSR1 are passed on to COMMAND; after these, and after
Ctrl-C, it is not run again.

  --restarts N            restarts in all (default 100)
  --without-progress N    failures in a row with no newer checkpoint after which it gives up (default 3)
  --pause SECONDS         before a restart; doubles with each failure in a row without progress (default 5)
  --pause-most SECONDS    longest pause (default 300)
  --restart-after-stop    also after 75: for clusters that stop a job to start it again later
  --run-dir DIR           where COMMAND saves (default: what COMMAND says in --run-dir, else TANDEM_RUN_DIR, else
                          runs/latest); progress is a change of DIR/checkpoints/latest
  --help
TEXT
}

fail() {
    echo "run_resilient.sh: $1" >&2
    exit 2
}

say() {
    echo "run_resilient.sh: $1" >&2
}

restarts=100 without_progress=3 pause=5 pause_most=300 after_stop='' run_dir=''
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) usage; exit 0 ;;
        --restart-after-stop) after_stop=yes; shift ;;
        --restarts | --without-progress | --pause | --pause-most)
            [[ ${2:-} =~ ^[0-9]{1,6}$ ]] || fail "$1 ${2:-}: expected a number of at most six digits"
            case $1 in
                --restarts) restarts=$((10#$2)) ;;
                --without-progress) without_progress=$((10#$2)) ;;
                --pause) pause=$((10#$2)) ;;
                --pause-most) pause_most=$((10#$2)) ;;
            esac
            shift 2 ;;
        --run-dir)
            [[ -n ${2:-} ]] || fail "$1 needs a folder"
            run_dir=$2; shift 2 ;;
        --) shift; break ;;
        -*) fail "unknown option '$1' before the command; see --help" ;;
        *) break ;;
    esac
done
[[ $# -gt 0 ]] || fail "no command; see --help"
[[ $without_progress -gt 0 ]] || fail "--without-progress 0: expected 1 or more"

# The last --run-dir of the command, as tandem reads it.
find_run_dir() {
    local found=${TANDEM_RUN_DIR:-runs/latest}
    while [[ $# -gt 0 ]]; do
        case $1 in
            --run-dir) found=${2:-} ;;
            --run-dir=*) found=${1#--run-dir=} ;;
        esac
        shift
    done
    echo "$found"
}
[[ -n $run_dir ]] || run_dir=$(find_run_dir "$@")

newest_checkpoint() {
    local name=''
    if [[ -r $run_dir/checkpoints/latest ]]; then read -r name <"$run_dir/checkpoints/latest" || true; fi
    echo "$name"
}

meaning() {
    case $1 in
        0) echo "finished" ;;
        1) echo "failure" ;;
        2) echo "bad input" ;;
        3) echo "training diverged" ;;
        4) echo "a checkpoint could not be saved" ;;
        5) echo "a peer is lost or timed out" ;;
        75) echo "stopped by a signal" ;;
        *) if [[ $1 -gt 128 ]]; then echo "killed by signal $(($1 - 128))"; else echo "unknown to this script"; fi ;;
    esac
}

may_help() {
    [[ $1 -eq 1 || $1 -eq 5 || $1 -gt 128 || ($1 -eq 75 && -n $after_stop) ]]
}

# A signal interrupts `wait`, so that it can be passed on. Ctrl-C reaches the command by itself, and twice would end mpirun
# at once.
child='' stopping='' interrupted=''
on_signal() {
    stopping=$1 interrupted=yes
    if [[ -n $child && $1 != INT ]]; then kill -s "$1" "$child" 2>/dev/null || true; fi
}
for signal in TERM INT USR1; do
    # shellcheck disable=SC2064 # the signal's name of now
    trap "on_signal $signal" "$signal"
done

# Leaves the exit code of the command in $code.
run_command() {
    "$@" &
    child=$!
    interrupted=yes
    while [[ -n $interrupted ]]; do
        interrupted='' code=0
        wait "$child" || code=$?
    done
    child=''
}

done_restarts=0 failures=0 wait_s=$pause code=0 resume=()
while :; do
    before=$(newest_checkpoint)
    run_command "$@" "${resume[@]}"
    after=$(newest_checkpoint)
    if [[ $code -eq 0 ]]; then exit 0; fi
    what="exit code $code ($(meaning "$code")), newest checkpoint: ${after:-none} in $run_dir/checkpoints"
    if [[ -n $stopping ]]; then say "$what; stopped by SIG$stopping, no restart"; exit "$code"; fi
    if ! may_help "$code"; then say "$what; another try would not help"; exit "$code"; fi

    failures=$((failures + 1))
    if [[ $after != "$before" ]]; then failures=0 wait_s=$pause; fi
    if [[ $failures -ge $without_progress ]]; then
        say "$what; given up: $failures failures without a newer checkpoint"
        exit "$code"
    fi
    if [[ $done_restarts -ge $restarts ]]; then say "$what; given up after $restarts restarts"; exit "$code"; fi
    done_restarts=$((done_restarts + 1))
    say "$what; restart $done_restarts of $restarts in $wait_s s"
    sleep "$wait_s" &
    child=$!
    wait "$child" || true
    if [[ -n $stopping ]]; then
        kill "$child" 2>/dev/null || true
        exit "$code"
    fi
    child=''
    wait_s=$((2 * wait_s < pause_most ? 2 * wait_s : pause_most))
    resume=(--resume auto)
done
