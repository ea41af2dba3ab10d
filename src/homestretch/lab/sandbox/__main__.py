"""`python -m homestretch.lab.sandbox [MODE]`: attacks the sandbox of this machine and prints its report as JSON."""

from __future__ import annotations

import json
import sys

from homestretch.lab.sandbox import SandboxFailed, open_sandbox

if __name__ == "__main__":
    try:
        opened = open_sandbox(only=sys.argv[1] if len(sys.argv) > 1 else None)  # type: ignore[arg-type]
    except SandboxFailed as failure:
        sys.exit(str(failure))
    sys.stdout.write(json.dumps(opened.report, indent=2) + "\n")
