"""Starts the harness of one function call."""

from gspo_cli.rewards.code.harness import function

function.main()
