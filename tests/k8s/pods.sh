#!/usr/bin/env bash
# Builds the image of k8s/Dockerfile and runs the command that is given with LLM_LOCUST_TEST_IMAGE naming it:
#   tests/k8s/pods.sh .venv/bin/pytest tests/k8s
# No container registry is asked: the base image is Debian's Python, made by mmdebstrap. Needs root; on Debian
# it installs podman and what else is missing. Where that is not to be had it says so and ends well.
set -euo pipefail
cd "$(dirname "$0")/../.."

skip() {
    echo "SKIPPED the pods of the demo overlay: $1"
    exit 0
}

[ "$(id -u)" = 0 ] || skip "podman needs root here"
tools=(podman netavark aardvark-dns runc mmdebstrap nftables iptables catatonit)
if ! command -v podman runc mmdebstrap >/dev/null; then
    command -v apt-get >/dev/null || skip "podman, runc and mmdebstrap are not installed, nor is apt-get"
    log=$(mktemp)
    { apt-get update -q && apt-get install -qy --no-install-recommends "${tools[@]}"; } >"$log" 2>&1 ||
        skip "apt-get cannot install ${tools[*]}: $(tail -n 1 "$log")"
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
printf '%s\n' '[containers]' 'default_ulimits = ["nofile=20000:20000", "nproc=32768:32768"]' \
    '[engine]' 'runtime = "runc"' >"$work/containers.conf"
export CONTAINERS_CONF="$work/containers.conf"
podman info >/dev/null 2>"$work/info" || skip "podman does not work: $(tail -n 1 "$work/info")"

# A stand-in for the official image, by its name: the Dockerfile stays as it is.
base=localhost/llm-locust-debian:base
if ! podman image exists "$base"; then
    suite=$(. /etc/os-release && echo "$VERSION_CODENAME")
    mmdebstrap --quiet --variant=minbase --include=python3,python3-venv,ca-certificates \
        "$suite" "$work/base.tar" || skip "mmdebstrap cannot make a Debian base"
    podman import --quiet "$work/base.tar" "$base" >/dev/null
fi
version=$(podman run --rm "$base" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
podman build --quiet --tag "localhost/python:$version-slim" - >/dev/null <<EOF
FROM $base
RUN ln -sf python3 /usr/bin/python
EOF

# The build's pip trusts and asks whom this machine's pip does; nothing of it stays in the image.
build=(--pull=never --network=host --build-arg "PYTHON_VERSION=$version")
certificates=${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}
if [ -r "$certificates" ]; then
    printf '[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n' >"$work/pip.conf"
    build+=(--volume "$certificates:/etc/ssl/certs/ca-certificates.crt:ro" --volume "$work/pip.conf:/etc/pip.conf:ro")
fi
[ -z "${PIP_INDEX_URL:-}" ] || build+=(--env "PIP_INDEX_URL=$PIP_INDEX_URL")
export LLM_LOCUST_TEST_IMAGE=localhost/llm-locust:test
podman build "${build[@]}" --file k8s/Dockerfile --tag "$LLM_LOCUST_TEST_IMAGE" . >"$work/build" 2>&1 ||
    { tail -n 30 "$work/build" >&2; exit 1; }
podman image inspect --format 'image: {{.Size}} bytes' "$LLM_LOCUST_TEST_IMAGE"
podman image inspect --format 'of these its base: {{.Size}} bytes' "localhost/python:$version-slim"
"$@"
