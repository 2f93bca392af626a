"""`python -m longspan` is the command `longspan`."""

from longspan.cli import run

if __name__ == "__main__":
    run()
