"""The stubs name what there is."""

import ast
import inspect
import pathlib

import pytest

import graphc
from graphc import _graphc, _session

FOLDER = pathlib.Path(graphc.__file__).parent


def declared(stub):
    """Functions and classes of a stub, and the methods of those, with the names of their parameters."""
    found = {}
    for node in ast.parse((FOLDER / stub).read_text()).body:
        if isinstance(node, ast.FunctionDef):
            found[node.name] = parameters(node)
        elif isinstance(node, ast.ClassDef):
            for method in node.body:
                if isinstance(method, ast.FunctionDef):
                    found[f"{node.name}.{method.name}"] = parameters(method)
    return found


def parameters(node):
    every = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    return [argument.arg for argument in every if argument.arg != "self"]


@pytest.mark.parametrize(
    "stub, module", [("__init__.pyi", graphc), ("_graphc.pyi", _graphc), ("_session.pyi", _session)]
)
def test_a_stub_has_what_its_module_has(stub, module):
    for name, names in declared(stub).items():
        value = module
        for part in name.split("."):
            assert hasattr(value, part), f"{stub} declares {name}"
            value = (
                getattr(value, part)
                if "." not in name or part == name.split(".")[0]
                else inspect.getattr_static(value, part)
            )
        if isinstance(value, property) or not callable(getattr(value, "__func__", value)):
            continue
        try:
            signature = inspect.signature(getattr(value, "__func__", value))
        except (TypeError, ValueError):
            continue
        variable = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
        real = [n for n, p in signature.parameters.items() if n not in ("self", "slf") and p.kind not in variable]
        assert names == real, f"{stub}: {name}"
    stubbed = {name.split(".")[0] for name in declared(stub)}
    public = {
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and callable(value)
        and getattr(value, "__module__", "") == module.__name__
        and not (inspect.isclass(value) and issubclass(value, Exception))
    }
    assert public <= stubbed | {"Port", "Tensor"}, public - stubbed
