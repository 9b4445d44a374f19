#!/usr/bin/env bash
# mpirun with what this machine needs: root must be allowed, and more ranks than cores must be asked for.
#   scripts/mpirun.sh -np N [MPIRUN OPTIONS] COMMAND...
set -euo pipefail
options=()
[ "$(id -u)" != 0 ] || options+=(--allow-run-as-root)
if [ "${1:-}" = -np ] && [ "${2:-0}" -gt "$(nproc)" ]; then options+=(--oversubscribe); fi
exec mpirun "${options[@]}" "$@"
