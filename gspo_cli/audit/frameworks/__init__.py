"""The trainers whose configurations are read. A new one is its table in `frameworks.toml` and a function here."""

from gspo_cli.audit.frameworks import others, slime, trl, verl
from gspo_cli.audit.frameworks.framework import Framework

READERS = {
    "verl": verl.read,
    "ms-swift": trl.read_swift,
    "SkyRL": others.read_skyrl,
    "OpenRLHF": others.read_openrlhf,
    "open-instruct": others.read_open_instruct,
    "NeMo-RL": others.read_nemo_rl,
    "ROLL": others.read_roll,
    "AReaL": others.read_areal,
    "prime-rl": others.read_prime_rl,
    "slime": slime.read,
    "miles": slime.read,
    "TRL": trl.read,
    "Unsloth": trl.read,
}
FRAMEWORKS: dict[str, Framework] = {name: Framework(name, reader) for name, reader in READERS.items()}
"""In the order in which a file is tried: the less specific marks come last."""
