#!/bin/bash
# Runs `broker up` beside a Ray node of its own without CPUs: a driver of Ray needs a node where it runs.
#
# The end of this pod is not the end of the product: SIGTERM kills `broker up`, and what it started on the cluster
# goes on until the next pod takes over. To end the product, make the file "stop" first (docs/kubernetes.md).
set -u
stop=${STOP_FILE:-/tmp/stop}
rm -f "$stop"
# $! is "broker up", from the moment that it is there.
end() {
    if [ -z "${!:-}" ]; then ray stop; exit 1; fi
    if [ -e "$stop" ]; then kill -TERM "$!"; else kill -KILL "$!"; fi
}
trap end TERM INT
trap '[ -z "${!:-}" ] || kill -HUP "$!"' HUP
ray start --address="$BROKER_RAY_ADDRESS" --node-ip-address="$POD_IP" --num-cpus=0 --num-gpus=0 \
    --object-store-memory=80000000 --disable-usage-stats || exit 1
broker up &
# A signal ends a wait, not what is waited for.
while kill -0 "$!" 2>/dev/null; do wait "$!"; done
wait "$!"  # its own status, also when a signal ended the wait before
status=$?
ray stop --grace-period 5
exit "$status"
