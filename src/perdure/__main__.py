"""Entry point of `python -m perdure`."""

from perdure.cli import main as perdure

if __name__ == "__main__":
    perdure()
