#!/bin/bash
# Builds the wheel and installs it with what `requirements.lock` names to $1 (/opt/broker), with a list of all that
# is in it (SBOM, CycloneDX). A step of the Dockerfile; runs by itself too.
set -euo pipefail
target=${1:-/opt/broker}
cd "$(dirname "$0")/../.."
make build
rm -rf .build/wheel
PATH="$PWD/.venv/bin:$PATH" .venv/bin/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir .build/wheel .
python3 -m venv "$target/.venv"
"$target/.venv/bin/pip" install --quiet --no-cache-dir --require-hashes -r deploy/docker/requirements.lock
"$target/.venv/bin/pip" install --quiet --no-cache-dir --no-deps --no-index .build/wheel/*.whl
"$target/.venv/bin/pip" check
python3 -m venv .build/sbom
.build/sbom/bin/pip install --quiet --no-cache-dir cyclonedx-bom==7.5.0
.build/sbom/bin/cyclonedx-py environment --output-reproducible --output-file "$target/sbom.json" "$target/.venv"
# pip and tests of packages are of no use there.
"$target/.venv/bin/python3" -m pip uninstall --quiet --yes pip
install -m 0644 deploy/docker/health.py "$target/health.py"
