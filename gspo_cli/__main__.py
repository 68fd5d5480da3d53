"""`python -m gspo_cli` is `gspo`."""

from gspo_cli.cli.main import run

if __name__ == "__main__":
    run()
