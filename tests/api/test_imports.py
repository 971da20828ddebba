"""Import times: heavy libraries are imported only where they are used."""

from __future__ import annotations

import subprocess
import sys

HEAVY = {"fastapi", "pydantic", "pydantic_core", "pydantic_ai", "mcp", "httpx2", "textual", "uvicorn", "cryptography"}
LIST = "import sys; print(*sorted({name.partition('.')[0] for name in sys.modules}), file=sys.stderr)"


def loaded_by(code: str, *args: str) -> set[str]:
    """Top-level modules that a fresh interpreter has after running some code."""
    ran = subprocess.run(
        [sys.executable, "-I", "-c", f"{code}\n{LIST}", *args], capture_output=True, text=True, check=True
    )
    return set(ran.stderr.split())


def run_of(*args: str) -> str:
    """The code of the entry point, going on after its exit."""
    called = "from perdure.cli import main\ntry: main()\nexcept SystemExit: pass"
    return f"import sys\nsys.argv = ['perdure', *{args!r}]\n{called}"


def third_party(modules: set[str]) -> set[str]:
    """Without the standard library, and without what an empty interpreter has already (such as path hooks)."""
    return modules - set(sys.stdlib_module_names) - loaded_by("pass")


def test_importing_perdure_loads_msgspec_at_most() -> None:
    assert third_party(loaded_by("import perdure")) <= {"perdure", "msgspec"}


def test_declaring_an_agent_loads_msgspec_only() -> None:
    imports = "from perdure import Agent, Runtime, tool"
    code = (
        f"{imports}\n@tool\ndef f(a: int) -> int: return a\nRuntime(agents=[Agent('a', model='sim:echo', tools=[f])])"
    )
    # msgspec itself takes typing_extensions where it finds them.
    assert third_party(loaded_by(code)) <= {"perdure", "msgspec", "typing_extensions"}


def test_importing_the_public_names_loads_no_worker() -> None:
    code = "import sys\nfrom perdure import Agent, Runtime, tool\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True)
    ours = [name for name in ran.stdout.split() if name.startswith("perdure")]
    assert "perdure.runtime.core" not in ours
    assert len(ours) < 160, "a program that only declares agents waits for the import of what runs them"


def test_help_loads_nothing_heavy() -> None:
    for args in (("--help",), ("demo", "--help"), ("sessions", "list", "--help"), ("run", "--help")):
        modules = loaded_by(run_of(*args))
        assert "typer" in modules
        assert modules.isdisjoint({*HEAVY, "rich", "asyncio", "sqlite3", "msgspec"}), args


def test_version_does_not_even_load_the_parser() -> None:
    assert third_party(loaded_by(run_of("--version"))) == {"perdure"}


def test_looking_at_a_store_loads_no_server() -> None:
    assert loaded_by(run_of("sessions", "list", "--db", "/nowhere/store.db")).isdisjoint(HEAVY)
