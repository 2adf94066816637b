#!/usr/bin/env bash
# Run pytest, and the few tests that failed again, alone, at most twice: `tests/again.sh NAME PYTEST ARGUMENTS...`.
# Whole swarms on two busy cores can fail a test that holds; such a test is named as unsteady and has to be mended.
# A test that fails each time fails, and so does every run with failures in more than MOST files: they are no accident.
# NAME is that of the cache.
set -euo pipefail
MOST=12
TRIES=2
name=$1
shift
cache=(-o "cache_dir=.pytest_cache/$name")
alone=()
case " $* " in *" --forks "*) alone=(--forks 0) ;; esac
code=0
"$@" "${cache[@]}" --cache-clear || code=$?
failed=.pytest_cache/$name/v/cache/lastfailed
unsteady=
for _ in $(seq "$TRIES"); do
    # Exit code 1 is failed tests; anything else is pytest's own trouble.
    if [ "$code" != 1 ] || [ ! -s "$failed" ]; then break; fi
    tests=$(sed -n 's/^ *"\(.*\)": true,\{0,1\}$/\1/p' "$failed")
    files=$(sed 's/::.*//' <<<"$tests" | sort -u | wc -l)
    if [ "$files" -gt "$MOST" ]; then break; fi
    unsteady=${unsteady:-$tests}
    printf 'failed, run again alone:\n%s\n' "$tests"
    code=0
    "$@" "${cache[@]}" "${alone[@]}" --last-failed --last-failed-no-failures none || code=$?
done
if [ "$code" = 0 ] && [ -n "$unsteady" ]; then printf 'UNSTEADY: failed and passed alone:\n%s\n' "$unsteady"; fi
exit "$code"
