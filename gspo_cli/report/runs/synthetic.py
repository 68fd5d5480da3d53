"""What a study changed on purpose, so that no figure or sentence about it passes for one of ordinary training."""

from typing import Any

Table = dict[str, Any]


def synthetic_settings(config: Table) -> str:
    """The synthetic noise and the row lengths of a run's `config.json`, as sentences; empty if it has none."""
    parts = []
    noise, task = (found if isinstance(found := config.get(name), dict) else {} for name in ("noise", "task"))
    sizes = [
        f"{noise[key]:g} nat per {key}"
        for key in ("token", "response")
        if isinstance(noise.get(key), int | float) and noise[key] > 0
    ]
    if sizes:
        tail = " (Student's t, 3 degrees of freedom)" if noise.get("tail") == "student_t" else ""
        parts.append(f"Synthetic noise on the old log-probabilities: {' and '.join(sizes)}{tail}.")
    experts = noise.get("experts")
    if isinstance(experts, int | float) and experts > 0:
        parts.append(f"Synthetic router noise: {100 * experts:g} % of the old policy's expert slots exchanged.")
    terms = task.get("terms")
    if isinstance(terms, list | tuple) and len(terms) == 2:
        parts.append(f"Rows of {terms[0]} to {terms[1]} digits.")
    return " ".join(parts)
