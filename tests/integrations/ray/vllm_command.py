"""`python vllm_command.py FOLDER PORT`: a stand-in for `vllm serve`, as a command."""

import signal
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.integrations.vllm.vllm_stand_in import StandIn

with StandIn(Path(sys.argv[1]), host="0.0.0.0", port=int(sys.argv[2])):
    print("Application startup complete.", flush=True)
    signal.sigwait({signal.SIGTERM})
