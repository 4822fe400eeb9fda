#!/bin/sh
# image.sh [MODEL]: builds an image by buildah and runs it as its user, on CPUs: without root, without a writable file
# system of its own, and asks it a question. $INVAR_IMAGE_TARGET: cpu (the default) or cuda. Needs root, buildah, network
# to Debian's mirror, and the base images: from a registry, or made by debootstrap where there is none
# ($INVAR_IMAGE_BASE=debootstrap, or the folder of a Debian; NVIDIA's base is then this machine's toolkit over it,
# $INVAR_IMAGE_CUDA, and compilations are looked up in $INVAR_IMAGE_CCACHE, if ccache is in that Debian). $INVAR_IMAGE_SAVE:
# where the image's files go as a tar file. Takes minutes, for cuda much longer; not part of ./run test.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
model=${1:-$root/models/tiny-math}
work=${INVAR_IMAGE_WORK:-$(mktemp -d)}
target=${INVAR_IMAGE_TARGET:-cpu}
tag=invar:$target
base=debian:12-slim
cuda=nvidia/cuda:12.6.3-devel-ubuntu22.04
mounts=
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot

die() {
    echo "image: $1" >&2
    exit 1
}
store() { buildah --root "$work/store" --runroot "$work/run" "$@"; }

mkdir -p "$work"
# image_of FOLDER NAME WORDS...: an image of a folder with further settings.
image_of() {
    folder=$1 name=$2
    shift 2
    empty=$(store from scratch)
    store copy -q "$empty" "$folder" / >/dev/null
    [ $# = 0 ] || store config "$@" "$empty"
    store commit -q --rm "$empty" "$name" >/dev/null
}
if [ -n "${INVAR_IMAGE_BASE:-}" ]; then
    base=localhost/debian:12-slim cuda=localhost/cuda:devel
    if ! store images "$base" >/dev/null 2>&1; then
        rootfs=$INVAR_IMAGE_BASE
        if [ "$rootfs" = debootstrap ]; then
            rootfs=$work/rootfs
            debootstrap --variant=minbase bookworm "$rootfs" >"$work/debootstrap.log" 2>&1 || die "debootstrap: see $work/debootstrap.log"
        fi
        rm -rf "$rootfs"/var/cache/apt/archives/*.deb "$rootfs"/var/lib/apt/lists/*
        image_of "$rootfs" "$base"
        [ "$target" = cpu ] || image_of "$rootfs" "$cuda" --env PATH=/usr/local/cuda/bin:/usr/sbin:/usr/bin:/sbin:/bin \
            --env CCACHE_DIR=/ccache --env CCACHE_BASEDIR=/src --env CCACHE_NOHASHDIR=1 --env CMAKE_C_COMPILER_LAUNCHER="${INVAR_IMAGE_CCACHE:+ccache}" \
            --env CMAKE_CUDA_COMPILER_LAUNCHER="${INVAR_IMAGE_CCACHE:+ccache}"
    fi
    [ "$target" = cpu ] || mounts="-v $(realpath "${INVAR_IMAGE_CUDA:-/usr/local/cuda}"):/usr/local/cuda:ro ${INVAR_IMAGE_CCACHE:+-v $INVAR_IMAGE_CCACHE:/ccache}"
fi

# The committed files alone are the context. $INVAR_IMAGE_KEEP: an image of an earlier run in $INVAR_IMAGE_WORK.
build_image() {
    rm -rf "$work/context"
    mkdir "$work/context"
    git -C "$root" archive HEAD | tar -x -C "$work/context"
    # shellcheck disable=SC2086
    (cd "$work/context" && store bud --format docker --build-arg "DEBIAN=$base" --build-arg "CUDA_DEVEL=$cuda" --target "$target" $mounts \
        --ignorefile deploy/docker/Dockerfile.dockerignore -f deploy/docker/Dockerfile -t "$tag" .) >"$work/build.log" 2>&1 ||
        die "build: see $work/build.log"
}
[ -n "${INVAR_IMAGE_KEEP:-}" ] || build_image

user=$(store inspect --type image --format '{{.OCIv1.Config.User}}' "$tag")
[ "$user" = 10001:10001 ] || die "wanted user 10001:10001, found $user"
size=$(store images --format '{{.Size}}' "$tag")
container=$(store from "$tag")
trap 'store rm "$container" >/dev/null 2>&1 || true' EXIT
store run --user 10001:10001 "$container" -- /usr/bin/invar --version || die "the program does not start"
if store run --user 10001:10001 "$container" -- /bin/sh -c 'touch /usr/bin/x /etc/x' 2>/dev/null; then
    die "its user may write to the image"
fi
answer() {
    store run --user 10001:10001 -v "$model:/models/model:ro" "$container" -- /usr/bin/invar generate /models/model \
        -p '2 + 2 =' --temperature 0 --max-tokens 20 --arithmetic fma32 --json
}
digest=$(answer | sed -n 's/.*"digest": *"\([^"]*\)".*/\1/p')
[ -n "$digest" ] || die "no digest in its answer"
if [ -x "$root/build/invar" ]; then
    here=$("$root/build/invar" generate "$model" -p '2 + 2 =' --temperature 0 --max-tokens 20 --arithmetic fma32 --device cpu --json |
        sed -n 's/.*"digest": *"\([^"]*\)".*/\1/p')
    [ "$here" = "$digest" ] || die "wanted the digest $here of build/invar, found $digest"
fi

# The default command, the health check of the image, and the end by its stop signal.
store run --user 10001:10001 -v "$model:/models/model:ro" "$container" -- /bin/bash -c '
    /usr/bin/invar serve --config /etc/invar/serve.yaml 2>/tmp/log & pid=$!
    for i in $(seq 600); do grep -q listening /tmp/log && break; sleep 0.1; done
    exec 3<>/dev/tcp/127.0.0.1/8000 && printf "GET /health HTTP/1.0\r\nHost: localhost\r\n\r\n" >&3 && read -r _ status _ <&3
    kill -TERM $pid; wait $pid; code=$?
    cat /tmp/log
    [ "$status" = 200 ] && [ "$code" = 0 ]' >"$work/serve.log" 2>&1 || die "serve: see $work/serve.log"
[ -z "${INVAR_IMAGE_SAVE:-}" ] || tar -C "$(store mount "$container")" -cf "$INVAR_IMAGE_SAVE" .
echo "image $target: built, $size, user $user; answers with digest $digest, healthy, ends by SIGTERM"
