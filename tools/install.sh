#!/usr/bin/env bash
# Makes the virtual environment with everything pinned in constraints.txt.
set -euo pipefail
: "${PYTHON:=python3}" "${VENV:=.venv}"
"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Homestretch needs Python 3.11 or newer; $PYTHON is $($PYTHON --version). Try: make PYTHON=python3.12 test" >&2; exit 2; }
[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV" || { echo "Could not make a virtual environment in $VENV (on Debian: apt-get install python3-venv)." >&2; exit 2; }
echo "Installing pinned packages into $VENV (torch is the large one; a few minutes) ..."
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --retries 5 -c constraints.txt "torch==2.13.0"
"$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --retries 5 -c constraints.txt -e ".[dev,oracles]"
