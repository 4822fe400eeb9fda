#!/bin/sh
# systemd.sh [MODEL]: boots a systemd in namespaces of its own and runs the unit under it: readiness, the user and its
# rights, a reload, an engine that is killed, the watchdog, the end, a model that is not there. Needs root, unshare,
# cgroups in the hybrid or the unified form, and $INVAR_SYSTEMD_ROOT, or debootstrap and network to Debian's mirror to make
# it. Takes minutes; not part of ./run test.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../.." && pwd)
program=${INVAR_BINARY:-$root/build/invar}
model=${1:-$root/models/tiny-math}
work=$(mktemp -d)
rootfs=${INVAR_SYSTEMD_ROOT:-$work/root}
port=${INVAR_PORT:-18123}
first= outer= # the systemd, and its parent

die() {
    echo "systemd: $1" >&2
    [ -z "$first" ] || inside journalctl --no-pager -u invar -n 30 >&2 || true
    exit 1
}
end() {
    [ -z "$outer" ] || kill -9 "$outer" || true # unshare, and its child with it
    [ -z "$outer" ] || wait "$outer" 2>/dev/null || true
    sleep 0.5
    for tree in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
        find "$tree/invar-unit-test" -depth -type d -exec rmdir {} \; 2>/dev/null || true
    done
    rm -rf "$work"
}
trap end EXIT

[ -d "$rootfs" ] || debootstrap --variant=minbase --include=systemd,systemd-sysv,dbus,curl bookworm "$rootfs" >"$work/debootstrap.log" 2>&1 ||
    die "debootstrap: $(tail -1 "$work/debootstrap.log")"
install -D -m 755 "$program" "$rootfs/usr/bin/invar"
install -D -m 644 "$root/deploy/systemd/invar.service" "$rootfs/etc/systemd/system/invar.service"
mkdir -p "$rootfs/etc/invar"
printf 'model: /srv/model\nhost: 127.0.0.1\nport: %s\n' "$port" >"$rootfs/etc/invar/serve.yaml"
rm -rf "$rootfs/srv/model" "$rootfs/var/log/journal"
cp -rL "$model" "$rootfs/srv/model"
chmod -R a+rX "$rootfs/srv/model"

# Its own processes, mounts, names and control groups; the network is this machine's. No chroot: there, the kernel refuses
# the namespace of PrivateUsers.
cat >"$work/boot" <<'END'
set -e
cd "$1"
mount --bind . .
cd "$1"
mount -t proc proc proc
mount -t sysfs -o ro sys sys
if [ -d /sys/fs/cgroup/unified ]; then
    mount -t tmpfs tmpfs sys/fs/cgroup
    mkdir sys/fs/cgroup/unified sys/fs/cgroup/systemd
    mount -t cgroup2 cgroup2 sys/fs/cgroup/unified
    mount -t cgroup -o none,name=systemd cgroup sys/fs/cgroup/systemd
else
    mount -t cgroup2 cgroup2 sys/fs/cgroup
fi
mount -t tmpfs tmpfs run
mount -t tmpfs tmpfs tmp
mount --rbind /dev dev
mkdir -p old
pivot_root . old
umount -l /old
exec /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin container=unshare /lib/systemd/systemd --log-target=journal-or-kmsg
END
(
    for tree in /sys/fs/cgroup /sys/fs/cgroup/systemd /sys/fs/cgroup/unified; do
        [ -f "$tree/cgroup.procs" ] || continue
        mkdir -p "$tree/invar-unit-test"
        sh -c 'echo $PPID' >"$tree/invar-unit-test/cgroup.procs"
    done
    exec setsid unshare --pid --fork --kill-child --mount --uts --ipc --cgroup --propagation private sh "$work/boot" "$rootfs"
) >"$work/boot.log" 2>&1 </dev/null &
outer=$!

