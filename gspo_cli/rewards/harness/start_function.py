"""Starts the harness of one function call."""

from gspo_cli.rewards.harness import function

function.main()
