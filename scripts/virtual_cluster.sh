#!/usr/bin/env bash
# Runs a command on several virtual hosts: network namespaces of this machine, joined by links of a given rate, with
# one MPI rank on each. What a cluster's network does to a program shows here without a cluster.
set -euo pipefail

usage() {
    cat <<'TEXT'
usage: virtual_cluster.sh --hosts N [options] -- COMMAND [ARGUMENT...]

Runs COMMAND under Open MPI's mpirun, one rank on each of N virtual hosts, and exits with its exit code. Each host is a
network namespace with one link to a common switch. Needs root.

  --hosts N             how many hosts, 1 to 200
  --rate RATE           rate of each link, in each direction, as tc writes it: 200mbit, 1gbit; none (default): unlimited
  --threads-per-host T  OpenMP threads of each rank, and cores it is pinned to (default 1)
  --help

Host i is pinned to cores i*T .. i*T+T-1, counted round the cores of the machine. Several virtual clusters may run at
once. Everything made is removed at the end, also after an interruption.
TEXT
}

fail() {
    echo "virtual_cluster.sh: $1" >&2
    exit 2
}

is_number() {
    [[ $1 =~ ^[1-9][0-9]{0,3}$ ]]
}

hosts='' rate=none threads=1
while [[ $# -gt 0 ]]; do
    case $1 in
        --help) usage; exit 0 ;;
        --) shift; break ;;
        --hosts | --rate | --threads-per-host)
            [[ $# -ge 2 ]] || fail "$1 needs a value"
            case $1 in
                --hosts) hosts=$2 ;;
                --rate) rate=$2 ;;
                --threads-per-host) threads=$2 ;;
            esac
            shift 2 ;;
        *) fail "unknown option '$1' (the command follows after --); see --help" ;;
    esac
done
[[ -n $hosts ]] || fail "--hosts N is missing; see --help"
{ is_number "$hosts" && [[ $hosts -le 200 ]]; } || fail "--hosts $hosts: expected a number from 1 to 200"
is_number "$threads" || fail "--threads-per-host $threads: expected a positive number"
[[ $rate == none || $rate =~ ^[1-9][0-9]*(kbit|mbit|gbit)$ ]] ||
    fail "--rate $rate: expected none, or a number with kbit, mbit or gbit, such as 200mbit"
[[ $# -gt 0 ]] || fail "no command: it follows after --"
[[ $EUID -eq 0 ]] || fail "network namespaces need root: run it as root (sudo)"
command -v ip >/dev/null || fail "'ip' not found: install the package iproute2"
[[ $rate == none ]] || command -v tc >/dev/null || fail "'tc' not found: install the package iproute2"
command -v mpirun >/dev/null || fail "'mpirun' not found: install the package openmpi-bin"
command -v taskset >/dev/null || fail "'taskset' not found: install the package util-linux"

# Interface names hold 15 characters: tv, the process id, h or s, the host's number.
id=tv$$
work=$(mktemp -d /tmp/tandem-cluster.XXXXXX)
job=

# shellcheck disable=SC2317 # reached through the trap
clean_up() {
    trap '' INT TERM HUP
    if [[ -n $job ]] && kill -0 "$job" 2>/dev/null; then
        kill -TERM "$job" 2>/dev/null || true
        for _ in {1..50}; do
            kill -0 "$job" 2>/dev/null || break
            sleep 0.1
        done
    fi
    for ((i = 0; i < hosts; i++)); do
        ip netns pids "$id-$i" 2>/dev/null | xargs -r kill -KILL 2>/dev/null || true
        ip netns del "$id-$i" 2>/dev/null || true # its link, a pair, goes with it
    done
    ip netns del "$id-s" 2>/dev/null || true
    rm -rf "$work"
}
trap clean_up EXIT
trap 'exit 130' INT
trap 'exit 143' TERM
trap 'exit 129' HUP

# tbf lets a burst pass, then holds to the rate. 64 KiB at least, so that segments as large as the kernel makes them are
# not cut; and what 2 ms let through, where that is more, because the bucket is refilled by a timer.
shape() {
    local namespace=$1 interface=$2
    [[ $rate != none ]] || return 0
    local bits=${rate%?bit}
    case $rate in
        *kbit) bits=$((bits * 1000)) ;;
        *mbit) bits=$((bits * 1000000)) ;;
        *gbit) bits=$((bits * 1000000000)) ;;
    esac
    local burst=$((bits / 8 / 500))
    ((burst > 65536 + 4096)) || burst=$((65536 + 4096))
    ip netns exec "$namespace" tc qdisc add dev "$interface" root tbf rate "$rate" burst "$burst" latency 50ms
}

# The switch has a namespace of its own, so that the machine's own network and firewall stay out of it.
build_network() {
    ip netns add "$id-s"
    ip -n "$id-s" link add switch type bridge
    ip -n "$id-s" link set switch up
    for ((i = 0; i < hosts; i++)); do
        ip netns add "$id-$i"
        ip -n "$id-s" link add "port$i" type veth peer name eth0 netns "$id-$i"
        ip -n "$id-s" link set "port$i" master switch up
        ip -n "$id-$i" addr add "10.77.0.$((i + 1))/24" dev eth0
        ip -n "$id-$i" link set lo up
        ip -n "$id-$i" link set eth0 up
        shape "$id-$i" eth0
        shape "$id-s" "port$i"
    done
}

# mpirun calls this in place of ssh: agent [-option...] ADDRESS COMMAND.
write_agent() {
    cat >"$work/agent" <<AGENT
#!/bin/sh
while [ "\${1#-}" != "\$1" ]; do shift; done
host=\$((\${1##*.} - 1))
shift
exec ip netns exec "$id-\$host" unshare --uts sh -c "hostname host\$host; \$*"
AGENT
    cat >"$work/pin" <<PIN
#!/bin/sh
cores=\$(nproc --all) list=
i=0
while [ \$i -lt $threads ]; do
    list=\$list\${list:+,}\$(((OMPI_COMM_WORLD_RANK * $threads + i) % cores))
    i=\$((i + 1))
done
exec taskset -c "\$list" "\$@"
PIN
    chmod +x "$work/agent" "$work/pin"
}

build_network
write_agent
addresses=$(for ((i = 1; i <= hosts; i++)); do printf '10.77.0.%d:1,' "$i"; done)

# mpirun stays in the foreground process group, and gets an interruption from the terminal by itself; waiting for it in
# the background lets the traps run at once.
ip netns exec "$id-0" unshare --uts sh -c 'hostname host0; exec "$@"' sh \
    mpirun --allow-run-as-root -np "$hosts" -H "${addresses%,}" --bind-to none --oversubscribe \
    --mca plm_rsh_agent "$work/agent" --mca plm_rsh_no_tree_spawn 1 \
    --mca oob_tcp_if_include 10.77.0.0/24 --mca btl tcp,self --mca btl_tcp_if_include 10.77.0.0/24 \
    -x OMP_NUM_THREADS="$threads" "$work/pin" "$@" <&0 &
job=$!
code=0
wait "$job" || code=$?
job=
exit "$code"
