#!/usr/bin/env bash
# Installs the Debian packages tandem needs and that are missing: install_deps.sh build|demo|test|plot|lint ...
# Says what it does and asks nothing. Does nothing, and needs no network, when everything is there.
set -euo pipefail

packages_for() {
    case $1 in
    build) echo gcc make libc6-dev libopenmpi-dev openmpi-bin libdnnl-dev libcjson-dev libinih-dev zlib1g-dev ;;
    demo) echo python3 ca-certificates ;;
    test) echo python3 python3-pytest python3-matplotlib libcmocka-dev iproute2 procps curl wget ca-certificates ;;
    plot) echo python3 python3-matplotlib ;;
    lint) echo clang-format clang-tidy shellcheck ;;
    *) echo "install_deps.sh: found '$1', expected build, demo, test, plot or lint" >&2 && exit 2 ;;
    esac
}

missing=()
for set in "${@:-build}"; do
    for package in $(packages_for "$set"); do
        state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null || true)
        [ "$state" = installed ] || missing+=("$package")
    done
done
[ ${#missing[@]} -gt 0 ] || exit 0

if ! command -v apt-get >/dev/null; then
    echo "install_deps.sh: found no apt-get; install these by hand (names as in Debian): ${missing[*]}" >&2
    exit 1
fi
as_root=()
if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || { echo "install_deps.sh: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 1; }
    as_root=(sudo)
fi
echo "Installing from Debian: ${missing[*]}"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
install() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; }
# The package lists of a new machine may be empty or old: refresh them once if the first try fails.
if ! install >"$log" 2>&1; then
    "${as_root[@]}" apt-get update >>"$log" 2>&1 || true
    install >>"$log" 2>&1 || { tail -n 20 "$log" >&2; echo "install_deps.sh: apt-get failed; see above" >&2; exit 1; }
fi
