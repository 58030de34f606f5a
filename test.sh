#!/usr/bin/env bash
# Installs what is missing, builds and runs all tests. Arguments go to ctest, e.g.:
#   ./test.sh -R unit_memory     only tests with that name       ./test.sh -L fast     only tests with that label
# Tests against data that is not part of the project skip unless STEPCAST_DATA names its folder.
# JOBS sets the number of parallel jobs.
set -euo pipefail
cd "$(dirname "$0")"
scripts/dependencies.sh build test
scripts/build.sh release all -DSTEPCAST_TESTS=ON
exec ctest --preset release --parallel "${JOBS:-$(nproc)}" "$@"
