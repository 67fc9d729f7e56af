#!/usr/bin/env bash
# Answers and features on a Ray cluster:  RAY_ADDRESS=http://HEAD:8265 RUN_DIR=gs://BUCKET/run deploy/ray/submit.sh
# The run folder must be one that every node can reach. Submitting again goes on where a lost cluster stopped.
set -euo pipefail

: "${RAY_ADDRESS:?address of the dashboard}"
: "${RUN_DIR:?folder or URL of the run, reachable from every node}"
recipe=${1:-demo}

for stage in respond features; do
    ray job submit --runtime-env-json '{"pip": ["fledge[gcs,s3]"]}' -- \
        fledge "$stage" "$recipe" --run-dir "$RUN_DIR" --ray
done
