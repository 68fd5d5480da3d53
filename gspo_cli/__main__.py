"""`python -m gspo_cli` is `gspo`."""

from gspo_cli.cli.main import app

if __name__ == "__main__":
    app()
