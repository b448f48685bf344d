"""A compiler that never ends, and neither does what it has started, whose pid it leaves in the file of its request."""

import json
import subprocess
import sys
import time
from pathlib import Path

if __name__ == "__main__":
    note = json.load(sys.stdin)["note"]
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    Path(note).write_text(str(child.pid))
    time.sleep(600)
