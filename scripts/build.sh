#!/usr/bin/env bash
# Configures and builds a preset. usage: scripts/build.sh PRESET TARGET [CMAKE_OPTION...]     JOBS: parallel jobs
set -euo pipefail
cd "$(dirname "$0")/.."
preset=$1 target=$2
shift 2
cmake --preset "$preset" "$@" >/dev/null
cmake --build "build/$preset" --target "$target" --parallel "${JOBS:-$(nproc)}"
