"""Starts the official harness; whatever escapes it, also with threads still running, ends the process at once."""

import os

from gspo_cli.rewards.code.harness import official

end = os._exit
try:
    official.main()
finally:
    end(1)
