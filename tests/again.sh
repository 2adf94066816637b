#!/usr/bin/env bash
# Run pytest, and the few tests that failed once more, alone: `tests/again.sh NAME PYTEST ARGUMENTS...`.
# Whole swarms on two busy cores can fail a test that holds; such a test is named as unsteady and has to be mended.
# A test that fails twice fails, and so does every run with failures in more than MOST files. NAME is that of the cache.
set -euo pipefail
MOST=6
name=$1
shift
cache=(-o "cache_dir=.pytest_cache/$name")
code=0
"$@" "${cache[@]}" --cache-clear || code=$?
failed=.pytest_cache/$name/v/cache/lastfailed
# Exit code 1 is failed tests; anything else is pytest's own trouble.
if [ "$code" != 1 ] || [ ! -s "$failed" ]; then exit "$code"; fi
tests=$(sed -n 's/^ *"\(.*\)": true,\{0,1\}$/\1/p' "$failed")
files=$(sed 's/::.*//' <<<"$tests" | sort -u | wc -l)
if [ "$files" -gt "$MOST" ]; then exit "$code"; fi
printf 'failed once, run again alone:\n%s\n' "$tests"
"$@" "${cache[@]}" -n 0 --last-failed --last-failed-no-failures none
printf 'UNSTEADY: failed once and passed alone:\n%s\n' "$tests"
