"""Set up the peers: one venv for each file in `bench/peers/*.txt`, and Restate's server from npm.

Everything goes to `bench/peers/.venvs`, which git ignores. A peer that cannot be installed is left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

PEERS = Path(__file__).resolve().parent / "peers"
HOMES = PEERS / ".venvs"


def main() -> int:
    argparse.ArgumentParser(description=__doc__).parse_args()
    HOMES.mkdir(exist_ok=True)
    missing = [peer.stem for peer in sorted(PEERS.glob("*.txt")) if not _venv(peer)]
    if not _succeeds(["npm", "install", "--silent", "--prefix", str(HOMES), "@restatedev/restate-server"]):
        missing.append("restate-server")
    print(f"not installed: {', '.join(missing)}" if missing else "all peers are installed")
    return len(missing)


def _venv(requirements: Path) -> bool:
    home = HOMES / requirements.stem
    pip = [str(home / "bin" / "pip"), "install", "--quiet", "-r", str(requirements)]
    return _succeeds([sys.executable, "-m", "venv", str(home)]) and _succeeds(pip)


def _succeeds(command: list[str]) -> bool:
    print("+", " ".join(command), flush=True)
    try:
        return subprocess.run(command, check=False).returncode == 0
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
