#!/bin/sh
# The store of onewriter, in any image that has valkey-server and either valkey-cli or Python.
#
#   valkey.sh run      write the file of users from the mounted passwords, follow them when they
#                      change, and become the server
#   valkey.sh check    succeed while the server answers and has read its data
#   valkey.sh ready    in a cluster: succeed while it serves hash slots, or has copied its primary
#   valkey.sh leave N  in a cluster, before the stop: let a replica take over, and serve for N seconds
#
# Both passwords count, "password" and "previous-password", so that a change locks nobody out.
#
# With ONEWRITER_VALKEY_TLS, a directory with tls.crt, tls.key and ca.crt, the server serves TLS alone. It reads the files
# again when they have changed.
#
# With ONEWRITER_VALKEY_ADDRESS the server is a process of a cluster. A process whose data is gone must not return under its
# former id: the others would still take it for a primary, and its replicas would copy the emptiness. So without data there
# is no nodes.conf either.
set -eu
umask 077
configuration=${ONEWRITER_VALKEY_CONFIGURATION:-/etc/onewriter/valkey}
passwords=${ONEWRITER_VALKEY_PASSWORDS:-/run/onewriter/store}
state=${ONEWRITER_VALKEY_STATE:-/run/valkey}
port=${ONEWRITER_VALKEY_PORT:-6379}
look_seconds=${ONEWRITER_VALKEY_LOOK_SECONDS:-5}
data=${ONEWRITER_VALKEY_DATA:-/data}
cluster_passwords=${ONEWRITER_VALKEY_CLUSTER_PASSWORDS:-/run/onewriter/store-cluster}
address=${ONEWRITER_VALKEY_ADDRESS:-}
host=${ONEWRITER_VALKEY_HOST:-}
tls=${ONEWRITER_VALKEY_TLS:-}

digest() {
    printf %s "$1" | sha256sum | cut -d' ' -f1
}

# The digests of the passwords in a directory.
accepted() {
    found=
    for name in password previous-password; do
        # Read once: a file that vanishes between two looks would leave the empty password.
        secret=$(cat "$1/$name" 2>/dev/null) || continue
        if [ -n "$secret" ]; then
            found="$found #$(digest "$secret")"
        fi
    done
    if [ -z "$found" ]; then
        echo "there is no password in $1" >&2
        return 1
    fi
    echo "$found"
}

# Who may connect: the brokers, and this script as "keeper", whose password never leaves the pod. In a cluster also the
# operator and the replicas.
users() {
    brokers=$(accepted "$passwords") || return 1
    sets=$address$tls
    echo "user default off resetkeys resetchannels -@all"
    echo "user onewriter on$brokers $(cat "$configuration/rights")"
    echo "user keeper on #$(digest "$(cat "$state/keeper")") resetkeys resetchannels -@all" \
        "+ping +info +acl|load +bgrewriteaof +config|get${address:+ +cluster|info +cluster|nodes}${sets:+ +config|set}"
    if [ -n "$address" ]; then
        members=$(accepted "$cluster_passwords") || return 1
        while read -r user rights; do
            echo "user $user on$members $rights"
        done <"$configuration/cluster-users"
    fi
}

# What the server's configuration includes in a cluster.
cluster_configuration() {
    echo "cluster-announce-ip $address"
    echo "cluster-announce-hostname $host"
    printf 'masterauth "%s"\n' "$(sed 's/[\\"]/\\&/g' "$cluster_passwords/password")"
}

# Whether there is a dataset.
has_data() {
    for manifest in "$data"/appendonlydir/*.manifest; do
        if [ -e "$manifest" ]; then
            return 0
        fi
    done
    return 1
}

# Whether the process has its place in the cluster: hash slots, or a primary that it has copied.
has_place() {
    case $(ask CLUSTER INFO) in
    *cluster_state:ok*) ;;
    *) return 1 ;;
    esac
    case $(ask INFO replication) in
    *role:slave*master_link_status:up*) return 0 ;;
    *role:slave*) return 1 ;;
    esac
    # Behind the eight words about a node are its hash slots.
    set -- $(ask CLUSTER NODES | grep myself)
    [ $# -gt 8 ]
}

# Let a replica take over that has everything, so that nobody has to vote. Without such a replica nothing changes.
leave() {
    case $(ask INFO replication) in
    *role:master*) ;;
    *) return 0 ;;
    esac
    replica=$(ask INFO replication |
        sed -n 's/^slave[0-9]*:ip=\([^,]*\),port=\([0-9]*\),state=online,.*/\1 \2/p' | head -n 1)
    if [ -n "$replica" ]; then
        # shellcheck disable=SC2086
        echo "the replica at $replica is asked to take over: $(call $replica operator "$cluster_passwords/password" CLUSTER FAILOVER)"
    fi
}

