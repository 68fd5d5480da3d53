"""Grading of programs. Everything of the model runs in the sandbox; every comparison runs here, out of its reach."""
