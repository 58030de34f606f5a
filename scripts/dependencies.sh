#!/usr/bin/env bash
# Installs those Debian packages of the named groups that are missing. usage: scripts/dependencies.sh GROUP...
#   build: to build and run    test: to build the tests too    check: format and lint
set -euo pipefail

packages=()
for group in "$@"; do
  case "$group" in
    build) packages+=(g++ cmake ninja-build ccache nlohmann-json3-dev libvalijson-dev libcli11-dev libfmt-dev libtbb-dev libssl-dev libyaml-cpp-dev) ;;
    test) packages+=(libgtest-dev libgmock-dev librapidcheck-dev libbenchmark-dev) ;;
    check) packages+=(git clang-format-14 clang-tidy-14) ;;
    *) echo "$0: unknown group '$group'" >&2; exit 2 ;;
  esac
done

if ! command -v dpkg-query >/dev/null; then
  echo "Not a Debian system; these packages are needed: ${packages[*]}" >&2
  exit 0  # CMake names what is missing
fi
missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f='${db:Status-Status}\n' "$package" 2>/dev/null | head -n 1)" = installed ] || missing+=("$package")
done
[ ${#missing[@]} -eq 0 ] && exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || { echo "Run as root or with sudo: apt-get install ${missing[*]}" >&2; exit 1; }
  as_root=(sudo)
fi
apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -q -y --no-install-recommends "$@" </dev/null; }
echo "Installing: ${missing[*]}"
apt install "${missing[@]}" >/dev/null 2>&1 || { apt update && apt install "${missing[@]}"; }
