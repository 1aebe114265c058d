import os
from collections.abc import Mapping, Sequence
from typing import Any, Optional, Union

from . import errors as errors
from ._graphc import Tensor as Tensor
from ._graphc import __version__ as __version__
from ._session import Port as Port
from ._session import Run as Run
from ._session import Session as Session
from .errors import ArgumentError as ArgumentError
from .errors import DeviceError as DeviceError
from .errors import Error as Error
from .errors import FileError as FileError
from .errors import InputError as InputError
from .errors import InternalError as InternalError
from .errors import ModelError as ModelError
from .errors import NotAvailableError as NotAvailableError
from .errors import OptionError as OptionError
from .errors import OutOfMemoryError as OutOfMemoryError
from .errors import TimeoutError as TimeoutError
from .errors import UnsupportedError as UnsupportedError
from .errors import UserError as UserError

#: A path, the contents of a file, or an onnx.ModelProto.
_Model = Union[str, "os.PathLike[str]", bytes, bytearray, memoryview, Any]
_Size = Union[int, str, range, tuple[Optional[int], Optional[int]]]
_Option = Union[str, int, float, bool, "os.PathLike[str]"]

def load(
    model: _Model,
    device: str = "cpu",
    *,
    threads: Optional[int] = None,
    sizes: Optional[Mapping[str, _Size]] = None,
    shapes: Optional[Mapping[str, Sequence[Union[int, str]]]] = None,
    states: Optional[Mapping[str, str]] = None,
    dtype: Optional[str] = None,
    inputs: Optional[Mapping[str, Any]] = None,
    **options: _Option,
) -> Session: ...
def compile(
    model: _Model,
    targets: Union[str, Sequence[str]],
    output: Union[str, "os.PathLike[str]"],
    *,
    sizes: Optional[Mapping[str, _Size]] = None,
    shapes: Optional[Mapping[str, Sequence[Union[int, str]]]] = None,
    states: Optional[Mapping[str, str]] = None,
    dtype: Optional[str] = None,
    **options: _Option,
) -> None: ...
def explain(
    model: _Model,
    target: Union[str, Sequence[str]] = "cpu",
    *,
    proofs: bool = False,
    sizes: Optional[Mapping[str, _Size]] = None,
    shapes: Optional[Mapping[str, Sequence[Union[int, str]]]] = None,
    states: Optional[Mapping[str, str]] = None,
    dtype: Optional[str] = None,
    **options: _Option,
) -> Any: ...
def inspect(model: _Model, **options: Any) -> dict[str, Any]: ...
def tensor(value: Any, dtype: Optional[str] = None) -> Tensor: ...
def options() -> dict[str, str]: ...
