#!/usr/bin/env bash
# Fetches a text to train on and prints its path. See --help.
set -euo pipefail

usage() {
    cat <<'END'
usage: get_data.sh [--sha256 SUM] [NAME [OUTFILE]]

Fetches a text to train on, checks its SHA-256 and prints its path as the last line of stdout. OUTFILE is
data/text/NAME.txt by default. A text that is already there is checked and kept; no network is needed then.

NAME is one of
  austen       Jane Austen's six novels, 4.0 MB, from the Debian package r-cran-janeaustenr (default)
  kjv          the King James Bible, 4.4 MB, from the Debian packages bible-kjv and bible-kjv-text
  shakespeare  "tiny shakespeare", 1.1 MB, from github.com/karpathy/char-rnn
  tinystories  TinyStories (GPT-4, validation part), 22 MB, from huggingface.co; needs --sha256

--sha256 SUM         accept the text with this checksum, and no other
TANDEM_DATA_URL=URL  (environment) take shakespeare or tinystories from there

Exit code: 0 the text is there; 2 it is not (a wrong name, no network, a wrong checksum), and nothing was written.
END
}

say() { printf '%s\n' "$*" >&2; }
stop() { say "get_data.sh: $*"; exit 2; }

known_sum() {
    case $1 in
    austen) echo f2516f2139e3cecf49657122fed58ac46313f1fdff32a26fc66789293e92d573 ;;
    kjv) echo cd45f0c9cedab8e4439bd6486c8952c77cc8b0ecc5d1f6ae3513f2039f47229d ;;
    shakespeare) echo 86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed ;;
    tinystories) ;; # no published checksum is known: the user confirms one
    *) stop "there is no text \"$1\"; the texts are: austen, kjv, shakespeare, tinystories" ;;
    esac
}

# Stops unless file $1, which the user knows as $2, has the checksum $sum; $3 says what to do then.
check_sum() {
    local found
    found=$(sha256sum <"$1")
    found=${found%% *}
    [ -n "$sum" ] || stop "no checksum of $name is known; $2 has SHA-256 $found: if you trust it, add --sha256 $found"
    [ "$found" = "$sum" ] || stop "$2 has SHA-256 $found, expected $sum: $3"
}

# Unpacks Debian packages $@ into $work/root, without installing them.
unpack_packages() {
    local apt=(apt-get -q -o Acquire::http::Timeout=20 -o Acquire::Retries=1)
    local package root=() hint="use another text, or a machine with Debian's or Ubuntu's packages"
    command -v apt-get >/dev/null || stop "$name comes from a Debian package, and there is no apt-get here: $hint"
    if [ "$(id -u)" -eq 0 ]; then apt+=(-o APT::Sandbox::User=root); else root=(sudo -n); fi
    cd "$work"
    say "fetching $* with apt-get"
    if ! "${apt[@]}" download "$@" >&2; then
        say "trying again with a fresh package list"
        "${root[@]}" "${apt[@]}" update >&2 || say "cannot update the package list"
        "${apt[@]}" download "$@" >&2 || stop "cannot fetch $*: is the package mirror reachable? If not, $hint"
    fi
    for package in *.deb; do dpkg-deb -x "$package" root || stop "cannot unpack $package"; done
}

fetch_austen() {
    unpack_packages r-cran-janeaustenr
    # in the order in which they were published
    python3 "$scripts/read_rdb.py" root/usr/lib/R/site-library/janeaustenr/data/Rdata sensesensibility \
        prideprejudice mansfieldpark emma northangerabbey persuasion >"$work/text" ||
        stop "cannot read the novels: see above"
}

fetch_kjv() {
    unpack_packages bible-kjv bible-kjv-text
    cd "$work/root/usr/lib" # the program looks for its data in the folder it runs in
    ../bin/bible -f gen1:1-rev22:21 >"$work/text" || stop "the bible program failed: see above"
}

fetch_url() {
    local url=${TANDEM_DATA_URL:-$1} fetch
    if command -v curl >/dev/null; then
        fetch=(curl -fsSL --connect-timeout 20 --max-time 900 -o "$work/text" "$url")
    elif command -v wget >/dev/null; then
        fetch=(timeout 900 wget -q --timeout=20 --tries=2 -O "$work/text" "$url")
    else
        stop "neither curl nor wget is here: install one of them"
    fi
    say "fetching $url"
    "${fetch[@]}" >&2 ||
        stop "cannot fetch $url: is there internet? If not, austen and kjv need only a Debian package mirror"
}

fetch_shakespeare() {
    fetch_url https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt
}

fetch_tinystories() {
    fetch_url https://huggingface.co/datasets/roneneldan/TinyStories/resolve/main/TinyStoriesV2-GPT4-valid.txt
}

sum='' words=()
while [ $# -gt 0 ]; do
    case $1 in
    --help | -h) usage; exit 0 ;;
    --sha256) [ $# -ge 2 ] || stop "--sha256 needs a checksum"; sum=$2; shift 2 ;;
    --sha256=*) sum=${1#*=}; shift ;;
    -*) stop "there is no option $1; see --help" ;;
    *) words+=("$1"); shift ;;
    esac
done
[ ${#words[@]} -le 2 ] || stop "expected NAME and OUTFILE, found ${#words[@]} words; see --help"
[ -z "$sum" ] || [[ $sum =~ ^[0-9a-f]{64}$ ]] || stop "--sha256 \"$sum\" is not 64 lower-case hexadecimal digits"

scripts=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
name=${words[0]:-austen}
known=$(known_sum "$name")
sum=${sum:-$known}
out=${words[1]:-$(dirname "$scripts")/data/text/$name.txt}

if [ -e "$out" ]; then
    [ -f "$out" ] || stop "$out is not a file: move it away, or name another OUTFILE"
    check_sum "$out" "$out" "it is not the expected text; move it away, or name another OUTFILE"
    say "$out is there already"
else
    folder=$(dirname "$out")
    mkdir -p "$folder" || stop "cannot make the folder $folder"
    folder=$(cd "$folder" && pwd)
    place=$folder/$(basename "$out")
    work=$(mktemp -d "$folder/.get_data.XXXXXX") || stop "cannot write to $folder"
    trap 'rm -rf "$work"' EXIT
    trap 'exit 2' INT TERM HUP
    "fetch_$name"
    check_sum "$work/text" "the text that came" \
        "the source has changed or something damaged it on its way; if you trust it, add --sha256 with its sum"
    mv "$work/text" "$place"
fi
printf '%s\n' "$out"
