#!/bin/sh
# The store of onewriter, in any image that has valkey-server and either valkey-cli or Python.
#
#   valkey.sh run      write the file of users from the mounted passwords, follow them when they
#                      change, and become the server
#   valkey.sh check    succeed while the server answers and has read its data
#
# Both passwords count, "password" and "previous-password", so that a change locks nobody out.
set -eu
umask 077
configuration=${ONEWRITER_VALKEY_CONFIGURATION:-/etc/onewriter/valkey}
passwords=${ONEWRITER_VALKEY_PASSWORDS:-/run/onewriter/store}
state=${ONEWRITER_VALKEY_STATE:-/run/valkey}
port=${ONEWRITER_VALKEY_PORT:-6379}
look_seconds=${ONEWRITER_VALKEY_LOOK_SECONDS:-5}

digest() {
    printf %s "$1" | sha256sum | cut -d' ' -f1
}

# Who may connect: the brokers, and this script as "keeper", whose password never leaves the pod.
users() {
    accepted=
    for name in password previous-password; do
        # Read once: a file that vanishes between two looks would leave the empty password.
        secret=$(cat "$passwords/$name" 2>/dev/null) || continue
        if [ -n "$secret" ]; then
            accepted="$accepted #$(digest "$secret")"
        fi
    done
    if [ -z "$accepted" ]; then
        echo "there is no password in $passwords" >&2
        return 1
    fi
    echo "user default off resetkeys resetchannels -@all"
    echo "user onewriter on$accepted $(cat "$configuration/rights")"
    echo "user keeper on #$(digest "$(cat "$state/keeper")") resetkeys resetchannels -@all" \
        "+ping +info +acl|load +bgrewriteaof +config|get"
}

# One command to the server as keeper; prints the answer.
ask() {
    if command -v valkey-cli >/dev/null; then
        REDISCLI_AUTH=$(cat "$state/keeper") valkey-cli --user keeper --no-auth-warning \
            -p "$port" "$@"
        return
    fi
    python3 -IS -c '
import socket, sys
port, keeper, *words = sys.argv[1:]
password = open(keeper).read().strip()
with socket.create_connection(("127.0.0.1", int(port)), 3) as server:
    server.sendall(f"AUTH keeper {password}\r\n{chr(32).join(words)}\r\n".encode())
    replies = server.makefile("rb")
    replies.readline()
    print(replies.readline().decode().strip().removeprefix("+"))
' "$port" "$state/keeper" "$@"
}

# The server reads the file of users again when the passwords have changed, until it says so. It takes
# this shell's place, and its process number: without it there is nothing to follow.
follow() {
    while sleep "$look_seconds" && kill -0 $$ 2>/dev/null; do
        if users >"$state/users.next" && ! cmp -s "$state/users.next" "$state/users.acl"; then
            cp "$state/users.acl" "$state/users.before"
            mv "$state/users.next" "$state/users.acl"
            if [ "$(ask ACL LOAD)" = OK ]; then
                echo "the passwords have changed"
            else
                mv "$state/users.before" "$state/users.acl"
            fi
        fi
    done
}

case ${1:-} in
run)
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$state/keeper"
    users >"$state/users.acl"
    follow &
    exec valkey-server "$configuration/valkey.conf"
    ;;
check)
    [ "$(ask PING)" = PONG ]
    ;;
*)
    echo "usage: valkey.sh run|check" >&2
    exit 2
    ;;
esac
