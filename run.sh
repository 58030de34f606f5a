#!/usr/bin/env bash
# Installs what is missing, builds build/release/stepcast and forecasts a step of a 1.8 T-parameter MoE on 1024 H100.
# With arguments: runs stepcast with them instead. JOBS sets the number of parallel jobs.
set -euo pipefail
root=$(cd "$(dirname "$0")" && pwd)
"$root/scripts/dependencies.sh" build >&2
"$root/scripts/build.sh" release stepcast >&2
[ $# -gt 0 ] || set -- simulate "$root/scenarios/moe-1.8t-1024xh100.json"
exec "$root/build/release/stepcast" "$@"
