#!/usr/bin/env bash
# clang-tidy on the sources changed since the last commit over a day old, or on all if there is none; at most
# TIDY_LIMIT files (default 60). usage: scripts/tidy.sh [PRESET]     a configured build preset, default release
set -euo pipefail
cd "$(dirname "$0")/.."
preset=${1:-release} jobs=${JOBS:-$(nproc)} limit=${TIDY_LIMIT:-60}

base=$(git rev-list -1 --before='1 day ago' HEAD 2>/dev/null || true)
if [ -n "$base" ]; then
  changed=$(git diff --name-only --diff-filter=d "$base" -- sim tests)
else
  changed=$(git ls-files sim tests)
fi
# A header is checked through the source of the same name.
mapfile -t files < <(sed -n 's/\.\(h\|cpp\)$/.cpp/p' <<<"$changed" | sort -u | while read -r file; do
  [ -f "$file" ] && echo "$file"
done)
echo "clang-tidy: ${#files[@]} files"
if [ ${#files[@]} -gt "$limit" ]; then
  echo "clang-tidy: only the first $limit are checked"
  files=("${files[@]:0:$limit}")
fi
[ ${#files[@]} -gt 0 ] || exit 0
printf '%s\0' "${files[@]}" | xargs -0 -n 1 -P "$jobs" bash -c '
  report=$(clang-tidy-14 -p "build/$0" --quiet --extra-arg=-Wno-unknown-warning-option "$1" 2>&1) ||
    { grep -v "warnings generated" <<<"$report"; exit 1; }
' "$preset"