inside() {
    nsenter -t "$first" -m -u -i -p -C "-r/proc/$first/root" "-w/proc/$first/root" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin "$@"
}
# until SECONDS COMMAND...: false if it has not succeeded by then.
until_true() {
    tries=$(($1 * 5))
    shift
    while [ "$tries" -gt 0 ]; do
        "$@" >/dev/null 2>&1 && return 0
        tries=$((tries - 1))
        sleep 0.2
    done
    return 1
}
find_first() {
    found=$(cat "/proc/$outer/task/$outer/children") && found=${found% }
    [ "$(cat "/proc/$found/comm")" = systemd ] && first=$found
}
until_true 10 find_first || die "unshare: $(cat "$work/boot.log")"
until_true 60 inside systemctl is-system-running || die "it does not boot: $(cat "$work/boot.log")$(inside systemctl --failed --no-pager)"

property() { inside systemctl show -P "$1" invar; }
digest() {
    inside curl -s "http://127.0.0.1:$port/v1/completions" -d '{"prompt": "2 + 2 =", "temperature": 0, "max_tokens": 20, "seed": 1}' |
        sed -n 's/.*"digest": *"\([^"]*\)".*/\1/p'
}
journal_has() { inside journalctl --no-pager -u invar | grep -q "$1"; }
engine() { inside cat "/proc/$1/task/$1/children"; }

inside systemctl start invar || die "the unit does not start"
[ "$(property StatusText)" = listening ] || die "wanted the status 'listening', found '$(property StatusText)'"
wanted=$(digest)
here=$("$program" generate "$model" -p '2 + 2 =' --temperature 0 --max-tokens 20 --seed 1 --device cpu --json | sed -n 's/.*"digest": *"\([^"]*\)".*/\1/p')
[ -n "$wanted" ] && [ "$wanted" = "$here" ] || die "wanted the digest $here of $program, found $wanted"

main=$(inside cat /sys/fs/cgroup/systemd/system.slice/invar.service/cgroup.procs 2>/dev/null || inside cat /sys/fs/cgroup/system.slice/invar.service/cgroup.procs)
for pid in $main; do # the server and its engine
    status=$(inside cat "/proc/$pid/status")
    for line in 'NoNewPrivs:	1' 'Seccomp:	2' 'CapEff:	0000000000000000' 'CapBnd:	0000000000000000'; do
        echo "$status" | grep -q "^$line" || die "process $pid: wanted $line"
    done
    echo "$status" | grep -q '^Uid:	0' && die "process $pid is root"
done
[ "$(echo "$main" | wc -w)" = 2 ] || die "wanted two processes, found $main"

main=$(property MainPID)
inside systemctl reload invar
until_true 10 journal_has SIGHUP || die "no reload"
before=$(engine "$main")
inside kill -9 $before
until_true 20 journal_has 'the engine process is back' || die "the engine is not back"
[ "$(digest)" = "$wanted" ] && [ "$(property MainPID)" = "$main" ] && [ "$(engine "$main")" != "$before" ] || die "after its engine was killed: another digest or server"

inside kill -STOP "$main"
until_true 60 journal_has 'Watchdog timeout' || die "no watchdog"
restarted() { [ "$(property ActiveState)" = active ] && [ "$(property MainPID)" != "$main" ]; }
until_true 60 restarted || die "no restart by the watchdog"
[ "$(digest)" = "$wanted" ] || die "after the watchdog's restart: another digest"

inside systemctl stop invar
[ "$(property ActiveState) $(property Result) $(property ExecMainStatus)" = "inactive success 0" ] ||
    die "the end: $(property ActiveState) $(property Result) $(property ExecMainStatus)"
mv "$rootfs/srv/model" "$rootfs/srv/none"
if inside systemctl start invar 2>/dev/null; then die "control: it starts without a model"; fi
until_true 10 journal_has 'config.json' || die "the journal does not say what is missing"
mv "$rootfs/srv/none" "$rootfs/srv/model"
echo "systemd $(inside systemctl --version | sed -n '1s/systemd \([0-9]*\).*/\1/p'): the unit starts, is confined, reloads, restarts, and ends; digest $wanted"