# Stop with a reason that says what to change, where the server's own reason would not.
check_tls() {
    for name in tls.crt tls.key ca.crt; do
        if ! [ -s "$tls/$name" ]; then
            echo "store.tls: the Secret has no $name" >&2
            exit 1
        fi
    done
    # No server starts with these settings: one with TLS misses a certificate.
    if timeout 10 valkey-server --port 0 --tls-port 1 2>&1 | grep -Eq "Failed finding TLS support|Bad directive"; then
        echo "store.tls: the valkey-server in this image is built without TLS: name another image in valkey.image" >&2
        exit 1
    fi
}

# The certificate as it is mounted now.
certificate() {
    cat "$tls/tls.crt" "$tls/tls.key" "$tls/ca.crt" 2>/dev/null | sha256sum
}

# The server uses the mounted certificate for new connections. One that it cannot use changes nothing, and is tried again.
renew() {
    found=$(certificate)
    if [ "$found" = "$certificate" ]; then
        return
    fi
    answer=$(ask CONFIG SET tls-cert-file "$tls/tls.crt" tls-key-file "$tls/tls.key" tls-ca-cert-file "$tls/ca.crt")
    if [ "$answer" = OK ]; then
        certificate=$found
        echo "the certificate was renewed"
    elif [ "$found" != "$refused" ]; then
        refused=$found
        echo "the renewed certificate cannot be used, the former one stays: $answer" >&2
    fi
}

# One command to the server as keeper; prints the answer.
ask() {
    call 127.0.0.1 "$port" keeper "$state/keeper" "$@"
}

# One command to a server, by address, port, user and the file of its password; prints the answer. With TLS, a server must
# have a certificate of the mounted authority; this pod's own may still have one of the former authority.
call() {
    at=$1 on=$2 as=$3 secret_file=$4
    shift 4
    if command -v valkey-cli >/dev/null; then
        trust=
        if [ -n "$tls" ] && [ "$at" = 127.0.0.1 ]; then
            trust="--tls --insecure"
        elif [ -n "$tls" ]; then
            trust="--tls --cacert $tls/ca.crt"
        fi
        # shellcheck disable=SC2086
        REDISCLI_AUTH=$(cat "$secret_file") timeout 3 valkey-cli $trust --user "$as" --no-auth-warning -h "$at" -p "$on" "$@"
        return
    fi
    python3 -IS -c '
import os, socket, ssl, sys
host, port, user, file, tls, *words = sys.argv[1:]
password = open(file, "rb").read().rstrip(b"\n")
def encoded(*words):
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%s\r\n" % (len(word), word) for word in words)
server = socket.create_connection((host, int(port)), 3)
if tls:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if host == "127.0.0.1":
        context.verify_mode = ssl.CERT_NONE
    else:
        context.load_verify_locations(tls + "/ca.crt")
    server = context.wrap_socket(server)
with server:
    server.sendall(encoded(b"AUTH", os.fsencode(user), password) + encoded(*map(os.fsencode, words)))
    replies = server.makefile("rb")
    replies.readline()
    reply = replies.readline()
    if reply.startswith(b"$"):
        reply = replies.read(int(reply[1:]))
    print(reply.decode().strip().removeprefix("+"))
' "$at" "$on" "$as" "$secret_file" "$tls" "$@"
}

# The server reads the file of users, and its certificate, again when they have changed, until it says so. It takes
# this shell's place, and its process number: without it there is nothing to follow.
follow() {
    certificate=$(certificate) refused=
    while sleep "$look_seconds" && kill -0 $$ 2>/dev/null; do
        if [ -n "$tls" ]; then
            renew
        fi
        if users >"$state/users.next" && ! cmp -s "$state/users.next" "$state/users.acl"; then
            cp "$state/users.acl" "$state/users.before"
            mv "$state/users.next" "$state/users.acl"
            if [ "$(ask ACL LOAD)" = OK ]; then
                echo "the passwords have changed"
                if [ -n "$address" ]; then
                    ask CONFIG SET masterauth "$(cat "$cluster_passwords/password")" >/dev/null
                fi
            else
                mv "$state/users.before" "$state/users.acl"
            fi
        fi
    done
}

case ${1:-} in
run)
    if [ -n "$tls" ]; then
        check_tls
    fi
    od -An -N32 -tx1 /dev/urandom | tr -d ' \n' >"$state/keeper"
    users >"$state/users.acl"
    if [ -n "$address" ]; then
        cluster_configuration >"$state/cluster.conf"
        if [ -e "$data/nodes.conf" ] && ! has_data; then
            echo "the data is gone: this process joins the cluster under a new id, without hash slots" >&2
            rm "$data/nodes.conf"
        fi
    fi
    follow &
    exec valkey-server "$configuration/valkey.conf"
    ;;
check)
    [ "$(ask PING)" = PONG ]
    ;;
ready)
    has_place
    ;;
leave)
    leave || true # the others vote
    sleep "$2"
    ;;
*)
    echo "usage: valkey.sh run|check|ready|leave SECONDS" >&2
    exit 2
    ;;
esac
