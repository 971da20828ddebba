"""`python -m perdure` is `perdure`."""

from perdure.cli import main as perdure

if __name__ == "__main__":
    perdure()
