import ast

from dev.sizes import Function, functions

SOURCE = """
class A:
    def f(self):
        if self:
            def g():
                return 1
            return g
        return None
"""


def test_every_function_is_measured_under_its_dotted_name() -> None:
    assert list(functions(ast.parse(SOURCE), "a.py")) == [
        Function("A.f", "a.py:3", lines=6, statements=5),
        Function("A.f.g", "a.py:5", lines=2, statements=1),
    ]
