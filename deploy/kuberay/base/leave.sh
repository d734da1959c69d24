#!/bin/bash
# The preStop hook of a gateway's pod: returns when the gateway has sent its viewers away and owners and counters have
# left the node. Kubernetes ends it after terminationGracePeriodSeconds.
exec broker drain "$POD_IP" --ray-address "$RAY_ADDRESS"
