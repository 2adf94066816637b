#!/usr/bin/env bash
# Builds the image of k8s/Dockerfile and runs the command that is given with LLM_LOCUST_TEST_IMAGE naming it:
#   tests/pods/pods.sh .venv/bin/pytest tests/pods
# No container registry is asked: the base image is Debian's Python, made by mmdebstrap. Needs root; on Debian
# it installs podman and what else is missing. Where that is not to be had it says so and ends well. The base
# and the image's layers are kept for the next time; `tests/pods/pods.sh --clean` removes them.
set -euo pipefail
cd "$(dirname "$0")/../.."

suite=$(. /etc/os-release 2>/dev/null && echo "${VERSION_CODENAME:-}")
base=localhost/llm-locust-debian:$suite-4 # another number where make_base makes another one
build_base=localhost/llm-locust-debian-build:$suite-4
label=org.opencontainers.image.title=llm-locust
export LLM_LOCUST_TEST_IMAGE=localhost/llm-locust:test

skip() {
    echo "SKIPPED the pods of the demo overlay: $1"
    exit 0
}

# Do a step and say how long it took; what it prints is shown where it fails, and was the last of them.
step() {
    local name=$1 began=$SECONDS
    shift
    "$@" >"$work/log" 2>&1 || return 1
    echo "$name: $((SECONDS - began)) s"
}

is_missing() {
    local tool
    for tool in podman runc mmdebstrap nft; do
        PATH="$PATH:/usr/sbin" command -v "$tool" >/dev/null || return 0
    done
    [ ! -x /usr/lib/podman/netavark ] || [ ! -x /usr/lib/podman/aardvark-dns ]
}

install_tools() {
    apt-get update -q && apt-get install -qy --no-install-recommends \
        podman netavark aardvark-dns runc mmdebstrap nftables iptables catatonit uidmap
}

# Debian's packages unpacked and not configured: enough for Python, in half the time. `make_base IMAGE [PACKAGES]`.
make_base() {
    # shellcheck disable=SC2016 # $1 is mmdebstrap's
    mmdebstrap --variant=extract --aptopt='Acquire::Languages "none"' \
        --include=python3,python3-venv,libstdc++6,ca-certificates,tzdata \
        --include=base-files,coreutils,dash,findutils,libc-bin,grep${2:+,$2} \
        --dpkgopt='path-exclude=/usr/share/doc/*' --dpkgopt='path-exclude=/usr/share/locale/*' \
        --extract-hook='ln -s python3 "$1/usr/bin/python"; ldconfig -r "$1"; rm -rf "$1/var/lib/apt"' \
        "$suite" "$work/base.tar" && podman import --quiet "$work/base.tar" "$1"
}

# The build's pip trusts and asks whom this machine's pip does; nothing of it stays in the image.
build_image() {
    local options=(--pull=never --network=host --build-arg "PYTHON_VERSION=$version" --build-arg "BUILD_BASE=$build_base")
    local certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
    if [ -r "$certificates" ]; then
        printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$work/pip.conf"
        options+=(--volume "$certificates:/etc/ssl/certs/ca-certificates.crt:ro"
            --volume "$work/pip.conf:/etc/pip.conf:ro")
    fi
    local index=${PIP_INDEX_URL:-$(python3 -m pip config get global.index-url 2>/dev/null || true)}
    [ -z "$index" ] || options+=(--build-arg "PIP_INDEX_URL=$index")
    podman build "${options[@]}" --file k8s/Dockerfile --tag "$LLM_LOCUST_TEST_IMAGE" . &&
        podman image prune --force --filter "label=$label" --filter until=24h
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' '[containers]' 'default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]' \
    '[engine]' 'runtime = "runc"' >"$work/containers.conf"
export CONTAINERS_CONF="$work/containers.conf"

if [ "${1:-}" = --clean ]; then
    command -v podman >/dev/null || exit 0
    podman image rm --ignore "$LLM_LOCUST_TEST_IMAGE"
    podman image prune --force --filter "label=$label"
    for image in "$base" "$build_base"; do podman image ls --quiet "$image"; done | xargs --no-run-if-empty podman image rm --force
    exit 0
fi

[ "$(id -u)" = 0 ] || skip "podman needs root here"
if is_missing; then
    command -v apt-get >/dev/null || skip "podman, runc or mmdebstrap is not installed, nor is apt-get"
    step "podman and mmdebstrap installed" install_tools ||
        skip "apt-get cannot install podman and mmdebstrap: $(tail -n 1 "$work/log")"
fi
step "podman looked at" podman info || skip "podman does not work: $(tail -n 1 "$work/log")"
podman image exists "$base" || step "base made" make_base "$base" ||
    skip "mmdebstrap cannot make a Debian base: $(tail -n 1 "$work/log")"
podman image exists "$build_base" || step "base with a compiler made" make_base "$build_base" gcc,libc6-dev,libpython3-dev ||
    skip "mmdebstrap cannot make a Debian base with a compiler: $(tail -n 1 "$work/log")"
version=$(podman run --rm "$base" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>"$work/log") ||
    skip "podman cannot run a container: $(tail -n 1 "$work/log")"
podman tag "$base" "localhost/python:$version-slim" # by the official image's name: the Dockerfile stays as it is
step "image built" build_image || { tail -n 30 "$work/log" >&2; exit 1; }
podman image inspect --format 'image: {{.Size}} bytes' "$LLM_LOCUST_TEST_IMAGE"
podman image inspect --format 'of these its base: {{.Size}} bytes' "$base"
"$@"
