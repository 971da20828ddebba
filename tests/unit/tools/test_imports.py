import subprocess
import sys

CODE = """
import importlib, pkgutil, sys
import msgspec._utils  # what msgspec loads itself is its own affair
light = {name.partition(".")[0] for name in sys.modules}
for package in ("perdure.tools", "perdure.models"):
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__, package + "."):
        importlib.import_module(module.name)
from perdure.tools.decorator import tool
from perdure.tools.toolbox import Toolbox
@tool
def look(a: int) -> int:
    return a
Toolbox([look])
loaded = {name.partition(".")[0] for name in sys.modules} - light - set(sys.stdlib_module_names)
print(sorted(loaded))
"""


def test_declaring_tools_and_models_loads_msgspec_and_nothing_else() -> None:
    done = subprocess.run([sys.executable, "-I", "-c", CODE], capture_output=True, text=True, check=True, timeout=30)
    assert done.stdout.strip() == "['perdure']"
