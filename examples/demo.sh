#!/usr/bin/env bash
# A load test without a GPU: four simulated replicas behind a gateway on loopback, one Locust master
# and two workers against them for 20 seconds. Leaves the run in build/demo, in place of an earlier one.
set -euo pipefail
cd "$(dirname "$0")/.."

work=$(mktemp -d)
llm-locust sim --replicas 4 --port 0 --seed 1 >"$work/sim.log" 2>&1 &
sim=$!
trap 'kill "$sim" 2>/dev/null || true; wait "$sim" 2>/dev/null || true; rm -rf "$work"' EXIT

for _ in $(seq 100); do
    grep -q '^listening on ' "$work/sim.log" && break
    kill -0 "$sim" 2>/dev/null || { cat "$work/sim.log" >&2; exit 1; }
    sleep 0.1
done
url=$(sed -n 's/^listening on \([^ ]*\).*/\1/p' "$work/sim.log")
cat "$work/sim.log"

rm -rf build/demo
locust -f locustfiles/chat.py --headless --only-summary -u 40 -r 20 -t 20s --processes 2 -H "$url" \
    --input-tokens lognormal:256,0.6 --output-tokens uniform:32,128 \
    --slo "ttft=500ms tpot=50ms" --warmup 2s --out build/demo
