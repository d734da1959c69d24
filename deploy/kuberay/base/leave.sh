#!/bin/bash
# The preStop hook of a gateway's pod: tells Ray that this node drains, then waits until the gateway has sent its
# viewers away and closed its port. Kubernetes ends it after terminationGracePeriodSeconds.
set -u
node=$(python3 -c '
import os, ray
ray.init(os.environ["RAY_ADDRESS"], log_to_driver=False)
here = [node for node in ray.nodes() if node["NodeManagerAddress"] == os.environ["POD_IP"] and node["Alive"]]
print(here[0]["NodeID"])' | tail -n 1)
ray drain-node --address="$RAY_ADDRESS" --node-id="$node" --reason=DRAIN_NODE_REASON_PREEMPTION \
    --reason-message=preStop --deadline-remaining-seconds=60 || exit 0
while (exec 3<>"/dev/tcp/$POD_IP/${WS_PORT:-8001}") 2>/dev/null; do sleep 1; done
