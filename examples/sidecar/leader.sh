#!/bin/sh
# Lead a topic from a shell script, with the sidecar and curl.
#
#   onewriter sidecar --topic orders &            # one per application, on port 6680
#   NAME=A examples/sidecar/leader.sh
#
# Start both a second time (sidecar with --port 6681, script with SIDECAR=http://127.0.0.1:6681): one
# leads and publishes a line each second, the other waits. Kill or freeze the leader's sidecar, and the
# other one leads.
set -eu

SIDECAR=${SIDECAR:-http://127.0.0.1:6680}
NAME=${NAME:-shell-$$}
INTERVAL=${INTERVAL:-1}

call() {
    curl --silent --show-error --noproxy '*' --max-time 70 "$@"
}

# Prints the session once this sidecar leads; the sidecar delays its answer until then, up to a minute.
session() {
    call "$SIDECAR/leadership?until=leading&timeoutSeconds=60" |
        sed -n 's/.*"session": "\([^"]*\)".*/\1/p'
}

count=0
while true; do
    echo "$NAME: waiting to lead"
    session=$(session) || { sleep 1; continue; }
    [ -n "$session" ] || continue
    echo "$NAME: leading, session $session"
    while true; do
        count=$((count + 1))
        # The status says what is certain: stored, definitely not stored, or unknown.
        answer=$(call --write-out ' %{http_code}' --header "Onewriter-Session: $session" \
            --data-binary "$NAME $count" "$SIDECAR/publish") || answer="000"
        case ${answer##* } in
        200) echo "$NAME: wrote $count" ;;
        409) echo "$NAME: not our turn any more, $count is not in the log"; break ;;
        503 | 429) echo "$NAME: $count is not in the log, trying again"; count=$((count - 1)) ;;
        *) echo "$NAME: unknown whether $count is in the log: $answer" ;;
        esac
        sleep "$INTERVAL"
    done
done
