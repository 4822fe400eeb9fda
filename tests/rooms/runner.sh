#!/bin/sh
# A test program runs the group, case or pattern named on its command line. Usage: runner.sh TEST_PROGRAM
set -u
program=$1
expect() { # expect CASES-RUN EXIT-STATUS [ARGUMENTS]
    want=$1 want_status=$2
    shift 2
    out=$("$program" "$@" 2>&1) && status=0 || status=$?
    ran=$(printf '%s\n' "$out" | grep -c '^\[ RUN  ')
    if [ "$ran" -ne "$want" ] || [ "$status" -ne "$want_status" ]; then
        echo "$program $*: wanted $want cases and exit $want_status, found $ran and $status: $out" >&2
        exit 1
    fi
}
all=$("$program" --list | grep -c /)
one=$("$program" --list | head -n 1)
group=${one%/*}
of_group=$("$program" --list "$group" | grep -c "^$group/")
[ "$all" -gt "$of_group" ] && [ "$of_group" -gt 1 ] || exit 1
expect "$all" 0
expect "$of_group" 0 "$group"
expect 1 0 "$one"
expect "$all" 0 '*/*'
expect 0 2 "$group/no_such_case"
expect 0 2 no_such_group
