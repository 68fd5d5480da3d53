"""Programs that try to pass without the answer, to see what they must not see, or to break the machine (attacks.toml).

`CHEATS` never know the right answer: none may be accepted. `SPIES` print the right answer only if what they look for is
out of reach: each must be accepted. `BOMBS` must end in time. Stdin programs get a number n and must print `answer(n)`,
which needs a secret; functions get the same number.
"""

import hashlib
import tomllib
from pathlib import Path

SECRET, CANARY = "5f1c", "hf_CANARY_0123456789"
PROGRAMS: dict[str, dict[str, str]] = tomllib.loads(Path(__file__).with_suffix(".toml").read_text("utf-8"))
CHEATS, FUNCTION_CHEATS = PROGRAMS["cheats"], PROGRAMS["function_cheats"]
SPIES, BOMBS, ENDLESS = PROGRAMS["spies"], PROGRAMS["bombs"], PROGRAMS["endless"]


def answer(n: int) -> str:
    """What a right program prints: nothing that a program could guess."""
    return hashlib.sha256(f"{SECRET}{n}".encode()).hexdigest()[:12]


def writing(action: str) -> str:
    """A program whose function writes into the harness's channel itself, by `write(frame(head, body))`."""
    return PROGRAMS["templates"]["writer"].replace("ACTION", action.strip().replace("\n", "\n        "))
