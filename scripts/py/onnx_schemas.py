"""Writes how many inputs and which attributes each version of an operator has, by the schemas of the `onnx` package.

    python scripts/py/onnx_schemas.py > frontend/src/onnx/schemas.txt
"""

import onnx.defs


def inputs(schema):
    """The most inputs; `*` for any number."""
    variadic = any(i.option == onnx.defs.OpSchema.FormalParameterOption.Variadic for i in schema.inputs)
    return "*" if variadic else len(schema.inputs)


versions = {}
for schema in onnx.defs.get_all_schemas_with_history():
    if schema.domain in ("", "ai.onnx.ml"):
        name = f"{schema.domain}.{schema.name}" if schema.domain else schema.name
        versions.setdefault(name, {})[schema.since_version] = (inputs(schema), *sorted(schema.attributes))
for name, found in sorted(versions.items()):
    before = None
    for since, schema in sorted(found.items()):
        if schema != before:
            print(name, since, *schema)
        before = schema
