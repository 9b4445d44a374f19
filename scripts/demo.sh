#!/usr/bin/env bash
# What `make demo` runs once everything is built: a real text, a training run on two ranks, a sample of its writing.
#   DEMO_STEPS=N        steps of the run (default: about two minutes on two cores)
#   DEMO_RUN_DIR=DIR    where the run goes
set -euo pipefail
cd "$(dirname "$0")/.."
steps=${DEMO_STEPS:-1000}
run_dir=${DEMO_RUN_DIR:-runs/demo}

echo "== A real text: the six novels of Jane Austen"
text=$(scripts/get_data.sh austen | tail -n 1)
shards=data/shards/austen
[ -e "$shards/train-00000.bin" ] || build/tandem data build "$text" --out "$shards"

echo
echo "== Training on two ranks (stop early with Ctrl-C; follow $run_dir/metrics.jsonl from another terminal)"
scripts/mpirun.sh -np 2 build/tandem train --data "$shards" --run-dir "$run_dir" --steps "$steps" \
    --batch-size 32 --lr 2e-3 --warmup 50 --eval-every 250 --log-every 50

echo
echo "== A few lines from the trained model, after the prompt \"It is a truth\""
build/tandem generate --checkpoint "$run_dir" --prompt "It is a truth" --tokens 400
